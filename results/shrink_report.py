#!/usr/bin/env python3
"""Makes a report's files smaller, so that it can be kept in git: results/shrink_report.py results/studies/NAME

- Each figure is kept once, as a small SVG (reporting/small_svg.py). The page shows the files in the folder beside it.
- Numbers of tables get six digits. Tables with a row for each point along a run are removed. `make study` makes them
  again.
- A table that the page shows folded is kept as CSV alone.
At the end, the files of the folder may have 2 MiB (RECORD_MIB) together.
"""

import os
import re
import sys
from pathlib import Path

from reporting import script

FIGURE = re.compile(
    r'<svg role="img" aria-label="([^"]*)".*?</svg>(\s*<figcaption>(?:(?!</figcaption>).)*?href="([^"]+\.svg)")',
    re.DOTALL,
)
FOLDED = re.compile(r'<details><summary>(\d+ rows?)</summary><div class="scroll"><table>.*?</details>', re.DOTALL)
LONG_NUMBER = re.compile(r"(?<![^,\n])-?\d+\.\d+(?:e[-+]?\d+)?(?![^,\n])")  # a whole cell
LINK = re.compile(r' · <a href="([^"]+)">(?:PNG|CSV)</a>')


def is_course(path):
    """Says whether the table has a row for each point along a run."""
    with open(path, "rb") as file:
        return file.readline().startswith((b"trial,batch,rate,seed,epoch,", b"family,batch,rate,seeds,epoch,"))


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        sys.exit(f"error: {path} is not UTF-8, so report.py did not make it; remove it")


def shrink_files(folder):
    from reporting import small_svg

    for path in sorted(folder.rglob("*")):
        if path.suffix == ".png" or path.suffix == ".csv" and is_course(path):
            path.unlink()
        elif path.suffix == ".csv":
            text = text_of(path)
            path.write_text(LONG_NUMBER.sub(lambda found: f"{float(found[0]):.6g}", text), encoding="utf-8")
        elif path.suffix == ".svg":
            path.write_text(small_svg.smaller(text_of(path)), encoding="utf-8")


def shrink_page(path):
    """Shows the figures' files in place of the figures, and removes links to files that are gone."""
    page = text_of(path).replace("figure svg {", "figure img {")
    page = page.replace('<td class="number">', "<td class=n>").replace("td.number {", "td.n {")
    page = FIGURE.sub(r'<img src="\3" alt="\1" loading="lazy">\2', page)
    page = FOLDED.sub(r'<p class="note">\1:</p>', page)
    page = LINK.sub(lambda found: found[0] if (path.parent / found[1]).exists() else "", page)
    path.write_text(page, encoding="utf-8")


def check_size(folder):
    limit = float(os.environ.get("RECORD_MIB", "2"))
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    total = sum(sizes.values()) / 2**20
    if total > limit:
        largest = ", ".join(f"{p.name} ({sizes[p] / 2**10:.0f} KiB)" for p in sorted(sizes, key=sizes.get)[:-4:-1])
        sys.exit(
            f"error: the record has {total:.2f} MiB; RECORD_MIB allows {limit:g}. Its largest files are {largest}. "
            "Make a report of fewer studies: STUDIES=... make study"
        )


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: shrink_report.py FOLDER")
    folder = Path(sys.argv[1])
    shrink_files(folder)
    for page in folder.glob("*.html"):
        shrink_page(page)
    check_size(folder)


if __name__ == "__main__":
    script.run(main)
