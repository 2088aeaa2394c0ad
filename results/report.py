#!/usr/bin/env python3
"""Makes a page about runs, with figures and tables. Published numbers are shown next to those of the runs.

  results/report.py results/names_grid -o report.html
  results/report.py results/names/* --target validation_loss 1.9
  results/report.py --compare results/names_sgd results/names_adam -o compare.html

STUDY is a folder of run folders (with or without a study.json), a run folder, or its metrics.jsonl. The page is one
file that needs no other file. A folder next to it, with the same name without .html, has every figure as SVG and PNG
and the numbers of every figure and table as CSV.
"""

import argparse
import sys
from pathlib import Path

from reporting import script
from reporting.interpreter import with_modules


MADE_BY = "Made by results/report.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "studies", nargs="*", metavar="STUDY", help="folders of runs, run folders, or metrics.jsonl files"
    )
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"), help="draw two studies in the same axes, in place of a report"
    )
    parser.add_argument("-o", "--output", default="report.html", type=Path, help="the page to write [report.html]")
    parser.add_argument(
        "--target",
        nargs=2,
        metavar=("METRIC", "VALUE"),
        help="validation_loss or validation_accuracy, and its value [the target that all runs share, or else the best value that every batch reaches]",
    )
    parser.add_argument("--title", help="title of the page [the studies' names]")
    arguments = parser.parse_args()
    if bool(arguments.studies) == bool(arguments.compare):
        parser.error("give studies, or two studies after --compare (and not both)")
    with_modules("yaml", "numpy", "scipy", "matplotlib")
    from reporting import compare, errors, measures, outputs, page, runs, sections

    try:
        if arguments.output.suffix != ".html":
            raise errors.ReportError(
                f"-o {arguments.output}: the page's name must end in .html; its figures go to a folder without it"
            )
        outputs.expect(arguments.output, "-o", "page of report.py", lambda start: MADE_BY.encode() in start)
        target = measures.parse_target(arguments.target) if arguments.target else None
        if arguments.compare:
            title, made = compare.make(arguments.compare, target)
            told = "2 studies"
        else:
            found = runs.read_all(arguments.studies)
            title = ", ".join(dict.fromkeys(run.study for run in found if run.study)) or "Runs"
            made, told = sections.make(found, target), f"{len(found)} trials"
        page.write(arguments.output, arguments.title or title, f"{MADE_BY}; numbers come from the run folders.", made)
    except errors.ReportError as error:
        sys.exit(f"report.py: error: {error}")
    except OSError as error:
        sys.exit(f"report.py: error: {error.filename or arguments.output}: {error.strerror}")
    print(f"wrote {arguments.output} and {arguments.output.with_suffix('')}/ ({told})")


if __name__ == "__main__":
    script.run(main)
