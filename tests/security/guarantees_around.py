"""Promises about what stands around the sandbox, and the tests that hold them.

Repositories, servers, terminals, approvers and other users of the machine; the sandbox's own
promises stand in `guarantees.py`.
"""

from __future__ import annotations

from tests.security.guarantee import Guarantee

COMMANDS_GUARDED = "tests/commands/test_command_guarded.py"
CONSENTS = "tests/discovery/test_consents.py"
EXPOSED = "tests/discovery/test_writable_paths.py"
FIND = "tests/discovery/test_finder.py"
INJECTIONS = "tests/runs/test_injections.py"
PRIVATE = "tests/test_private_files.py"
RUN_FILES = "tests/cli/test_run_files.py"
START_DIRECTORY = "tests/upstream/test_start_directory.py"
STATE = "tests/settings/test_state.py"

AROUND_GUARANTEES = (
    Guarantee(
        id="written-configuration",
        promise="What programs and commands may write to defines no server, is read for none, and "
        "holds no code that a server is started from.",
        attacks=(),
        tests=(
            f"{FIND}::test_no_file_that_programs_may_write_to_defines_a_server",
            f"{EXPOSED}::test_a_server_whose_code_programs_may_change_is_not_used",
            f"{EXPOSED}::test_variables_are_not_read_from_a_file_that_programs_may_write_to",
            f"{EXPOSED}::test_no_server_takes_its_code_from_the_current_directory_where_programs_may_write",
            f"{EXPOSED}::test_an_inherited_variable_counts_for_the_programs_that_read_it",
            f"{COMMANDS_GUARDED}::test_neither_settings_nor_state_nor_skills_are_granted",
            f"{COMMANDS_GUARDED}::test_what_the_bridge_relies_on_is_granted_to_read_only",
            f"{COMMANDS_GUARDED}::test_other_places_are_granted_and_known_as_written_by_commands",
        ),
    ),
    Guarantee(
        id="working-directory",
        promise="What a program writes into the working directory, and what a repository has "
        "there, never counts as the user's own settings, approvals or servers.",
        attacks=(),
        tests=(
            f"{STATE}::test_no_path_that_is_believed_depends_on_the_working_directory",
            f"{CONSENTS}::test_what_was_written_as_the_last_bridge_ended_is_proposed",
            f"{CONSENTS}::test_a_program_cannot_approve_by_a_clients_file_of_the_project",
            f"{RUN_FILES}::test_no_file_is_put_where_other_programs_would_obey_it",
        ),
    ),
    Guarantee(
        id="learnt-names",
        promise="Names of fields that a run saw after it had read labelled data are not learnt.",
        attacks=(),
        tests=(f"{INJECTIONS}::test_no_names_of_fields_are_learnt_after_labelled_data_was_read",),
    ),
    Guarantee(
        id="start-directory",
        promise="A server of the user's own that is an npm or Python package runs no code of the "
        "directory that it is started in.",
        attacks=(),
        tests=(
            f"{START_DIRECTORY}::test_a_python_module_imports_nothing_from_the_current_directory",
            f"{START_DIRECTORY}::test_npm_takes_nothing_of_a_hostile_project",
        ),
    ),
    Guarantee(
        id="other-users",
        promise="Other users of the machine can neither read the bridge's state nor change its "
        "settings, its state or the user's configurations without the bridge refusing them.",
        attacks=(),
        tests=(
            f"{PRIVATE}::test_a_directory_and_its_missing_parents_are_private_whatever_the_umask",
            f"{PRIVATE}::test_links_are_followed_step_by_step",
            f"{STATE}::test_the_state_directory_and_its_parents_are_made_private",
            f"{STATE}::test_a_state_directory_that_others_could_change_is_refused",
            f"{STATE}::test_settings_that_others_could_write_are_refused",
            f"{EXPOSED}::test_a_configuration_that_other_users_may_change_is_not_used",
        ),
    ),
    Guarantee(
        id="policy-lost",
        promise="A policy that was in force and is lost stops every bridge, the next one included.",
        attacks=(),
        tests=(
            f"{STATE}::test_a_policy_that_was_in_force_and_is_lost_stops_the_next_bridge",
            f"{STATE}::test_a_settings_file_behind_a_link_to_nowhere_is_an_error",
        ),
    ),
)
