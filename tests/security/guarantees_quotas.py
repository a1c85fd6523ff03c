"""Promises about floods: of calls, runs, clients, log lines and bytes on disk."""

from __future__ import annotations

from tests.security.guarantee import Guarantee

AUDIT_FILES = "tests/gate/audit/test_files.py"
PLACES = "tests/runs/test_run_places.py"
QUEUE = "tests/sandbox/test_run_queue.py"
REBINDING = "tests/attacks/test_rebinding.py"
REFUSALS = "tests/gate/audit/test_refusals.py"
REPEATED = "tests/cli/test_output_logs.py"
SERVER_LOGS = "tests/upstream/test_server_log.py"
TRANSPORTS = "tests/server/test_transports.py"

QUOTA_GUARANTEES = (
    Guarantee(
        id="audit-floods",
        promise="No flood of calls fills the audit log, hides a call in it or has it forget; what "
        "is counted is counted truly, and no call is made unrecorded.",
        attacks=(),
        tests=(
            f"{REFUSALS}::test_equal_refusals_are_recorded_a_few_times_and_counted",
            f"{REFUSALS}::test_refusals_of_other_kinds_do_not_hide_among_a_flood",
            f"{REFUSALS}::test_no_flood_of_refusals_passes_the_budget_of_its_run",
            f"{REFUSALS}::test_a_made_call_is_refused_once_its_run_has_filled_the_log",
            f"{REFUSALS}::test_counts_and_receipts_of_a_flood_are_true",
            f"{AUDIT_FILES}::test_a_log_that_has_all_it_may_have_takes_no_further_call_and_loses_nothing",
        ),
    ),
    Guarantee(
        id="runs-at-once",
        promise="No more runs are under way than there are places; the others wait in fair turns, "
        "within bounds, and nothing that ends or is cancelled keeps a place.",
        attacks=(),
        tests=(
            f"{QUEUE}::test_there_are_never_more_at_once_than_places",
            f"{QUEUE}::test_callers_have_turns_and_each_callers_runs_their_order",
            f"{QUEUE}::test_a_queue_that_is_full_is_told_with_what_to_do",
            f"{QUEUE}::test_nobody_waits_for_ever",
            f"{QUEUE}::test_a_place_given_to_a_run_that_is_cancelled_at_that_moment_is_anothers",
            f"{PLACES}::test_runs_that_wait_for_people_leave_places_for_others",
            f"{PLACES}::test_a_cancelled_run_gives_its_place_back",
        ),
    ),
    Guarantee(
        id="http-clients",
        promise="Over HTTP only requests for the bridge's own names and port are answered, and "
        "sessions are bounded, end when nobody uses them and leave nothing.",
        attacks=(),
        tests=(
            f"{REBINDING}::test_every_loopback_address_refuses_a_foreign_host_or_origin",
            f"{REBINDING}::test_host_and_origin_are_compared_whole_with_their_port",
            f"{TRANSPORTS}::test_sessions_have_a_bound_and_what_ended_makes_room_and_leaves_nothing",
            f"{TRANSPORTS}::test_a_session_that_nobody_uses_ends",
        ),
    ),
    Guarantee(
        id="log-floods",
        promise="Neither what servers write nor what the bridge writes of them fills a disk.",
        attacks=(),
        tests=(
            f"{SERVER_LOGS}::test_a_log_is_private_and_capped",
            f"{SERVER_LOGS}::test_all_logs_together_are_bounded_and_the_oldest_go",
            f"{REPEATED}::test_a_flood_from_one_place_is_counted_however_its_lines_differ",
        ),
    ),
)
