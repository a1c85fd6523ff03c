# A report with a chart: how much each author committed on each day.
#
# Runs inside run_python, in the `data` image (matplotlib). Uses the git server. The chart comes back as
# a picture, the numbers as out/commits.csv.
#
#     mcp-code-bridge run examples/commit_chart.py -- /path/of/a/repository
import collections
import csv
import re
import sys

import matplotlib.pyplot as plt

[REPOSITORY] = sys.argv[1:] or ["."]
log = str(await mcp_git.git_log(repo_path=REPOSITORY, max_count=500))
commits = re.findall(r"Author: '?(.*?)'?\nDate: '?(\d{4}-\d\d-\d\d)", log)
counts = collections.Counter(commits)
days = sorted({day for _, day in commits})
authors = sorted({author for author, _ in commits})

with open("out/commits.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["day", *authors])
    table.writerows([day, *(counts[author, day] for author in authors)] for day in days)

figure, axes = plt.subplots(figsize=(8, 4))
below = [0] * len(days)
for author in authors:
    heights = [counts[author, day] for day in days]
    axes.bar(days, heights, bottom=below, label=author)
    below = [low + height for low, height in zip(below, heights)]
axes.set_title("Commits a day")
axes.legend()

# The figure is shown because it is open when the program ends.
print(f"{len(commits)} commits by {len(authors)} authors on {len(days)} days")
