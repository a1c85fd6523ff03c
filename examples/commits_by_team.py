# A join over two servers: whose team made the last commits?
#
# Runs inside run_python. The commits come from the git server, who is in which team from a JSON file
# that the filesystem server reads: {"Ada": "core"}.
#
#     mcp-code-bridge run examples/commits_by_team.py -- /path/of/a/repository /path/of/teams.json
import asyncio
import collections
import json
import re
import sys

REPOSITORY, TEAMS = sys.argv[1:] or [".", "teams.json"]
log, teams = await asyncio.gather(
    mcp_git.git_log(repo_path=REPOSITORY, max_count=500),
    mcp_filesystem.read_text_file(path=TEAMS),
)
team_of = json.loads(teams)
authors = collections.Counter(re.findall(r"Author: '?(.*?)'?\n", str(log)))

by_team = collections.Counter()
for author, count in authors.items():
    by_team[team_of.get(author, "no team")] += count

strangers = sorted(set(authors) - set(team_of))
if strangers:
    print("In no team:", ", ".join(strangers))

dict(by_team.most_common())
