"""Which cases only `make test-all` runs, and which begin `make test`.

Attacks, contract and end-to-end tests run in full on bubblewrap and on root's podman. On the other
engines `make test` runs one test of each guarantee, and a few that show that the engine works. The
guest's tests use the oldest Python there, and the newest too in `make test-all`.
"""

from __future__ import annotations

import pytest

from tests.security.guarantees import GUARANTEES

MATRIX = (
    "tests/contract/",
    "tests/e2e/",
    "tests/older_bridge/",
    "tests/sandbox/",
    "tests/security/",
)
OTHER_ENGINES = frozenset({"docker", "gvisor", "rootless", "ssh"})
NEWEST_PYTHON = "3.13"

SESSIONS = "tests/contract/test_sessions.py"

SMOKES = frozenset(
    {
        *(guarantee.tests[0] for guarantee in GUARANTEES),
        f"{SESSIONS}::test_a_session_keeps_its_state_through_a_timeout_and_says_when_a_crash_takes_it",
        "tests/contract/test_backend_contract.py::test_what_is_sent_comes_back",
        "tests/e2e/test_command_line.py::test_doctor_tries_the_engine_and_says_what_it_found",
        "tests/e2e/test_sessions.py::test_every_end_has_its_name_and_the_next_run_works",
    }
)
"""What every engine has in `make test`, as "file::function"."""


ON_A_SERVER = (
    "tests/artifacts/test_store.py",
    "tests/sessions/test_checkpoints.py",
    "tests/skills/test_memories.py",
)
"""Modules whose tests `make test` runs on PostgreSQL too; the others only `make test-all`."""

BEGUN_FIRST = (
    "tests/sandbox/image/test_real.py",
    "tests/examples/",
    "tests/e2e/",
    "tests/soak/",
    "tests/clients/",
    "tests/security/",
    "tests/artifacts/test_dying.py",
    "tests/cli/test_first_contact.py",
)
"""Those that take longest: begun last, one of them would leave the other workers idle."""


def left_to(item: pytest.Item) -> str:
    """Return the mark of a case that `make test` leaves out: "full", or empty."""
    parameters = getattr(item, "callspec", None)
    if parameters is None:
        return ""
    if parameters.params.get("python") == NEWEST_PYTHON:
        return "full"
    test = item.nodeid.partition("[")[0]
    if parameters.params.get("each_database") == "postgresql":
        return "" if test.startswith(ON_A_SERVER) else "full"
    values = {value for value in parameters.params.values() if isinstance(value, str)}
    if not test.startswith(MATRIX) or test in SMOKES:
        return ""
    return "full" if values & OTHER_ENGINES else ""
