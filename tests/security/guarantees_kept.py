"""Promises about what outlives a run or comes into it from outside, and the tests that hold them.

Files, sessions, packages, directories and skills; the rest stands in `guarantees.py`.
"""

from __future__ import annotations

from tests.security.guarantee import Guarantee

BINDS = "tests/sandbox/test_binds.py"
CHECKPOINTS = "tests/sessions/test_checkpoints.py"
COLLECTING = "tests/guest/supervisor/test_output_files.py"
DEADLINES = "tests/runs/test_program.py"
DIRECTORIES = "tests/settings/test_directories.py"
FILES_OUT = "tests/security/test_files_out.py"
FILES_PUT = "tests/cli/test_run_files.py"
HOSTILE_FILES = "tests/runs/collect/test_hostile_files.py"
KEPT_OVER_MCP = "tests/server/test_kept_resources.py"
LOGINS = "tests/upstream/test_token_store.py"
MARKUP = "tests/runs/collect/test_markup.py"
MOUNTED = "tests/contract/test_packages.py"
PICTURES = "tests/runs/collect/test_picture_formats.py"
PINS = "tests/gate/test_pins.py"
PIECES = "tests/rpc/test_channel_pieces.py"
RESOLVING = "tests/packages/test_resolver.py"
REST = "tests/sessions/test_rest.py"
ROUNDS = "tests/contract/test_files.py"
SAVED = "tests/guest/state/test_checkpoint.py"
SAVED_CHANGED = "tests/guest/state/test_checkpoint_changed.py"
SAVED_FILES = "tests/guest/state/test_checkpoint_files.py"
SHOWN_ARGUMENTS = "tests/gate/test_shown_arguments.py"
SETS = "tests/packages/test_sets.py"
SHARES = "tests/test_fair_shares.py"
SKILLS = "tests/skills/test_skills_in_runs.py"
REVIEWED = "tests/skills/test_skills_reviewed.py"
SKILLS_KEPT = "tests/skills/test_skills_kept.py"
TRACES = "tests/skills/test_traces.py"
INJECTIONS = "tests/runs/test_injections.py"
HEARING = "tests/gate/test_hearing.py"
OWN_CALLS = "tests/gate/test_bridge_calls.py"
SKILL_FILES = "tests/skills/test_files.py"
SKILL_TEXTS = "tests/skills/test_source.py"
STARTS = "tests/servers/test_starts.py"
STORE = "tests/artifacts/test_store.py"
STORE_DAMAGED = "tests/artifacts/test_store_damaged.py"
ROOM = "tests/store/test_retention.py"
WATCHED = "tests/sessions/test_watched.py"
WEB_SHARES = "tests/server/test_shares.py"
WISHES = "tests/packages/test_requirements.py"

NEEDED_AND_NOT_ALLOWED = (
    "test_what_something_allowed_needs_and_may_not_be_used_is_refused_and_not_fetched"
)

NO_KEYRING = "test_without_an_index_uvs_own_configuration_says_where_packages_come_from"

KEPT_GUARANTEES = (
    Guarantee(
        id="files-out",
        promise="Of what a program leaves in `out` only regular files come out, each whole or not "
        "at all, within the run's quota; nothing else is opened by a name that it chose, and "
        "whatever it does costs neither the host nor the result.",
        attacks=(34,),
        tests=(
            f"{FILES_OUT}::test_only_regular_files_come_out_and_no_link_is_followed",
            f"{FILES_OUT}::test_nothing_but_the_directory_itself_is_read",
            f"{FILES_OUT}::test_processes_left_behind_change_nothing_while_it_is_read",
            f"{FILES_OUT}::test_sparse_enormous_and_countless_files_cost_the_host_little",
            f"{FILES_OUT}::test_a_program_cannot_speak_for_the_supervisor",
            f"{FILES_OUT}::test_what_was_written_by_then_comes_out_however_a_program_ends",
            f"{COLLECTING}::test_a_name_that_comes_to_be_a_link_is_not_followed",
            f"{COLLECTING}::test_a_directory_that_is_moved_away_leads_nowhere_else",
            f"{COLLECTING}::test_a_file_that_changes_while_it_is_read_does_not_come_torn",
            f"{COLLECTING}::test_memory_stays_small_whatever_the_size",
            f"{ROUNDS}::test_files_make_the_round_and_nothing_else_does",
        ),
    ),
    Guarantee(
        id="files-believed",
        promise="Nothing that a sandbox says of a file is believed: no name leads out of a "
        "directory, no size or number passes the run's quota, and no file of the user's is "
        "replaced unasked or through a link.",
        attacks=(),
        tests=(
            f"{HOSTILE_FILES}::test_no_name_leads_out_of_a_directory_or_deceives_a_reader",
            f"{HOSTILE_FILES}::test_what_is_kept_is_told_from_the_bytes_that_came",
            f"{HOSTILE_FILES}::test_parts_out_of_order_cost_their_own_file_alone",
            f"{HOSTILE_FILES}::test_quotas_hold_whatever_comes",
            f"{HOSTILE_FILES}::test_files_have_a_time_of_their_own_which_is_bounded",
            f"{HOSTILE_FILES}::test_no_call_is_made_once_files_come",
            f"{FILES_PUT}::test_no_link_in_the_directory_leads_out_of_it",
            f"{FILES_PUT}::test_nothing_that_is_there_is_replaced_unless_the_user_says_so",
        ),
    ),
    Guarantee(
        id="kept-apart",
        promise="What is kept of a caller, files, outputs and sessions, is told and given to that "
        "caller alone, and no link in the place where it lies is followed.",
        attacks=(),
        tests=(
            f"{STORE}::test_nobody_but_its_owner_finds_it_and_nothing_tells_that_it_is_there",
            f"{STORE_DAMAGED}::test_nothing_is_reached_through_a_link",
            f"{STORE_DAMAGED}::test_a_link_in_place_of_a_content_is_not_followed",
            f"{KEPT_OVER_MCP}::test_what_is_another_owners_is_as_unknown_as_what_never_was",
            f"{REST}::test_names_are_each_owners_and_an_id_opens_nothing_for_others",
            f"{REST}::test_where_callers_cannot_be_told_apart_only_the_id_goes_on_with_a_session",
            f"{CHECKPOINTS}::test_nobody_has_anothers",
            f"{CHECKPOINTS}::test_files_are_this_users_alone",
        ),
    ),
    Guarantee(
        id="checkpoints",
        promise="A checkpoint is read inside a sandbox only, where restoring it runs no "
        "constructor and puts no file outside of the workspace; one that was changed is noticed.",
        attacks=(),
        tests=(
            f"{CHECKPOINTS}::test_a_changed_state_is_noticed",
            f"{CHECKPOINTS}::test_nothing_on_the_host_unpickles",
            f"{SAVED_CHANGED}::test_a_cut_checkpoint_is_refused_wherever_it_is_cut",
            f"{SAVED}::test_restoring_runs_no_constructor_decorator_or_default",
            f"{SAVED_FILES}::test_files_come_back_and_nothing_through_links",
            f"{SAVED_FILES}::test_a_changed_checkpoint_writes_nothing_outside_of_the_workspace",
        ),
    ),
    Guarantee(
        id="sessions-watched",
        promise="What an earlier run of a session has read counts for the later ones.",
        attacks=(),
        tests=(f"{WATCHED}::test_a_later_run_may_not_send_what_an_earlier_one_has_read",),
    ),
    Guarantee(
        id="packages",
        promise="A program has only packages that the settings allow, of wheels with the digest "
        "that was recorded and read-only, no code of which runs on the host or before the program.",
        attacks=(),
        tests=(
            f"{MOUNTED}::test_packages_and_directories_are_there_and_nothing_else_is",
            f"{WISHES}::test_nothing_is_taken_from_an_address_that_the_program_names",
            f"{RESOLVING}::{NEEDED_AND_NOT_ALLOWED}",
            f"{RESOLVING}::test_what_would_have_to_be_built_is_refused_by_name",
            f"{RESOLVING}::test_nothing_is_looked_for_that_was_not_allowed",
            f"{RESOLVING}::test_what_was_allowed_when_it_was_found_is_judged_again",
            f"{RESOLVING}::test_a_wheel_that_is_not_what_it_was_is_refused",
            f"{RESOLVING}::test_a_wheel_of_another_name_does_not_come_under_an_allowed_one",
            f"{RESOLVING}::test_what_is_wanted_from_an_address_is_neither_built_nor_used",
            f"{RESOLVING}::{NO_KEYRING}",
            f"{RESOLVING}::test_a_hostile_wheel_leaves_nothing",
            f"{RESOLVING}::test_nothing_that_an_interpreter_would_run_by_itself_is_installed",
            f"{RESOLVING}::test_packages_beyond_the_bound_are_refused_before_they_are_kept",
            f"{RESOLVING}::test_a_bomb_is_stopped_by_what_comes_out_of_it",
            f"{SETS}::test_what_is_neither_file_nor_directory_is_refused",
            f"{SETS}::test_packages_beyond_the_bounds_are_refused",
        ),
    ),
    Guarantee(
        id="directories",
        promise="Of the host's directories a program has those that the settings name, never one "
        "that holds what the bridge or an engine keeps, and read-only unless they say otherwise, "
        "which is seen from inside and told as weaker where it can write.",
        attacks=(),
        tests=(
            f"{MOUNTED}::test_packages_and_directories_are_there_and_nothing_else_is",
            f"{DIRECTORIES}::test_what_cannot_be_is_refused_where_it_stands",
            f"{DIRECTORIES}::test_links_are_followed_when_the_settings_are_read",
            f"{DIRECTORIES}::test_what_no_program_may_have_is_refused",
            f"{DIRECTORIES}::test_the_file_that_says_so_is_not_among_what_is_given",
            f"{BINDS}::test_what_can_be_written_to_is_told_as_weaker",
            f"{BINDS}::test_what_is_seen_to_be_writable_ends_the_sandbox",
        ),
    ),
    Guarantee(
        id="out-of-time",
        promise="Once a run's time is over none of its calls goes out, whatever its program does "
        "with the moment that it has for coming to its end; and what was saved of its session "
        "outlasts that.",
        attacks=(),
        tests=(
            f"{DEADLINES}::test_no_call_of_a_program_goes_out_once_its_time_is_over",
            f"{REST}::test_what_was_saved_outlasts_a_run_that_ends_while_it_is_restored",
        ),
    ),
    Guarantee(
        id="event-loop",
        promise="What a program shows, leaves and holds costs the host time in proportion to its "
        "size, with a bound, and none of it keeps the bridge from other runs meanwhile.",
        attacks=(),
        tests=(
            f"{MARKUP}::test_a_name_that_does_not_end_takes_no_longer_than_a_text",
            f"{PICTURES}::test_one_of_more_parts_than_any_has_is_no_picture",
            f"{PIECES}::test_the_line_is_the_same_as_of_the_whole_and_no_piece_is_large",
            f"{SKILL_FILES}::test_of_removed_skills_the_versions_of_the_last_stay",
        ),
    ),
    Guarantee(
        id="skills",
        promise="A skill is used, but by the bridge whose program saved it, only as the text that "
        "a person approved, all of it, and a program of nobody known has none unless the policy "
        "says so.",
        attacks=(),
        tests=(
            f"{REVIEWED}::test_a_person_reviews_a_skill_before_another_bridge_uses_it",
            f"{REVIEWED}::test_the_policy_and_an_unknown_caller_decide_who_has_skills",
            f"{SKILLS}::test_parameters_of_a_hostile_guest_are_answered_as_mistakes",
            f"{SKILL_TEXTS}::test_anything_else_is_refused_with_what_to_change",
            f"{SKILL_TEXTS}::test_nothing_that_is_executed_is_left_out_of_what_a_person_approves",
            f"{SKILL_TEXTS}::test_a_file_that_somebody_edited_or_wrote_is_another_version",
            f"{SKILLS_KEPT}::test_a_skill_replaced_under_an_approved_name_is_used_by_nobody_unreviewed",
            f"{SKILLS_KEPT}::test_an_approval_is_of_the_whole_text",
            f"{SKILLS_KEPT}::test_what_nobody_approved_is_not_used_however_it_got_there",
        ),
    ),
    Guarantee(
        id="kept-through-the-gate",
        promise="What outlives a run is written through the gate: no program replaces or removes a "
        "skill that a person wrote or approved unless somebody known says so, a copy of it stays, "
        "and what is changed is recorded first.",
        attacks=(),
        tests=(
            f"{SKILLS_KEPT}::test_a_program_replaces_or_removes_what_a_person_wrote_only_if_they_say_so",
            f"{SKILLS_KEPT}::test_an_answer_about_skills_holds_for_what_it_said",
            f"{SKILLS_KEPT}::test_nobody_known_replaces_or_removes_anything",
            f"{SKILLS_KEPT}::test_rules_decide_on_what_is_kept_and_the_log_has_it",
            f"{TRACES}::test_a_skill_written_by_hand_is_copied_before_it_is_replaced_or_removed",
            f"{TRACES}::test_a_memory_that_is_replaced_or_deleted_stays_for_a_while",
            f"{TRACES}::test_nothing_is_replaced_or_removed_but_what_was_decided_on",
            f"{OWN_CALLS}::test_what_changes_something_is_counted_and_nothing_is_changed_unrecorded",
            f"{OWN_CALLS}::test_no_server_can_be_called_as_the_bridge_itself",
        ),
    ),
    Guarantee(
        id="kept-names",
        promise="What a run had read counts as read by whoever learns of what it left, its names, "
        "times, sizes and whether it is there included; and a server's errors count like its "
        "results.",
        attacks=(),
        tests=(
            f"{INJECTIONS}::test_nothing_gets_out_in_two_runs_by_what_there_is",
            f"{INJECTIONS}::test_what_a_server_says_when_it_does_not_start_does_not_get_out",
            f"{HEARING}::test_an_error_counts_as_read_before_the_program_has_it",
            f"{TRACES}::test_what_was_read_by_who_changes_memories_outlasts_them",
        ),
    ),
    Guarantee(
        id="shown-as-sent",
        promise="A question, a plan and the audit log show every character of a call's arguments "
        "but known secrets, or say with length and digest what they leave out; and no two calls "
        "are shown alike.",
        attacks=(),
        tests=(
            f"{SHOWN_ARGUMENTS}::test_no_mask_hides_what_a_reader_has_to_see",
            f"{SHOWN_ARGUMENTS}::test_what_stands_behind_much_else_is_shown",
            f"{SHOWN_ARGUMENTS}::test_secrets_are_not_shown_all_the_same",
            f"{SHOWN_ARGUMENTS}::test_names_that_only_look_like_a_tools_are_visible_as_such",
            f"{SHOWN_ARGUMENTS}::test_what_is_cut_or_masked_alike_is_told_apart_by_a_digest",
            f"{SHOWN_ARGUMENTS}::test_every_character_is_shown_or_below_a_mask_that_says_so",
            f"{SHOWN_ARGUMENTS}::test_two_calls_are_never_shown_alike",
            f"{SHOWN_ARGUMENTS}::test_question_plan_and_log_show_the_same",
            f"{SHOWN_ARGUMENTS}::test_the_digest_is_of_canonical_json",
            f"{SHOWN_ARGUMENTS}::test_the_log_on_the_disk_has_the_digest",
        ),
    ),
    Guarantee(
        id="starts",
        promise="A server is started, or connected to, only after that was decided on and is in "
        "the audit log, and what was said of a name holds for no other definition under it.",
        attacks=(),
        tests=(
            f"{STARTS}::test_a_start_is_on_record_before_there_is_a_process",
            f"{STARTS}::test_a_start_that_cannot_be_recorded_does_not_happen",
            f"{STARTS}::test_what_the_policy_denies_is_started_by_nothing",
            f"{STARTS}::test_refusals_of_one_start_are_recorded_once",
            f"{STARTS}::test_a_restart_is_decided_on_and_recorded_too",
            f"{STARTS}::test_a_run_that_names_a_server_asks_and_nothing_else_does",
            f"{STARTS}::test_another_definition_under_a_name_needs_a_persons_word",
            f"{STARTS}::test_a_session_grant_is_not_for_another_definition_of_the_name",
            f"{STARTS}::test_a_plan_is_not_applied_to_another_definition_of_the_name",
            f"{STARTS}::test_a_retry_takes_no_answers_of_another_definition_and_repeats_nothing_there",
            f"{STARTS}::test_what_was_learnt_of_one_definition_is_not_said_of_another",
            f"{STARTS}::test_nothing_starts_while_the_policy_does_not_parse",
            f"{PINS}::test_a_tool_belongs_to_its_servers_definition_and_not_to_its_name",
            f"{PINS}::test_two_bridges_that_start_two_definitions_at_once_do_not_both_pin",
        ),
    ),
    Guarantee(
        id="shares",
        promise="Where places for sessions, or what is kept, is used up, nothing is taken of a "
        "caller who has less than an equal share while another has more, and callers over HTTP "
        "together take no more than half of what is kept.",
        attacks=(),
        tests=(
            f"{SHARES}::test_nothing_of_one_with_less_than_a_share_goes_while_another_has_more",
            f"{SHARES}::test_a_place_is_given_up_by_an_idle_one_of_a_fair_choice",
            f"{ROOM}::test_however_many_come_over_http_the_person_has_half",
            f"{CHECKPOINTS}::test_of_too_much_what_goes_is_of_the_owner_who_has_most",
            f"{WEB_SHARES}::test_one_caller_takes_nothing_of_anothers_share",
        ),
    ),
)
