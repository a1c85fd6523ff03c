"""Promises about the size of what others send, and the tests that hold them."""

from __future__ import annotations

from tests.security.guarantee import Guarantee

SERVERS = "tests/hostile/test_servers.py"
REMOTE = "tests/hostile/test_remote.py"
PROGRAMS = "tests/hostile/test_programs.py"
REQUESTS = "tests/hostile/test_requests.py"
WATCHDOG = "tests/test_watchdog.py"

BOUNDS_GUARANTEES = (
    Guarantee(
        id="loop-never-stalls",
        promise="Nothing that a server, a program or a client sends keeps the event loop for more "
        "than 250 ms of CPU time, and what is too much is refused by an error that says so.",
        attacks=(),
        tests=(
            f"{SERVERS}::test_no_list_of_tools_keeps_the_loop",
            f"{SERVERS}::test_no_result_keeps_the_loop",
            f"{SERVERS}::test_nothing_sent_unasked_keeps_the_loop",
            f"{SERVERS}::test_requests_without_end_end_the_connection",
            f"{SERVERS}::test_no_list_of_resources_or_prompts_keeps_the_loop",
            f"{SERVERS}::test_no_list_without_an_end_keeps_the_loop",
            f"{REMOTE}::test_no_answer_over_http_keeps_the_loop",
            f"{PROGRAMS}::test_no_frame_keeps_the_loop",
            f"{PROGRAMS}::test_no_program_s_text_keeps_the_loop",
            f"{REQUESTS}::test_no_call_keeps_the_loop",
            f"{REQUESTS}::test_no_address_of_a_resource_keeps_the_loop",
            f"{WATCHDOG}::test_what_keeps_the_loop_from_everything_else_is_caught",
            f"{WATCHDOG}::test_work_that_lets_the_loop_turn_is_none_of_its_business",
        ),
    ),
    Guarantee(
        id="names-counted",
        promise="A name that is too long to be any is refused before anything acts on it, and "
        "counts as a call.",
        attacks=(),
        tests=(f"{PROGRAMS}::test_a_name_that_is_refused_counts_as_a_call",),
    ),
)
