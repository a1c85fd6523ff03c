"""`python -m bridge` is the console script."""

from __future__ import annotations

import sys

from bridge.cli.main import main

sys.exit(main())
