# A long job that says how far it is: counts the words of every text file below a folder.
#
# Runs inside run_python. Uses the filesystem server. You see the bar move; the texts never reach the
# model.
#
#     mcp-code-bridge run examples/word_count.py -- /path/of/a/folder
import asyncio
import collections
import re
import sys

[FOLDER] = sys.argv[1:] or ["."]
found = await mcp_filesystem.search_files(path=FOLDER, pattern="**/*.md")
paths = [line for line in found.splitlines() if line.startswith("/")]

words = collections.Counter()
done = 0
few_at_once = asyncio.Semaphore(8)


async def count(path):
    global done
    async with few_at_once:
        text = await mcp_filesystem.read_text_file(path=path)
    words.update(re.findall(r"[a-z]{4,}", text.lower()))
    done += 1
    runtime.progress(done, len(paths), path.rpartition("/")[2])


await asyncio.gather(*map(count, paths))

print(f"{len(paths)} files, {sum(words.values()):,} words of four letters or more")
words.most_common(10)
