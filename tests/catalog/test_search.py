from __future__ import annotations

import json
import sys
import threading
import tomllib
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.search import GOOD_FIT, MAX_LIMIT, Match, ToolIndex, correct_word, words
from bridge.errors import InvalidRequestError
from bridge.model import Json, Tool
from tests.raised import raises_code

QUERIES = tomllib.loads(Path(__file__).with_name("queries.toml").read_text())
RECORDED = Path(__file__).parents[1] / "testdata"


def real_tools() -> dict[str, tuple[Tool, ...]]:
    servers = json.loads((RECORDED / "tools.json").read_text(encoding="utf-8"))
    return {
        server: tuple(
            Tool(
                server=server,
                name=tool["name"],
                title=tool.get("title", ""),
                description=tool.get("description", ""),
                input_schema=tool["inputSchema"],
                output_schema=tool.get("outputSchema"),
            )
            for tool in tools
        )
        for server, tools in servers.items()
    }


def listed_tools() -> dict[str, tuple[Tool, ...]]:
    servers = json.loads((RECORDED / "listed_tools.json").read_text(encoding="utf-8"))
    return {
        server: tuple(
            tool(server, name, text, *parameters.split()) for name, text, parameters in tools
        )
        for server, tools in servers.items()
    }


def tool(server: str, name: str, description: str = "", *parameters: str) -> Tool:
    return Tool(
        server=server,
        name=name,
        description=description,
        input_schema={"properties": {parameter: {} for parameter in parameters}},
    )


def by_server(tools: Iterable[Tool]) -> dict[str, tuple[Tool, ...]]:
    servers: dict[str, tuple[Tool, ...]] = {}
    for one in tools:
        servers[one.server] = (*servers.get(one.server, ()), one)
    return servers


def index_of(tools: Iterable[Tool]) -> ToolIndex:
    index = ToolIndex()
    index.update(by_server(tools))
    return index


def search(tools: Iterable[Tool], query: str, *, limit: int = 5) -> list[Tool]:
    return [match.tool for match in index_of(tools).search(query, limit=limit)]


CATALOG = (
    tool("github", "create_issue", "Open a new issue in a repository.", "repo", "title", "body"),
    tool("github", "list_issues", "List issues of a repository.", "repo", "state"),
    tool("github", "createPullRequest", "Propose changes.", "repo", "head", "base"),
    tool("github", "delete_branch", "Remove a branch.", "repo", "branch"),
    tool("slack", "post_message", "Send a message to a channel.", "channel", "text"),
    tool("slack", "list_channels", "All channels of the workspace."),
    tool("time", "get_current_time", "Tell the time in a zone.", "timezone"),
    tool("time", "convert_time", "Convert between zones.", "source_timezone", "time"),
    tool("files", "read_file", "Read a file.", "path"),
    tool("files", "write_file", "Write a file, replacing it.", "path", "content"),
    tool("S3", "put_object", "Stores an object in GitHub's bucket.", "bucket"),
)


@pytest.mark.parametrize(("query", "best"), QUERIES["catalog"].items())
def test_the_tool_that_was_meant_comes_first(query: str, best: str) -> None:
    assert search(CATALOG, query)[0].name == best


REAL = ToolIndex()
REAL.update(real_tools())


@pytest.mark.parametrize(("query", "best"), QUERIES["real"].items())
def test_among_real_servers_the_tool_that_was_meant_comes_first(query: str, best: str) -> None:
    found = REAL.search(query)[0]
    assert f"{found.tool.server}.{found.tool.name}".startswith(best)
    assert found.fit >= GOOD_FIT


@pytest.mark.parametrize(
    "query", ["send slack message", "create issue", "nope.read", "tools nope.read", "book a flight"]
)
def test_where_no_tool_does_it_none_is_a_good_match(query: str) -> None:
    assert not any(match.fit >= GOOD_FIT for match in REAL.search(query)[:1])


@pytest.mark.parametrize(
    ("name", "least"), [("known", 15), ("first", 50), ("second", 44), ("third", 33)]
)
def test_most_queries_find_their_tool_among_the_first_three_of_810(name: str, least: int) -> None:
    (index := ToolIndex()).update(listed_tools())
    assert len(index._tools) == 810
    queries = QUERIES[name]
    missed = [
        query
        for query, right in queries.items()
        if all(f"{m.tool.server}.{m.tool.name}" not in right for m in index.search(query, limit=3))
    ]
    assert len(queries) - len(missed) >= least, missed


BYSTANDERS = (
    tool("wiki", "upload_attachment", "Upload a file.", "path"),
    tool("notes", "delete_project", "Delete a project. The files on disk stay.", "name"),
    tool("files", "read_file", "Read the contents of a file.", "path"),
    tool("bills", "get_pricing", "\n    Get prices from the price list API.\n", "service_code"),
    tool("bills", "get_patterns", "Architecture patterns, with the cost of each.", "topic"),
    tool("db", "compute_performances", "What an EC2 instance of a database does.", "path"),
    tool("calc", "calculate", "Calculates the given expression.", "expression"),
    tool("flow", "validate_workflow", "Checks an expression in a workflow.", "workflow"),
)


@pytest.mark.parametrize(("query", "best"), QUERIES["bystanders"].items())
def test_a_rare_word_does_not_outweigh_what_is_to_be_done(query: str, best: str) -> None:
    assert search(BYSTANDERS, query)[0].name == best


EVERYWHERE = [tool("s", f"a{number}", "Whatever it is.") for number in range(3000)]


@pytest.mark.parametrize(
    ("query", "others", "best"),
    [
        (
            "paint the wall",
            [tool("s", "a", "Say hello.\nPaint the wall.")],
            tool("s", "b", "  \n   Paint the wall.\nSay hello."),
        ),
        (
            "show the directory tree",
            [*CATALOG, tool("git", "git_status", "Show what is in the working directory.", "path")],
            tool("files", "directory_tree", f"Nested entries. {'They have names. ' * 20}", "path"),
        ),
        (
            "close stale issue",
            [tool("s", "issue_issue", "issue " * 50)],
            tool("s", "close", "Close a stale issue."),
        ),
        (
            "list",
            [tool("s", f"list_{name}", "list " * 9) for name in ("list", "a", "b")],
            tool("s", "list", "Words about other things altogether, and many of them."),
        ),
        ("whatever close", EVERYWHERE, tool("s", "close", "Whatever it closes.")),
    ],
)
def test_the_first_line_the_whole_name_and_the_rare_words_decide(
    query: str, others: list[Tool], best: Tool
) -> None:
    assert search([*others, best], query)[0] == best


def test_a_name_in_camel_case_is_found_as_one_word_too() -> None:
    hub = tool("x", "GitHubSearch")
    assert search([hub, *CATALOG[4:6]], "githubsearch") == [hub]
    assert search([hub], "git hub") == [hub]
    assert search([tool("x", "gitHub_x")], "GitHub")


def test_what_is_said_of_parameters_counts() -> None:
    schema = {
        "properties": {
            "kind": {"enum": ["pods", "nodes"], "description": "Which of a cluster's things."},
            "odd": ["no schema"],
        }
    }
    get = Tool(server="k", name="get", input_schema=schema)
    assert search([get, *CATALOG], "pods") == [get]
    assert search([get, *CATALOG], "cluster") == [get]


def test_a_query_that_fits_nothing_finds_nothing() -> None:
    assert len(search(EVERYWHERE, "whatever it is")) == 5
    assert search(CATALOG, "xylophone") == []
    assert search([], "create issue") == []


@pytest.mark.parametrize("query", ["", "   ", "!?*", "___"])
def test_a_query_without_words_is_an_error_with_a_remedy(query: str) -> None:
    with pytest.raises(InvalidRequestError, match="no words") as caught:
        search(CATALOG, query)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "query",
    [
        'issue" OR name:"channel',
        "name : issue",
        "issue NOT repository",
        "issue NEAR(a, 2)",
        "issue AND",
        "^issue",
        "issue*",
        "-name: issue",
        "{name also} : (issue)",
        "issue + 'x'; DROP TABLE tools",
    ],
)
def test_nothing_in_a_query_is_syntax(query: str) -> None:
    found = search(CATALOG, query)
    assert {one.name for one in found} >= {"create_issue", "list_issues"}


@pytest.mark.parametrize(("limit", "count"), [(-1, 1), (0, 1), (3, 3), (10_000, MAX_LIMIT)])
def test_the_number_of_results_is_bounded(limit: int, count: int) -> None:
    tools = [tool("s", f"list_{number}") for number in range(100)]
    assert len(search(tools, "list", limit=limit)) == count


def test_equal_scores_are_settled_by_server_and_name() -> None:
    tools = [tool(server, name) for server in "cab" for name in ("list_b", "list_a")]
    found = [(match.server, match.name) for match in search(tools, "list", limit=10)]
    assert len(found) == 6
    assert found == sorted(found)


@given(random=st.randoms(use_true_random=False))
def test_the_order_of_the_tools_makes_no_difference(random: Random) -> None:
    shuffled = list(CATALOG)
    random.shuffle(shuffled)
    expected = index_of(CATALOG).search("list repository time", limit=20)
    assert index_of(shuffled).search("list repository time", limit=20) == expected


def test_how_the_index_came_to_be_makes_no_difference() -> None:
    servers = by_server(CATALOG)
    grown = ToolIndex()
    grown.update({"gone": (tool("gone", "list_repository_time"),), "time": CATALOG[:1]})
    for name in reversed(servers):
        grown.update({other: servers[other] for other in (*sorted(servers)[:1], name)})
    grown.update(servers)
    for query in ("list repository time", "isue", "conv", "github"):
        assert grown.search(query, limit=20) == index_of(CATALOG).search(query, limit=20)
    assert len(grown._tools) == len(CATALOG)


def test_only_what_changed_is_indexed_again() -> None:
    index, servers = ToolIndex(), by_server(CATALOG)
    assert index.update(servers)
    assert not index.update(dict(servers))
    assert not index.update(by_server(CATALOG))
    assert index.update({**servers, "files": servers["files"][:1]})
    assert [match.tool.name for match in index.search("write file")][:1] == ["read_file"]
    assert index.update({})
    assert index.search("file") == []


def test_a_server_s_tools_are_searched_alone() -> None:
    index = index_of(CATALOG)
    found = index.search("list", server="slack")
    assert [match.tool.name for match in found] == ["list_channels"]
    assert index.search("list", server="none") == []
    assert index.search("list_channels", server="github")[0].tool.server == "github"


def test_an_index_is_used_from_any_thread() -> None:
    index, found = ToolIndex(), list[Match]()

    def use() -> None:
        index.update(by_server(CATALOG))
        found.extend(index.search("create issue"))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert index.search("create issue") == found


def crowd() -> list[Tool]:
    things = [f"thing{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(60)]
    verbs = ("create", "list", "delete", "update", "export", "merge", "assign", "archive")
    return [
        tool(f"server{number}", f"{verb}_{thing}", "Create, list or delete whatever it is.")
        for number, thing in enumerate(things)
        for verb in (*verbs, *(f"{verb}_many" for verb in verbs))
    ]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("delete thingaa", "delete_thingaa"),
        ("export many thingbb", "export_many_thingbb"),
        ("create list", ("create_", "list_")),
        ("list", "list_"),
        ("update", "update_"),
        ("create whatever delete", ""),
    ],
)
def test_among_thousands_the_rare_words_and_the_names_decide(
    query: str, best: str | tuple[str, ...]
) -> None:
    found = search(crowd(), query)
    assert len(found) == 5
    assert found[0].name.startswith(best)


@pytest.mark.parametrize("query", ["create whatever delete", "list many thingaa", "update many"])
def test_fewer_hits_are_the_first_of_more(query: str) -> None:
    index = index_of(crowd())
    most = index.search(query, limit=MAX_LIMIT)
    assert all(index.search(query, limit=few) == most[:few] for few in (1, 2, 5, 20))


@pytest.mark.parametrize("typed", ["mesage", "messsage", "emssage", "massage"])
def test_one_slip_of_the_finger_is_corrected(typed: str) -> None:
    assert correct_word(typed, {"message", "other"}) == ["message"]
    assert correct_word("mes", {"mess"}) == []


@pytest.mark.parametrize("properties", [["a"], None, {"a": 1, "b": {"enum": 3, "description": []}}])
def test_a_schema_that_is_no_schema_is_searched_by_name(properties: Json) -> None:
    odd = Tool(server="s", name="odd", input_schema={"properties": properties})
    assert search([odd], "odd") == [odd]


@given(
    query=st.text(st.characters(codec=None)),
    names=st.lists(st.text(st.characters(codec=None), max_size=20), max_size=8, unique=True),
    limit=st.integers(),
)
def test_any_query_on_any_names_is_answered(query: str, names: list[str], limit: int) -> None:
    tools = [tool(name[:3], name, name * 2, name) for name in names]
    try:
        found = search(tools, query, limit=limit)
    except InvalidRequestError:
        assert not words(query[:400])
    else:
        assert len(found) <= MAX_LIMIT


def test_a_python_without_sqlite_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    with raises_code("search_unavailable"):
        ToolIndex().update({"hub": (tool("hub", "search"),)})
