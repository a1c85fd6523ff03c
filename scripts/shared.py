"""What sandboxes, callers and servers share, and the channels out of a run: two tables.

`make reference` writes both into SECURITY.md. Each row names a test; a share that is missing has a
reason.
"""

from __future__ import annotations

from typing import NamedTuple


class Resource(NamedTuple):
    """Something that several share.

    Attributes:
        owner: Whose it is, so that its use by one of them would be felt by others.
        share: What one of them has at most; empty if `bound` gives the reason why there is none.
        bound: What happens there.
        test: A file and the name of a test in it.
    """

    name: str
    owner: str
    share: str
    bound: str
    test: str


class Channel(NamedTuple):
    """A way by which something of a run gets out of it.

    Attributes:
        judge: What decides whether it may.
    """

    name: str
    judge: str
    test: str


_COUNTERS = "tests/security/test_counters.py::"
_STILL = _COUNTERS + "test_an_ordinary_user_still_can"
_ALL = _COUNTERS + "test_the_hosts_user_still_can_while_every_counter_is_attacked"
_RESOURCES = "tests/security/test_resources.py::"
_ADMISSION = "tests/server/test_admission.py::"
_STORE = "tests/store/test_retention.py::test_however_many_come_over_http_the_person_has_half"

RESOURCES = (
    Resource(
        "epoll watches; memory of pipes",
        "the user id outside",
        "with bubblewrap a subordinate id for each program; with engines ids that are not yours",
        "`ENOSPC` inside, small pipes. Without subordinate ids, and for what is granted a "
        "directory, the counter is your user's: the result says so under `weaker`, and an error "
        "names the limit",
        _STILL,
    ),
    Resource("pending signals and timers", "the user id outside", "1,024", "`EAGAIN` inside", _ALL),
    Resource(
        "descriptors in flight",
        "the user id outside",
        "as many as one process may open: 512",
        "`ETOOMANYREFS` inside",
        _ALL,
    ),
    Resource(
        "inotify, keys, message queues, locked memory, user namespaces",
        "the user id outside",
        "none at all",
        "refused inside",
        _ALL,
    ),
    Resource(
        "mounts",
        "the kernel",
        "those of the sandbox",
        "refused inside",
        "tests/security/test_surface.py::test_no_mount_and_no_namespace_can_be_made",
    ),
    Resource(
        "processes and threads",
        "the machine",
        "`pids` of each sandbox",
        "`EAGAIN` inside",
        _RESOURCES + "test_processes_and_threads_are_bounded",
    ),
    Resource(
        "memory",
        "the machine",
        "`memory` of each sandbox, files in memory included",
        "the run ends as `oom`",
        _RESOURCES + "test_memory_cannot_be_multiplied_by_children",
    ),
    Resource(
        "processors",
        "the machine",
        "`cpus` of each sandbox, its time limit in any case",
        "it waits",
        _RESOURCES + "test_a_program_on_every_processor_leaves_time_for_others",
    ),
    Resource(
        "open files",
        "the process",
        "512 in each process of a sandbox",
        "`EMFILE` inside",
        _RESOURCES + "test_descriptors_run_out_inside_only",
    ),
    Resource(
        "the bridge's memory for output",
        "the bridge",
        "`output` of each run",
        "the rest is cut",
        _RESOURCES + "test_output_of_any_length_is_bounded_on_the_host",
    ),
    Resource(
        "the bridge's event loop",
        "the bridge",
        "250 ms for one input",
        "an error that says so",
        "tests/hostile/test_programs.py::test_no_frame_keeps_the_loop",
    ),
    Resource(
        "places for runs",
        "the bridge",
        "callers take turns, 100 waiting runs of each",
        "`overloaded`",
        "tests/sandbox/test_run_queue.py::"
        "test_callers_have_turns_and_each_callers_runs_their_order",
    ),
    Resource(
        "places for sessions",
        "the bridge",
        "an equal part for each caller",
        "an idle session of who has most is put away",
        "tests/server/test_shares.py::test_one_caller_takes_nothing_of_anothers_share",
    ),
    Resource(
        "artifacts, sessions and skills on disk",
        "the store",
        "half for you, an equal part of the rest for each caller over HTTP",
        "the oldest of who has most goes",
        _STORE,
    ),
    Resource(
        "bytes of the audit log",
        "the log",
        "an equal part of half for each caller over HTTP; a quarter is for stdio and the terminal",
        "that caller is refused (`audit_unavailable`)",
        "tests/gate/audit/test_files.py::test_a_caller_that_has_used_up_its_share_is_refused_alone",
    ),
    Resource(
        "HTTP connections without a token",
        "the bridge",
        "64 in all",
        "the oldest ends, so that the next is heard",
        _ADMISSION + "test_a_thousand_silent_connections_leave_the_host_s_user_room",
    ),
    Resource(
        "HTTP connections, and so requests at once",
        "the bridge",
        "half of 512 for each caller",
        "503",
        _ADMISSION + "test_who_has_taken_a_share_of_connections_is_refused_alone",
    ),
    Resource(
        "time for the head of a request",
        "the connection",
        "10 s",
        "the connection ends",
        _ADMISSION + "test_a_head_that_does_not_come_ends_its_connection",
    ),
    Resource(
        "bytes of requests",
        "the bridge",
        "half of 192 MiB for each caller, 60 s for a body",
        "503, 408",
        "tests/server/test_bodies.py::"
        "test_a_body_beyond_the_limit_is_refused_with_it_and_bytes_in_flight_are_counted",
    ),
    Resource(
        "sessions of the protocol",
        "the bridge",
        "half of 512 for each caller",
        "503",
        _ADMISSION + "test_who_has_taken_a_share_of_sessions_is_refused_alone",
    ),
    Resource(
        "servers' questions",
        "the user",
        "a number for each run",
        "refused with a named error",
        "tests/callers/test_server_questions.py::test_a_flood_of_questions_is_cut",
    ),
    Resource(
        "calls to a server",
        "the server",
        "",
        "no share: only its server knows what it can take. A run has a number of calls, and "
        "the policy's rates bound a caller's",
        "tests/security/test_protocol.py::test_a_hundred_thousand_calls_are_held_back",
    ),
)

CHANNELS = (
    Channel(
        "a call, its name and arguments",
        "the gate: rules, flow rules, budgets, approval",
        "tests/runs/test_injections.py::test_no_program_that_data_steers_gets_anything_out",
    ),
    Channel(
        "asking a server for its tools, resources or prompts",
        "flow rules: while one denies such a call, the server is asked for nothing that is known; "
        "the first list of a server that has none yet is asked for",
        "tests/runs/test_injections.py::"
        "test_asking_what_a_server_offers_carries_nothing_past_a_flow_rule",
    ),
    Channel(
        "cancelling a call",
        "flow rules: while one would stop the call, nothing is sent",
        "tests/runs/test_injections.py::"
        "test_calls_that_are_called_off_carry_nothing_past_a_flow_rule",
    ),
    Channel(
        "the time at which a run ends",
        "the same rule: its calls to such a server run on",
        "tests/runs/test_injections.py::"
        "test_calls_that_are_called_off_carry_nothing_past_a_flow_rule",
    ),
    Channel(
        "learned shapes of results",
        "none are learned once a flow rule counts what was read",
        "tests/runs/test_injections.py::"
        "test_no_names_of_fields_are_learnt_after_what_a_flow_rule_counts_was_read",
    ),
    Channel(
        "equality of privacy tokens",
        "a value that the program wrote comes back unchanged",
        "tests/gate/test_privacy.py::test_no_guess_is_confirmed_by_its_token",
    ),
    Channel(
        "memories, skills and plans",
        "the gate; a later reader counts as having read the same",
        "tests/runs/test_injections.py::test_nothing_gets_out_in_two_runs_by_what_there_is",
    ),
    Channel(
        "sessions",
        "what an earlier run of it has read counts for the later ones",
        "tests/sessions/test_watched.py::test_a_later_run_may_not_send_what_an_earlier_one_has_read",
    ),
    Channel(
        "result, output and files",
        "the caller's: limits, redaction, and no file unasked",
        "tests/security/test_files_out.py::test_only_regular_files_come_out_and_no_link_is_followed",
    ),
    Channel(
        "the audit log",
        "you alone read it; secrets are masked, floods are counted",
        "tests/gate/audit/test_run.py::test_refusals_of_other_kinds_do_not_hide_among_a_flood",
    ),
    Channel(
        "a writable directory",
        "the label of its table; without one nothing",
        "tests/runs/test_injections.py::test_what_the_rules_do_not_know_of_is_not_stopped",
    ),
    Channel(
        "load of the machine, and time of its calls",
        "nothing: see what is not protected",
        "tests/runs/test_injections.py::test_what_the_rules_do_not_know_of_is_not_stopped",
    ),
)
