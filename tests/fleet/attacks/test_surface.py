"""tests/security/test_surface.py, on the cluster."""

from tests.security.test_surface import *  # noqa: F403
