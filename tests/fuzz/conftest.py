"""How long the fuzzers search: briefly among the other tests, at length in `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "2000")),
    deadline=None,
    print_blob=True,
    # What was found once is tried first the next time; the directory is git's to ignore.
    database=DirectoryBasedExampleDatabase(".hypothesis/fuzz"),
)
