from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.search import MAX_LIMIT, ToolIndex, search, words
from bridge.errors import InvalidRequestError
from bridge.model import Tool


def tool(server: str, name: str, description: str = "", *parameters: str) -> Tool:
    return Tool(
        server=server,
        name=name,
        description=description,
        input_schema={"properties": {parameter: {} for parameter in parameters}},
    )


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


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create issue", "create_issue"),
        ("creating issues", "create_issue"),
        ("open a pull request", "createPullRequest"),
        ("createPullRequest", "createPullRequest"),
        ("create_pull_request", "createPullRequest"),
        ("issues listed", "list_issues"),
        ("remove branches", "delete_branch"),
        ("send message", "post_message"),
        ("publish text to channel", "post_message"),
        ("what time is it now", "get_current_time"),
        ("timezone", "convert_time"),
        ("conv", "convert_time"),
        ("mesage", "post_message"),
        ("isue create", "create_issue"),
        ("save file", "write_file"),
        ("fetch file", "read_file"),
        ("s3", "put_object"),
        ("buckets", "put_object"),
    ],
)
def test_the_tool_that_was_meant_comes_first(query: str, best: str) -> None:
    assert search(CATALOG, query)[0].name == best


def test_a_name_in_camel_case_is_found_as_one_word_too() -> None:
    hub = tool("x", "GitHubSearch")
    assert search([hub, *CATALOG[4:6]], "githubsearch") == [hub]
    assert search([hub], "git hub") == [hub]
    assert search([tool("x", "gitHub_x")], "GitHub")


def test_a_query_that_fits_nothing_finds_nothing() -> None:
    assert search(CATALOG, "xylophone") == []
    assert search([], "create issue") == []


@pytest.mark.parametrize("query", ["", "   ", "!?*", "___"])
def test_a_query_without_words_is_an_error_with_a_remedy(query: str) -> None:
    with pytest.raises(InvalidRequestError, match="no words") as caught:
        search(CATALOG, query)
    assert caught.value.remedy


@pytest.mark.parametrize(("limit", "count"), [(-1, 1), (0, 1), (3, 3), (10_000, MAX_LIMIT)])
def test_the_number_of_results_is_bounded(limit: int, count: int) -> None:
    tools = [tool("s", f"list_{number}") for number in range(100)]
    assert len(search(tools, "list", limit=limit)) == count


def test_equal_scores_are_settled_by_server_and_name() -> None:
    tools = [tool(server, name) for server in "cab" for name in ("list_b", "list_a")]
    found = [(match.server, match.name) for match in search(tools, "list", limit=10)]
    assert found == sorted(found)


@given(random=st.randoms(use_true_random=False))
def test_the_order_of_the_tools_makes_no_difference(random: Random) -> None:
    shuffled = list(CATALOG)
    random.shuffle(shuffled)
    expected = ToolIndex(CATALOG).search("list repository time", limit=20)
    assert ToolIndex(shuffled).search("list repository time", limit=20) == expected


def test_a_tool_with_most_of_the_words_beats_one_that_repeats_a_single_one() -> None:
    repeating = tool("s", "issue_issue", "issue " * 50)
    having = tool("s", "close", "Close a stale issue.")
    assert search([repeating, having], "close stale issue")[0] is having


@pytest.mark.parametrize(
    ("text", "stems"),
    [
        ("createIssue", ["creat", "issu"]),
        ("create_issues", ["creat", "issu"]),
        ("HTTPServer2", ["http", "server", "2"]),
        ("repositories running stopped", ["repository", "run", "stop"]),
        ("status class this gas", ["status", "class", "this", "gas"[:3]]),
        ("calling process", ["call", "process"]),
        ("Über-Straße 日本", ["über", "straß", "日本"]),
        ("", []),
    ],
)
def test_words_are_split_and_cut_to_stems(text: str, stems: list[str]) -> None:
    assert words(text) == stems


def test_a_schema_that_is_no_schema_is_searched_by_name() -> None:
    odd = Tool(server="s", name="odd", input_schema={"properties": ["a"]})
    assert search([odd], "odd") == [odd]


@given(
    query=st.text(st.characters(codec=None)),
    names=st.lists(st.text(st.characters(codec=None), max_size=20), max_size=8),
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
