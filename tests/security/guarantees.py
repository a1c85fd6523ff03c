"""What the sandbox promises, and the tests that hold each promise.

Owns the list; `test_guarantees.py` keeps it and the tests in step. The numbers are those of the
list of attacks that the promises answer: 42 ways in which sandboxes of this kind were left,
starved, fooled or outlived.
"""

from __future__ import annotations

from tests.security.guarantee import Guarantee
from tests.security.guarantees_around import AROUND_GUARANTEES
from tests.security.guarantees_asking import ASKING_GUARANTEES
from tests.security.guarantees_bounds import BOUNDS_GUARANTEES
from tests.security.guarantees_kept import KEPT_GUARANTEES
from tests.security.guarantees_quotas import QUOTA_GUARANTEES
from tests.security.guarantees_started import STARTED_GUARANTEES

ATTACKS = 42

HERE = "tests/security"
ABSENT = f"{HERE}/test_absent.py"
LIFETIME = f"{HERE}/test_lifetime.py"
PROTOCOL = f"{HERE}/test_protocol.py"
RESOURCES = f"{HERE}/test_resources.py"
SURFACE = f"{HERE}/test_surface.py"
BROKEN = f"{HERE}/test_broken_layers.py"

COMMANDS = "tests/commands/test_commands.py"
CONTAINERS = "tests/contract/test_container_commands.py"
EXECUTABLES = "tests/commands/test_attack_executables.py"
GUARD = "tests/runs/test_reading.py"
LAYERS = "tests/contract/test_container_layers.py"
SOCKETS = "tests/commands/test_attack_sockets.py"
UNGUARDED = "tests/sandbox/process/test_attack_unguarded.py"
WEAKER = "tests/sandbox/process/test_landlock_tier.py"
SESSIONS = "tests/e2e/test_sessions.py"
CANCELLATION = "tests/contract/test_backend_cancellation.py"

GUARANTEES = (
    Guarantee(
        id="processes",
        promise="A program that starts processes or threads without end is stopped by its own "
        "limit, and another run beside it does not notice.",
        attacks=(1, 11),
        tests=(
            f"{RESOURCES}::test_processes_and_threads_are_bounded",
            f"{RESOURCES}::test_a_fork_bomb_ends_with_its_run_and_hurts_no_neighbour",
            f"{LIFETIME}::test_children_and_orphans_are_collected",
        ),
    ),
    Guarantee(
        id="memory",
        promise="The memory limit is the sandbox's as a whole, files in memory included.",
        attacks=(2, 3, 4),
        tests=(
            f"{RESOURCES}::test_memory_is_bounded_and_running_out_has_a_name",
            f"{RESOURCES}::test_memory_cannot_be_multiplied_by_children",
            f"{RESOURCES}::test_files_are_bounded_in_bytes_and_number",
        ),
    ),
    Guarantee(
        id="output",
        promise="Output of any length costs the host no more than its bound, and the cut is told.",
        attacks=(5,),
        tests=(f"{RESOURCES}::test_output_of_any_length_is_bounded_on_the_host",),
    ),
    Guarantee(
        id="descriptors",
        promise="Descriptors run out inside only.",
        attacks=(6,),
        tests=(f"{RESOURCES}::test_descriptors_run_out_inside_only",),
    ),
    Guarantee(
        id="processors",
        promise="A program on every processor ends at its deadline and leaves others time.",
        attacks=(7,),
        tests=(f"{RESOURCES}::test_a_program_on_every_processor_leaves_time_for_others",),
    ),
    Guarantee(
        id="depth",
        promise="Recursion, nesting and crashes are results, without a core file.",
        attacks=(8,),
        tests=(f"{RESOURCES}::test_depth_ends_in_an_error_and_a_crash_leaves_no_core",),
    ),
    Guarantee(
        id="ending",
        promise="Every run ends by its deadline, whatever signals it ignores and whoever it stops.",
        attacks=(9, 10),
        tests=(
            f"{LIFETIME}::test_a_daemon_dies_with_its_run",
            f"{LIFETIME}::test_what_ignores_every_signal_ends_at_its_deadline",
        ),
    ),
    Guarantee(
        id="honest-end",
        promise="A program that ends before it is through is never reported as a success.",
        attacks=(12, 17),
        tests=(
            f"{LIFETIME}::test_killing_the_first_process_is_a_crash",
            f"{LIFETIME}::test_an_end_that_is_none_is_no_success",
        ),
    ),
    Guarantee(
        id="calls-end",
        promise="A call under way when its run ends is called off, and its answer reaches nobody.",
        attacks=(13, 14),
        tests=(
            f"{LIFETIME}::test_a_run_that_is_called_off_takes_all_with_it",
            f"{LIFETIME}::test_a_call_under_way_at_the_deadline_is_called_off",
            f"{CANCELLATION}::test_cancelled_in_a_phase_nothing_is_left",
            f"{SESSIONS}::test_a_client_that_disappears_in_a_run_leaves_nothing",
        ),
    ),
    Guarantee(
        id="bridge-killed",
        promise="A bridge that is killed takes its programs with it, and the next one removes the "
        "rest without touching a living bridge's.",
        attacks=(15,),
        tests=(f"{LIFETIME}::test_a_bridge_that_is_killed_takes_its_sandboxes_with_it",),
    ),
    Guarantee(
        id="engine-lost",
        promise="An engine that goes away or stands still is told from a slow program, and what "
        "was said by then is kept.",
        attacks=(16,),
        tests=(
            f"{LIFETIME}::test_an_engine_that_goes_away_takes_the_program_along_but_not_its_output",
            f"{LIFETIME}::test_a_sandbox_that_stands_still_is_not_mistaken_for_a_slow_program",
        ),
    ),
    Guarantee(
        id="frames-are-text",
        promise="Frames that a program prints are text.",
        attacks=(18,),
        tests=(f"{PROTOCOL}::test_frames_on_the_programs_own_output_are_text",),
    ),
    Guarantee(
        id="frames-give-nothing",
        promise="Code that writes to the channel itself gets nothing that its run was not given.",
        attacks=(19, 20),
        tests=(
            f"{PROTOCOL}::test_frames_on_the_channel_get_nothing_that_was_not_given",
            f"{PROTOCOL}::test_malformed_frames_end_their_run_and_nothing_else",
        ),
    ),
    Guarantee(
        id="floods",
        promise="Calls and lines without end are held back at the program, not kept by the host.",
        attacks=(21, 23),
        tests=(
            f"{PROTOCOL}::test_a_gigabyte_in_one_line_reaches_nobody",
            f"{PROTOCOL}::test_a_hundred_thousand_calls_are_held_back",
            f"{PROTOCOL}::test_whoever_stops_reading_or_writing_meets_the_deadline",
        ),
    ),
    Guarantee(
        id="malformed",
        promise="What is no frame ends its run with a name, and nothing else.",
        attacks=(22,),
        tests=(
            f"{PROTOCOL}::test_malformed_frames_end_their_run_and_nothing_else",
            f"{PROTOCOL}::test_odd_values_in_good_frames_are_served",
            f"{PROTOCOL}::test_arguments_beyond_the_limit_are_refused",
        ),
    ),
    Guarantee(
        id="no-code-comes-out",
        promise="The host never builds objects from what a program sends, and what a program does "
        "to its interpreter stays there.",
        attacks=(24, 25),
        tests=(
            f"{PROTOCOL}::test_nothing_from_a_program_is_unpickled",
            f"{PROTOCOL}::test_the_host_could_not_unpickle_if_it_wanted_to",
            f"{PROTOCOL}::test_what_a_program_does_to_its_own_interpreter_stays_there",
        ),
    ),
    Guarantee(
        id="no-namespaces",
        promise="No mount and no namespace can be made or joined, so no layer can be undone.",
        attacks=(26,),
        tests=(f"{SURFACE}::test_no_mount_and_no_namespace_can_be_made",),
    ),
    Guarantee(
        id="own-processes-only",
        promise="A program looks into, writes to and signals its own processes only.",
        attacks=(27, 28, 36),
        tests=(
            f"{SURFACE}::test_no_other_process_can_be_looked_into",
            f"{SURFACE}::test_neither_the_interpreter_nor_the_first_process_can_be_written",
            f"{SURFACE}::test_no_process_of_the_host_can_be_signalled",
        ),
    ),
    Guarantee(
        id="small-kernel",
        promise="The kernel's calls are those on a list, and every other number is refused.",
        attacks=(29, 30),
        tests=(
            f"{SURFACE}::test_no_door_of_the_kernel_is_open",
            f"{SURFACE}::test_no_socket_of_another_kind_can_be_made",
            f"{SURFACE}::test_every_call_off_the_list_is_refused",
            f"{SURFACE}::test_calls_by_another_architectures_numbers_are_deadly_or_unknown",
        ),
    ),
    Guarantee(
        id="no-local-sockets",
        promise="No socket of the host is reached, and no descriptor of it is inherited.",
        attacks=(31, 35),
        tests=(
            f"{SURFACE}::test_no_local_socket_of_the_host_is_reached",
            f"{SURFACE}::test_only_the_channel_is_held_open",
        ),
    ),
    Guarantee(
        id="no-privileges",
        promise="No device, no privilege and no terminal is to be had, and what the kernel offers "
        "of itself is closed.",
        attacks=(32, 33),
        tests=(
            f"{SURFACE}::test_no_device_no_privilege_and_no_terminal",
            f"{SURFACE}::test_what_the_kernel_offers_of_itself_is_closed",
        ),
    ),
    Guarantee(
        id="no-network",
        promise="There is no way to this machine, its neighbours, the internet or a resolver.",
        attacks=(37, 38),
        tests=(
            f"{SURFACE}::test_there_is_no_way_to_any_network",
            f"{SURFACE}::test_nobody_can_be_asked_for_a_name",
        ),
    ),
    Guarantee(
        id="no-partial-network",
        promise="No run has a network that is open for some addresses.",
        attacks=(39,),
        not_applicable="there is no list of allowed addresses that could be got around",
        tests=(f"{ABSENT}::test_no_run_has_a_network_that_could_be_partly_open",),
    ),
    Guarantee(
        id="no-fail-open",
        promise="With any layer or backend broken or missing nothing runs without it unsaid.",
        attacks=(40,),
        tests=(
            f"{BROKEN}::test_a_broken_bubblewrap_runs_nothing",
            f"{BROKEN}::test_the_cheat_is_one",
            f"{BROKEN}::test_without_libseccomp_nothing_runs",
            f"{BROKEN}::test_filters_that_the_kernel_refuses_run_nothing",
            f"{BROKEN}::test_filters_that_let_everything_through_are_noticed",
            f"{BROKEN}::test_without_landlock_namespaces_hold_and_the_tier_runs_nothing",
            f"{BROKEN}::test_the_tier_with_rules_that_allow_everything_is_noticed",
            f"{BROKEN}::test_an_engine_that_answers_nonsense_runs_nothing",
            f"{BROKEN}::test_a_socket_that_nobody_listens_at_runs_nothing",
            f"{BROKEN}::test_an_engine_without_the_image_or_the_runtime_runs_nothing",
            f"{BROKEN}::test_a_machine_without_an_engine_runs_code_in_bubblewrap",
            f"{BROKEN}::test_an_ordinary_user_who_may_not_use_the_engines_gets_bubblewrap",
        ),
    ),
    Guarantee(
        id="no-secrets",
        promise="Nothing of the host's environment, files or names is inside, in errors or in the "
        "next run.",
        attacks=(41,),
        tests=(f"{SURFACE}::test_no_file_name_or_secret_of_the_host_is_inside",),
    ),
    Guarantee(
        id="fresh-randomness",
        promise="No two runs draw the same random numbers.",
        attacks=(42,),
        tests=(f"{SURFACE}::test_two_runs_draw_different_numbers",),
    ),
    Guarantee(
        id="own-kernel",
        promise="A runtime asked for because it brings its own kernel is seen to do so before a "
        "program runs.",
        attacks=(),
        tests=(
            f"{LAYERS}::test_gvisor_under_podman_is_seen_to_be_a_kernel_of_its_own",
            f"{LAYERS}::test_a_runc_that_goes_by_gvisors_name_runs_nothing",
        ),
    ),
    Guarantee(
        id="layers-seen",
        promise="The layers of a result that it does not call unverified were seen from inside.",
        attacks=(),
        tests=(f"{LAYERS}::test_with_our_filter_programs_work_and_every_layer_is_seen",),
    ),
    Guarantee(
        id="weaker-tier",
        promise="Without namespaces a program still opens, changes and reaches nothing of the "
        "host, and each result calls the tier weaker.",
        attacks=(),
        tests=(
            f"{WEAKER}::test_what_any_user_may_do_outside_is_refused_inside",
            f"{WEAKER}::test_each_result_calls_it_weaker",
            f"{WEAKER}::test_a_daemon_ends_with_the_program",
            f"{WEAKER}::test_a_kernel_without_landlock_runs_nothing",
            f"{UNGUARDED}::test_what_landlock_does_not_guard_is_refused_all_the_same",
        ),
    ),
    Guarantee(
        id="enforced-guard",
        promise="Where the static guard is enforced, a program it denies starts nothing.",
        attacks=(),
        tests=(f"{GUARD}::test_enforcing_refuses_before_anything_is_started",),
    ),
    Guarantee(
        id="command-grants",
        promise="A command sees what its profile grants and nothing else, or is never started.",
        attacks=(),
        tests=(
            f"{COMMANDS}::test_a_command_sees_what_its_profile_grants_and_nothing_else",
            f"{COMMANDS}::test_a_command_whose_sandbox_is_seen_to_hold_more_is_never_started",
            f"{COMMANDS}::test_a_profile_that_grants_too_much_is_refused",
            f"{COMMANDS}::test_without_bubblewrap_nothing_runs",
            f"{CONTAINERS}::test_commands_run_in_the_profiles_image",
            f"{EXECUTABLES}::test_what_a_command_could_turn_into_a_link_is_not_granted",
        ),
    ),
    Guarantee(
        id="command-executables",
        promise="Only the executables that a profile names are executed, and no command can "
        "replace them.",
        attacks=(),
        tests=(
            f"{COMMANDS}::test_only_the_executables_named_can_be_executed",
            f"{EXECUTABLES}::test_a_link_that_a_command_could_turn_elsewhere_names_no_executable",
            f"{EXECUTABLES}::test_what_one_profile_may_write_no_other_executes",
        ),
    ),
    Guarantee(
        id="command-sockets",
        promise="A command reaches no socket of the host's, and the internet only if granted.",
        attacks=(),
        tests=(
            f"{COMMANDS}::test_a_network_is_the_internet_s_families_only_and_is_told",
            f"{SOCKETS}::test_no_socket_of_the_host_is_reached_and_no_port_opened",
            f"{CONTAINERS}::test_commands_have_the_sockets_of_their_grant_and_no_way_to_the_hosts",
        ),
    ),
    Guarantee(
        id="command-secrets",
        promise="The secrets a command is given do not come back as they are.",
        attacks=(),
        tests=(f"{COMMANDS}::test_secrets_do_not_show_wherever_a_command_puts_them",),
    ),
    Guarantee(
        id="command-ends",
        promise="A pipeline ends at one deadline, within its limits, and leaves nothing.",
        attacks=(),
        tests=(
            f"{COMMANDS}::test_one_deadline_ends_all_stages_and_leaves_nothing",
            f"{COMMANDS}::test_a_cancelled_command_leaves_nothing",
            f"{COMMANDS}::test_output_without_end_is_bounded_and_counted",
            f"{COMMANDS}::test_a_stage_that_passes_a_limit_fails_by_it",
        ),
    ),
    *BOUNDS_GUARANTEES,
    *KEPT_GUARANTEES,
    *AROUND_GUARANTEES,
    *ASKING_GUARANTEES,
    *QUOTA_GUARANTEES,
    *STARTED_GUARANTEES,
)
