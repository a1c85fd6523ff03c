"""All benchmarks, one after the other."""

from __future__ import annotations

from benchmarks import runs, upstream_stdio

runs.main()
upstream_stdio.main()
