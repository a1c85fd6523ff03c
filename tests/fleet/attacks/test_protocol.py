"""tests/security/test_protocol.py, on the cluster."""

from tests.security.test_protocol import *  # noqa: F403
