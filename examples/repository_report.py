# What happened in a git repository, and which files change most?
#
# Runs inside run_python. Uses two servers, git and time.
#
#     mcp-code-bridge run examples/repository_report.py -- /path/of/a/repository
import asyncio
import collections
import re
import sys

[REPOSITORY] = sys.argv[1:] or ["."]
log, status, now = await asyncio.gather(
    mcp_git.git_log(repo_path=REPOSITORY, max_count=60),
    mcp_git.git_status(repo_path=REPOSITORY),
    mcp_time.get_current_time(timezone="Europe/Paris"),
)
commits = re.findall(r"Commit: '?([0-9a-f]{40})", str(log))

# Every commit's whole diff, fetched at the same time and read here: none of it reaches the model.
diffs = await asyncio.gather(
    *(mcp_git.git_show(repo_path=REPOSITORY, revision=commit) for commit in commits)
)

churn = collections.Counter()
for diff in diffs:
    name = None
    for line in str(diff).splitlines():
        if line.startswith("+++ "):
            # What was deleted has no new name.
            name = line[6:] if line.startswith("+++ b/") else None
        elif line[:1] in "+-" and name and not line.startswith("---"):
            churn[name] += 1

print(f"{len(commits)} commits, read at {now['datetime']}")
for name, lines in churn.most_common(5):
    print(f"{lines:7,} lines changed  {name}")

{"commits": len(commits), "clean": "working tree clean" in str(status)}
