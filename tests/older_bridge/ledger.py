"""What the older bridge of this kind got wrong, as promises of this one, and the tests of each.

Owns the list; `test_ledger.py` keeps it and the tests in step. The numbers are those of the list of
faults that was made by trying the older bridge out.
"""

from __future__ import annotations

from dataclasses import dataclass

E2E = "tests/e2e/test_sessions.py"
HERE = "tests/older_bridge"
CONTAINERS = f"{HERE}/test_containers.py"
HOSTING = f"{HERE}/test_hosting.py"
NAMES = f"{HERE}/test_names.py"
RESULTS = f"{HERE}/test_results.py"
SERVERS = f"{HERE}/test_servers.py"

DISCOVERY = "tests/discovery"
MACHINE = "tests/sandbox/container/test_machine.py"
UPSTREAM = "tests/upstream"
CALLS = f"{UPSTREAM}/test_stdio_calls.py"
ENTRIES = f"{DISCOVERY}/test_entries.py"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One fault that must not come back.

    Attributes:
        promise: What holds instead, in one sentence.
        tests: Each "file::function"; together they fail on every part of the fault.
    """

    number: int
    promise: str
    tests: tuple[str, ...]


LEDGER = (
    Entry(
        number=1,
        promise="A session is owned by no request, so runs that name servers are all answered.",
        tests=(
            f"{RESULTS}::test_runs_that_name_servers_are_answered_one_after_the_other",
            f"{E2E}::test_many_runs_with_two_servers_succeed_and_leave_nothing",
        ),
    ),
    Entry(
        number=2,
        promise="A run that times out or is cancelled takes its sandbox with it.",
        tests=(
            f"{HOSTING}::test_when_a_timeout_is_reported_the_sandbox_is_gone",
            f"{HOSTING}::test_when_a_run_is_cancelled_its_sandbox_goes",
            f"{CONTAINERS}::test_a_program_out_of_time_leaves_no_container_while_the_bridge_lives",
            f"{E2E}::test_a_cancelled_call_ends_the_container_and_the_upstream_call",
            f"{E2E}::test_a_client_that_disappears_in_a_run_leaves_nothing",
            "tests/contract/test_backend_cancellation.py::test_cancelled_in_a_phase_nothing_is_left",
        ),
    ),
    Entry(
        number=3,
        promise="Lines and results may be long, and the calls after them work.",
        tests=(
            f"{RESULTS}::test_a_line_of_any_length_is_printed_whole",
            f"{RESULTS}::test_tool_results_of_any_size_arrive_and_calls_go_on",
            "tests/guest/supervisor/test_supervisor_channel.py::test_a_large_reply_and_a_large_argument_arrive_whole",
            f"{CALLS}::test_fifty_megabytes_arrive_in_one_line",
        ),
    ),
    Entry(
        number=4,
        promise="Resources and links in a result are plain data.",
        tests=(
            f"{RESULTS}::test_embedded_resources_and_links_are_plain_data",
            f"{CALLS}::test_an_answer_arrives_whole_and_in_plain_json",
        ),
    ),
    Entry(
        number=5,
        promise="Any number of tools with descriptions of any length can be used.",
        tests=(
            f"{NAMES}::test_a_hundred_and_fifty_tools_with_long_descriptions_are_usable",
            f"{HOSTING}::test_what_is_said_of_tools_is_no_part_of_a_sandboxs_start",
        ),
    ),
    Entry(
        number=6,
        promise="What a server writes is data and never becomes part of a program.",
        tests=(
            f"{NAMES}::test_what_a_server_writes_is_never_taken_for_code_or_a_template",
            "tests/guest/api/test_proxies.py::test_hostile_names_become_data_and_never_code",
        ),
    ),
    Entry(
        number=7,
        promise="Calls run side by side, and output is read meanwhile.",
        tests=(
            f"{RESULTS}::test_output_is_read_while_calls_are_under_way",
            f"{RESULTS}::test_a_slow_call_holds_up_no_other",
            "tests/runs/test_runs.py::test_gathered_calls_are_under_way_at_the_same_time",
        ),
    ),
    Entry(
        number=8,
        promise="A tool's error is an exception in the program.",
        tests=(
            f"{NAMES}::test_a_tools_error_is_raised_and_its_raw_result_can_be_had",
            "tests/rpc/test_values.py::test_a_tools_error_is_told_apart",
        ),
    ),
    Entry(
        number=9,
        promise="Every failed call raises the documented class of error, with a text.",
        tests=(f"{NAMES}::test_every_failed_call_raises_the_one_documented_error",),
    ),
    Entry(
        number=10,
        promise="Positional arguments are arguments, and only tools are attributes.",
        tests=(
            f"{NAMES}::test_a_positional_argument_is_an_argument",
            f"{NAMES}::test_a_tool_that_does_not_exist_is_no_attribute",
            "tests/guest/api/test_proxies.py::test_names_that_libraries_probe_for_are_never_answered",
        ),
    ),
    Entry(
        number=11,
        promise="Nothing that a program or its children print can upset the bridge.",
        tests=(
            f"{RESULTS}::test_what_a_child_process_prints_is_only_text",
            f"{RESULTS}::test_bytes_that_are_no_text_cost_nothing_else",
        ),
    ),
    Entry(
        number=12,
        promise="Output is shown as it was written, line for line.",
        tests=(
            f"{RESULTS}::test_no_line_of_the_output_is_dropped",
            f"{RESULTS}::test_a_program_that_prints_one_empty_line_printed_one",
            f"{CONTAINERS}::test_a_program_writes_where_it_is_told_and_nothing_of_it_lasts",
            "tests/render/test_structured.py::test_structured_content_gives_back_both_streams",
            "tests/render/test_text.py::test_compact_text_drops_nothing",
        ),
    ),
    Entry(
        number=13,
        promise="What is advertised is there, under that name, and works as the program's user.",
        tests=(
            f"{NAMES}::test_every_helper_that_is_advertised_is_there_and_awaited_as_shown",
            f"{NAMES}::test_every_name_that_is_advertised_is_in_a_programs_namespace",
            f"{NAMES}::test_helpers_are_asynchronous_or_not_as_documented",
            f"{CONTAINERS}::test_a_program_writes_where_it_is_told_and_nothing_of_it_lasts",
        ),
    ),
    Entry(
        number=14,
        promise="Searching covers every server, and is shown with the `await` it needs.",
        tests=(
            f"{NAMES}::test_tools_of_servers_nobody_loaded_are_found_and_called_in_the_same_run",
            f"{NAMES}::test_every_helper_that_is_advertised_is_there_and_awaited_as_shown",
            f"{NAMES}::test_the_examples_in_tools_documentation_run_as_they_stand",
        ),
    ),
    Entry(
        number=15,
        promise="A failure has its exit code and the program's own lines; event loops may be its.",
        tests=(
            f"{RESULTS}::test_a_failure_has_its_exit_code",
            f"{RESULTS}::test_no_exception_is_a_success",
            f"{RESULTS}::test_a_traceback_holds_the_programs_own_lines_and_no_others",
            f"{RESULTS}::test_a_program_may_bring_its_own_event_loop",
            f"{E2E}::test_every_end_has_its_name_and_the_next_run_works",
        ),
    ),
    Entry(
        number=16,
        promise="An answer has a bound, says what was cut, and keeps both ends.",
        tests=(
            f"{RESULTS}::test_an_answer_is_bounded_whatever_the_program_writes",
            f"{RESULTS}::test_output_that_is_cut_keeps_both_ends",
        ),
    ),
    Entry(
        number=17,
        promise="Servers start once, are replaced when dead, listed whole, and end with us.",
        tests=(
            f"{SERVERS}::test_runs_at_the_same_time_start_each_server_once",
            f"{SERVERS}::test_a_dead_server_is_explained_and_replaced",
            f"{SERVERS}::test_servers_end_with_the_bridge",
            f"{SERVERS}::test_a_failed_start_is_explained_and_leaves_nothing",
            f"{SERVERS}::test_tools_on_later_pages_are_there",
            f"{SERVERS}::test_tools_that_a_server_adds_are_there_in_the_next_run",
            f"{SERVERS}::test_each_run_has_the_servers_it_names",
            f"{UPSTREAM}/test_sessions.py::test_a_server_that_never_answers_initialize_fails_in_time",
            f"{CALLS}::test_a_call_that_takes_too_long_is_cancelled_at_the_server",
            f"{CALLS}::test_a_server_that_floods_stderr_is_not_blocked",
        ),
    ),
    Entry(
        number=18,
        promise="Configuration is read in every spelling, and again when it was edited.",
        tests=(
            f"{SERVERS}::test_servers_of_every_spelling_and_transport_are_usable_together",
            f"{SERVERS}::test_an_edited_file_counts_from_the_next_run_on",
            f"{SERVERS}::test_a_stronger_file_added_later_overrides",
            f"{DISCOVERY}/test_parser.py::test_all_three_spellings_of_the_server_key_are_read",
            f"{ENTRIES}::test_entries_that_are_off_are_skipped_without_a_warning_and_hold_their_name",
            f"{ENTRIES}::test_variables_expand_in_every_field_that_takes_them_and_in_no_key",
            f"{DISCOVERY}/test_precedence.py::test_every_place_outranks_those_after_it_in_the_table",
        ),
    ),
    Entry(
        number=19,
        promise="podman's machine is never altered, and stopped only by who started it.",
        tests=(
            f"{CONTAINERS}::test_a_run_on_podman_starts_no_podman_command",
            f"{MACHINE}::test_linux_with_a_local_engine_sees_no_machine_command",
            f"{MACHINE}::test_a_stopped_machine_is_started_and_nothing_else",
            f"{MACHINE}::test_a_machine_of_the_users_is_never_stopped",
        ),
    ),
    Entry(
        number=20,
        promise="Host and sandbox share no directory, no text encoding, no clock and no past.",
        tests=(
            # No directory of the host is mounted, so that none needs a label.
            "tests/sandbox/container/test_hardening.py::test_on_docker",
            "tests/sandbox/container/test_hardening.py::test_on_podman",
            f"{HOSTING}::test_starting_a_sandbox_does_not_use_up_the_programs_time",
            f"{RESULTS}::test_text_of_all_languages_passes_without_a_locale",
            f"{HOSTING}::test_a_program_is_told_nothing_of_how_its_servers_are_reached",
            f"{HOSTING}::test_nothing_of_a_run_is_there_in_the_next",
            f"{CONTAINERS}::test_a_program_writes_where_it_is_told_and_nothing_of_it_lasts",
            f"{HOSTING}::test_a_setting_that_does_not_parse_is_a_sentence_and_not_a_crash",
            "tests/settings/test_load.py::test_a_value_that_does_not_parse_names_its_variable",
            # Whether an engine is rootless is found out and told.
            "tests/sandbox/container/test_facts.py::test_docker",
            "tests/sandbox/container/test_facts.py::test_docker_options_are_read",
            "tests/gate/test_pipeline.py::test_a_server_outside_the_grant_is_refused_by_name",
        ),
    ),
)
