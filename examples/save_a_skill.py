# A skill: a function that worked, kept for later programs.
#
# Runs inside run_python. Uses the git server.
#
#     mcp-code-bridge run examples/save_a_skill.py -- /path/of/a/repository
#
# Any later program, in another conversation too, can then say
#
#     from skills import latest_changes
#     await latest_changes("/path/of/a/repository", 10)
#
# and the user is asked once whether the function may be used.
import re
import sys

[REPOSITORY] = sys.argv[1:] or ["."]


async def latest_changes(repository, count=5):
    """Return the subjects of a repository's latest commits, the newest first."""
    log = str(await mcp_git.git_log(repo_path=repository, max_count=count))
    return re.findall(r"Message: '?(.*?)'?\n", log)


print(await latest_changes(REPOSITORY))
await runtime.save_skill(
    latest_changes, description="Subjects of a git repository's latest commits"
)
