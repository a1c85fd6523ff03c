"""Programs with one mistake each, as models make them, and what their authors are told.

A forge with the tools of `tools.json` is configured as "git-forge", so programs see it as
`mcp_git_forge`. The messages are in `expected.json`.
"""

from __future__ import annotations

import json
from pathlib import Path

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.parsing import parse
from bridge.catalog.program.survey import Survey
from bridge.model import Finding, Tool
from tests.golden_texts import assert_golden

HERE = Path(__file__).parent

FORGE = ServerEntry(
    name="git-forge",
    alias="git_forge",
    tools=tool_entries(
        [
            Tool(
                server="git-forge",
                name=tool["name"],
                input_schema=tool["inputSchema"],
                output_schema=tool.get("outputSchema"),
            )
            for tool in json.loads((HERE / "tools.json").read_text())
        ]
    ),
    known=True,
)

PROGRAMS = """\
## keys without quotes
r = await mcp_git_forge.search_issues({query: 'x'})
## a tool misspelt in a text
r = await runtime.call_tool('git-forge', 'serch_issues', {'query': 'x'})
## a prompt's arguments by name
p = await mcp_git_forge.get_prompt('review', city='Berlin')
## a tool misspelt
r = await mcp_git_forge.serch_issues(query='x')
## a tool that another server has
r = await mcp_git_forge.send_email(to='a@example.org')
## a tool misspelt through a second name
forge = mcp_git_forge
for n in range(2):
    print(await forge.get_isue(n))
## a tool misspelt by the server's own name
r = await mcp_servers['git-forge'].list_commit(owner='o', repo='r')
## a tool misspelt in an import
from mcp.servers.git_forge import get_issues
r = await get_issues('o', 'r', 1)
## the server called instead of a tool
r = await mcp_git_forge('search_issues', query='x')
## a tool named and not called
me = await mcp_git_forge.get_me
## an argument missing
r = await mcp_git_forge.get_issue(owner='o', repo='r')
## an argument misspelt
r = await mcp_git_forge.create_issue(owner='o', repo='r', titel='t')
## an argument of another service's tool
r = await mcp_git_forge.search_issues(q='is:open')
## an argument that nothing is like
r = await mcp_git_forge.get_me(verbose=True)
## a value that is not among the choices
r = await mcp_git_forge.search_issues(query='x', state='opened')
## a wrong value inside a dict that is only partly written out
n = 1
r = await mcp_git_forge.create_issue('o', 'r', 't',
    milestone={'number': 'one', 'due': str(n)})
## too many positional arguments
r = await mcp_git_forge.get_file_contents('a.md', 'main', 'utf-8')
## an argument given twice
r = await mcp_git_forge.get_file_contents('a.md', path='b.md')
## a call that is never awaited
mcp_git_forge.create_issue(owner='o', repo='r', title='t')
print('created')
## a result that is indexed without await
r = mcp_git_forge.search_issues(query='x')
print(r['total_count'])
## a result that is printed without await
print(mcp_git_forge.get_me())
## a loop over a call without await
for c in mcp_git_forge.list_commits(owner='o', repo='r'):
    print(c.sha)
## an f-string with a call without await
print(f'I am {mcp_git_forge.get_me()}')
## an await that binds to the key
items = await mcp_git_forge.search_issues(query='x')['items']
## json.dumps of a call without await
import json
print(json.dumps(mcp_git_forge.get_me()))
## an own async function that is never awaited
async def main():
    print(await mcp_git_forge.get_me())
main()
print('done')
## a call whose result is not used
r = mcp_git_forge.create_issue(owner='o', repo='r', title='t')
print('created')
## await in a plain function
def who():
    return await mcp_git_forge.get_me()
print(who())
## await in a lambda
get = lambda n: await mcp_git_forge.get_issue('o', 'r', n)
print(get(1))
## gather of a list
import asyncio
r = await asyncio.gather([mcp_git_forge.get_me() for _ in range(3)])
## await of a list of calls
r = await [mcp_git_forge.get_me() for _ in range(3)]
## a helper without await
docs = runtime.search_tool_docs('issues')
print(docs[0])
## a variable misspelt
issues = await mcp_git_forge.search_issues(query='x')
print(isues.total_count)
## a name of JavaScript
found = await mcp_git_forge.get_me()
console.log(found)
## a helper misspelt
r = await runtime.search_tools('issues')
## a helper misspelt in an import
from mcp.runtime import calltool
r = await calltool('git-forge', 'get_me')
## a result that is returned at the top
me = await mcp_git_forge.get_me()
return me
"""


def told(code: str) -> list[str]:
    tree = parse(code)
    assert not isinstance(tree, Finding)
    return [
        str(one) for one in check_program(Survey(tree), [FORGE], {"git-forge": "git_forge"}).certain
    ]


def test_a_mistake_that_shows_in_the_text_stops_the_run_and_names_the_fix() -> None:
    programs = (part.partition("\n") for part in PROGRAMS.split("## ")[1:])
    found = {name: told(code) for name, _, code in programs}
    assert all(len(messages) == 1 for messages in found.values())
    assert_golden(HERE / "expected.json", found)
