"""Promises about questions: who is asked, what is shown meanwhile, and the tests that hold them."""

from __future__ import annotations

from tests.security.guarantee import Guarantee

APPROVING = "tests/server/test_approving.py"
ASKED = "tests/callers/test_server_questions.py"
LIVE = "tests/cli/test_live_display.py"
OUTPUT = "tests/cli/test_output.py"
PERSON = "tests/cli/test_person.py"
QUESTIONS = "tests/gate/test_server_questions.py"
RUNS = "tests/runs/test_asking.py"
UNIDENTIFIED = "tests/server/test_unidentified.py"

ASKING_GUARANTEES = (
    Guarantee(
        id="terminal-questions",
        promise="At a terminal nothing but the question is written while it stands, it begins with "
        "a mark that no program or server can write, and no line typed earlier answers it.",
        attacks=(),
        tests=(
            f"{LIVE}::test_nothing_is_written_while_a_question_stands",
            f"{LIVE}::test_a_program_that_never_stops_writing_keeps_no_question_away",
            f"{OUTPUT}::test_what_is_logged_while_a_question_stands_comes_after_it",
            f"{PERSON}::test_what_was_typed_before_a_question_stood_there_is_no_answer_to_it",
        ),
    ),
    Guarantee(
        id="terminal-escapes",
        promise="A terminal is given nothing that it obeys of programs, servers or records, in "
        "pieces of any size, whichever command prints it.",
        attacks=(),
        tests=(
            f"{LIVE}::test_a_terminal_is_given_nothing_of_a_programs_that_it_obeys",
            f"{OUTPUT}::test_what_is_printed_to_a_terminal_is_visible_whoever_prints_it",
            f"{OUTPUT}::test_json_has_nothing_raw_that_a_terminal_obeys",
            f"{OUTPUT}::test_no_command_goes_around_what_makes_text_visible",
        ),
    ),
    Guarantee(
        id="servers-questions",
        promise="What a server asks is marked as its own on each line, holds nothing hidden, is "
        "within bounds, allowed by the policy and recorded, or is refused by name.",
        attacks=(),
        tests=(
            f"{QUESTIONS}::test_a_servers_words_stand_on_lines_of_its_own",
            f"{QUESTIONS}::test_a_form_beyond_its_bounds_is_refused",
            f"{QUESTIONS}::test_an_address_is_shown_whole_with_its_host",
            f"{QUESTIONS}::test_a_model_is_told_who_asks_and_nothing_hidden",
            f"{ASKED}::test_what_the_policy_denies_is_not_asked",
            f"{ASKED}::test_a_question_and_its_outcome_are_recorded_without_the_answer",
            f"{ASKED}::test_a_flood_of_questions_reaches_nobody_whole_and_writes_little",
        ),
    ),
    Guarantee(
        id="identified-approvers",
        promise="No answer of a caller who is not identified approves of a call, plan, skill or "
        "server, or of a server's start.",
        attacks=(),
        tests=(
            f"{APPROVING}::test_over_http_without_authentication_no_answer_is_an_approval",
            f"{RUNS}::test_a_client_that_is_not_identified_approves_of_nothing",
            f"{UNIDENTIFIED}::test_without_authentication_no_answer_starts_a_server",
            f"{UNIDENTIFIED}::test_without_authentication_no_answer_approves_a_projects_server",
        ),
    ),
)
