"""Promises about what is started on the host, and the tests that hold them."""

from __future__ import annotations

from tests.security.guarantee import Guarantee

APPROVING = "tests/cli/test_servers_approve.py"
CONSENTS = "tests/discovery/test_consents.py"
FORBIDDEN = "tests/discovery/test_forbidden.py"
PROJECT = "tests/servers/test_project_servers.py"

STARTED_GUARANTEES = (
    Guarantee(
        id="project-servers",
        promise="Nothing that a repository's files define is started, connected to or has files "
        "opened that it names before a person approved exactly it, whether it was there before "
        "or a program wrote it; a changed definition is another.",
        attacks=(),
        tests=(
            f"{PROJECT}::test_no_file_that_a_program_writes_into_the_project_starts_anything",
            f"{PROJECT}::test_a_person_is_shown_the_definition_and_answers_for_now_or_for_good",
            f"{PROJECT}::test_nobody_is_asked_on_behalf_of_whoever_it_may_be",
            f"{PROJECT}::test_a_definition_too_long_to_be_shown_is_not_asked_about",
            f"{PROJECT}::test_a_damaged_file_of_approvals_approves_nothing_and_says_so",
            f"{CONSENTS}::test_no_layout_of_a_project_is_used_before_it_is_approved",
            f"{CONSENTS}::test_a_changed_definition_is_asked_about_again",
            f"{CONSENTS}::test_an_approval_holds_for_one_checkout_and_one_file",
            f"{CONSENTS}::test_what_an_unapproved_definition_names_is_not_opened",
            f"{CONSENTS}::test_no_text_of_another_file_becomes_a_project_s_command",
            f"{CONSENTS}::test_what_appears_while_a_bridge_runs_is_proposed_also_to_the_next",
            f"{CONSENTS}::test_a_client_s_approval_counts_for_what_it_was_first_seen_with",
            f"{CONSENTS}::test_a_relative_variable_makes_no_file_of_a_project_the_user_s",
            f"{APPROVING}::test_a_definition_is_approved_by_its_digest_where_nobody_can_be_asked",
        ),
    ),
    Guarantee(
        id="names-of-the-user",
        promise="No repository takes the name of a server of the user's, or one that programs "
        "spell like it, and none turns such a server off.",
        attacks=(),
        tests=(
            f"{CONSENTS}::test_a_project_takes_no_name_of_the_user_s",
            f"{CONSENTS}::test_a_project_cannot_turn_a_server_of_the_user_s_off",
            f"{FORBIDDEN}::test_a_repository_denies_the_user_nothing",
            f"{FORBIDDEN}::test_no_project_gets_the_name_of_a_server_that_is_forbidden",
        ),
    ),
    Guarantee(
        id="forbidden-servers",
        promise="A server that the user or their company forbade in Claude Code, or that a client "
        "has switched off, is not started by the bridge either.",
        attacks=(),
        tests=(
            f"{FORBIDDEN}::test_what_the_company_denies_is_denied_in_every_client_s_files",
            f"{FORBIDDEN}::test_another_spelling_of_a_denied_address_is_denied",
            f"{FORBIDDEN}::test_only_what_is_allowed_of_claude_code_s_servers_is_used",
            f"{FORBIDDEN}::test_beside_the_company_s_file_claude_code_has_no_other_servers",
            f"{FORBIDDEN}::test_settings_of_the_company_that_cannot_be_read_forbid",
            f"{FORBIDDEN}::test_what_is_switched_off_for_the_project_in_claude_code_is_off",
            f"{FORBIDDEN}::test_what_gemini_has_switched_off_is_off_in_all_its_files",
        ),
    ),
)
