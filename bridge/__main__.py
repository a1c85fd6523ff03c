"""`python -m bridge` is the console script."""

from __future__ import annotations

import sys

from bridge.background.front import main

sys.exit(main())
