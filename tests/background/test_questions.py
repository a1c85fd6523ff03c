"""What a server asks goes to the client whose call it serves, although clients share servers."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.background.rig import RECORDER, Client, Person, text_of, wait_for

INQUIRER = RECORDER.with_name("inquirer.py")

_FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}

QUESTION = {"message": "Which colour?", "requestedSchema": _FORM}

ASK = f"print(await mcp_inquirer.ask(method='elicitation/create', params={QUESTION}))"

ASK_NOTHING = "print(await mcp_inquirer.ask(method='elicitation/create', params={}, count=0))"

ASK_ROOTS = "print(await mcp_inquirer.ask(method='roots/list', params={}))"


def receive_question(client: Client, method: str = "elicitation/create") -> dict[str, Any]:
    while (message := client.receive()).get("method") != method:
        assert "method" in message, message
    return message


def paint(client: Client, question: Mapping[str, Any], colour: str) -> None:
    answer = {"action": "accept", "content": {"colour": colour}}
    client.send(id=question["id"], result=answer)


@pytest.fixture
def asked(user: Person) -> Person:
    user.add_servers("inquirer", args=[str(INQUIRER)])
    return user


def run_with_roots(client: Client, *paths: Path) -> str:
    """Run a program whose server asks for roots, and answer with these."""
    run = client.begin_run(ASK_ROOTS)
    roots = [{"uri": path.as_uri()} for path in paths]
    while (message := client.receive()).get("id") != run or "method" in message:
        if message.get("method") == "roots/list":
            client.send(id=message["id"], result={"roots": roots})
    return text_of(message)


def test_calls_at_one_moment_get_the_roots_that_their_clients_have_in_common(asked: Person) -> None:
    with asked.client() as one, asked.client() as two, ThreadPoolExecutor() as pool:
        for client in (one, two):
            assert asked.project.name in run_with_roots(client.initialize(roots={}), asked.project)
        for _ in range(3):
            for told in pool.map(run_with_roots, (one, two), [asked.project] * 2):
                assert asked.project.name in told
        assert len(asked.processes(str(INQUIRER))) == 1


def test_clients_that_wait_for_their_users_leave_places_for_others(asked: Person) -> None:
    asked.variables["MCP_BRIDGE_RUNS"] = "2"
    with asked.client() as one, asked.client() as two:
        one.initialize(elicitation={}).begin_run(ASK)
        receive_question(one)
        assert "1 runs wait for answers" in two.initialize(elicitation={}).run(ASK)
        assert "5" in two.run("print(2 + 3)")


ABOUT = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


def test_a_user_may_answer_while_the_bridge_ends(asked: Person) -> None:
    call: dict[str, Any] = {"name": "run_python", "arguments": {"code": ASK}, "_meta": ABOUT}
    with asked.client() as client, ThreadPoolExecutor() as pool:
        question = client.ask("tools/call", **call)["result"]
        [number] = asked.bridges()
        stopped = pool.submit(asked.command, "background", "stop")
        wait_for(lambda: number not in asked.bridges())
        answer = {"action": "accept", "content": {"colour": "red"}}
        call["inputResponses"] = dict.fromkeys(question["inputRequests"], answer)
        call["requestState"] = question["requestState"]
        assert "red" in text_of(client.ask("tools/call", **call))
        assert "1 background bridge stopped" in stopped.result().stderr


def test_open_questions_reach_their_own_clients_and_so_do_the_answers(asked: Person) -> None:
    with ExitStack() as stack:
        colours = ("red", "green", "blue")
        clients = [stack.enter_context(asked.client()) for _ in colours]
        for client in clients:
            assert "replies" in client.initialize(elicitation={}).run(ASK_NOTHING)
        assert len(asked.processes(str(INQUIRER))) == 1
        runs = []
        for client in clients:
            # The server waits for an answer before it reads the next call.
            runs.append((client, client.begin_run(ASK), receive_question(client)))
        for (client, _, question), colour in zip(runs, colours, strict=True):
            paint(client, question, colour)
        for (client, run, _), colour in zip(runs, colours, strict=True):
            assert colour in text_of(client.answer(run))
        assert len(asked.processes(str(INQUIRER))) == 3


def test_a_cancelled_run_or_lost_client_withdraws_its_own_question_alone(asked: Person) -> None:
    with asked.client() as one, asked.client() as two, asked.client() as three:
        clients = (one, two, three)
        runs, questions = [], []
        for client in clients:
            # A server with calls of several clients would not say to which its question belongs.
            runs.append(client.initialize(elicitation={}).begin_run(ASK))
            questions.append(receive_question(client))
        one.send(method="notifications/cancelled", params={"requestId": runs[0]})
        withdrawn = receive_question(one, "notifications/cancelled")
        assert withdrawn["params"]["requestId"] == questions[0]["id"]
        three.process.kill()
        wait_for(lambda: len(asked.status()["clients"]) == 2)
        paint(two, questions[1], "blue")
        assert "blue" in text_of(two.answer(runs[1]))
        assert not any(note["method"] == "notifications/cancelled" for note in two.notes)


def test_clients_share_a_server_that_asks_for_roots_if_theirs_are_equal(asked: Person) -> None:
    here, there = asked.home / "project", asked.home / "elsewhere"
    with asked.client() as one, asked.client() as same, asked.client() as other:
        for client in (one, same, other):
            client.initialize(roots={"listChanged": True})
        for client in (one, same, one):
            assert here.as_uri() in run_with_roots(client, here)
        assert len(asked.processes(str(INQUIRER))) == 1
        text = run_with_roots(other, there)
        assert there.as_uri() in text
        assert here.as_uri() not in text
        assert len(asked.processes(str(INQUIRER))) == 2
        # A client that moves leaves the shared process.
        same.send(method="notifications/roots/list_changed")
        assert there.as_uri() in run_with_roots(same, there)
        assert here.as_uri() in run_with_roots(one, here)


@pytest.mark.parametrize(
    ("package", "processes"),
    [
        ("@modelcontextprotocol/server-memory", 1),
        ("@modelcontextprotocol/server-sequential-thinking", 2),
        ("@playwright/mcp@latest", 2),
        ("chrome-devtools-mcp", 2),
    ],
)
def test_servers_that_keep_a_state_for_their_client_have_a_process_for_each(
    user: Person, package: str, processes: int
) -> None:
    user.add_servers("keeper", args=[str(RECORDER), str(user.project / "calls"), package])
    with user.client() as one, user.client() as two:
        for client in (one, two):
            assert "topics" in client.initialize().run("print(await mcp_keeper.list_notes())")
        assert len(user.processes()) == processes


def test_what_clients_add_to_their_environment_does_not_separate_them(user: Person) -> None:
    user.add_servers("keeper")
    programs = "/h/.codex/tmp/arg0-linux/codex-arg0Lb:/n/@openai/codex-linux-x64/vendor/path"
    claude_code = {
        "CLAUDECODE": "1",
        "CLAUDE_CODE_SESSION_ID": "aa7f76f6",
        "CLAUDE_PROJECT_DIR": str(user.home / "project"),
        "AI_AGENT": "claude-code",
        "NoDefaultCurrentDirectoryInExePath": "1",
        "TERM_SESSION_ID": "w1",
    }
    gemini = {
        "GEMINI_CLI": "1",
        "XDG_SESSION_ID": "4",
        "SSH_TTY": "/dev/pts/4",
        "TERM_SESSION_ID": "w2",
    }
    names = ("CLAUDE_PROJECT_DIR", "CODEX_HOME", "npm_config_registry", "TERM_SESSION_ID")
    code = f"print(*[repr(await mcp_keeper.show_environment(name=name)) for name in {names}])"
    kept = {"CODEX_HOME": "/h/codex", "npm_config_registry": "http://127.0.0.1:1"}
    with ExitStack() as stack:
        for environ in ({"PATH": f"{programs}:{user.environ['PATH']}"}, claude_code, gemini):
            client = stack.enter_context(user.client(None, **environ, **kept)).initialize()
            values = [str(user.home / "project"), *kept.values(), ""]
            assert " ".join(map(repr, values)) in client.run(code)
        assert len(user.bridges()) == 1
        assert len(user.processes()) == 1
