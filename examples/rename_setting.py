# A bulk edit: rename a setting in every file of a folder that has it.
#
# Meant for run_python(mode="plan"): the files are read, the edits are held back and listed, and
# run_python(apply="...") makes exactly those after one approval. At a terminal `run --plan` does both.
# Uses the filesystem server. That it may read while a plan is made, the policy has to say, or every call
# is held back: `mcp-code-bridge policy init` writes one, which tells this server's tools that read from
# the others.
#
#     mcp-code-bridge run --plan examples/rename_setting.py -- /path/of/a/folder timeout_ms timeout
import re
import sys

FOLDER, OLD, NEW = sys.argv[1:] or [".", "timeout_ms", "timeout"]
found = await mcp_filesystem.search_files(path=FOLDER, pattern="**/*.toml")
paths = [line for line in found.splitlines() if line.startswith("/")]
setting = re.compile(rf"^{re.escape(OLD)}(?=\s*=)", re.MULTILINE)

changed = 0
for path in paths:
    text = await mcp_filesystem.read_text_file(path=path)
    lines = [line for line in text.splitlines() if setting.match(line)]
    if not lines:
        continue
    edits = [{"oldText": line, "newText": setting.sub(NEW, line)} for line in lines]
    await mcp_filesystem.edit_file(path=path, edits=edits)
    changed += 1

print(f"{changed} of {len(paths)} files have {OLD}")
