"""Those of tests/security/test_lifetime.py that need no engine of their own, on the cluster."""

from tests.security.test_lifetime import (  # noqa: F401
    test_a_call_under_way_at_the_deadline_is_called_off,
    test_a_cancelled_run_ends_its_processes_and_calls,
    test_a_daemon_dies_with_its_run,
    test_an_end_that_is_none_is_no_success,
    test_children_and_orphans_are_collected,
    test_killing_the_first_process_is_a_crash,
    test_what_ignores_every_signal_ends_at_its_deadline,
)
