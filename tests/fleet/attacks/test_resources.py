"""tests/security/test_resources.py, on the cluster."""

from tests.security.test_resources import *  # noqa: F403
