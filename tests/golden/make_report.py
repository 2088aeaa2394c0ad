#!/usr/bin/env python3
"""Writes report.json: the numbers of every table and figure in a report of a small study that tests/e2e/made_runs.py
makes. Run it again when a report should say something else, and read the difference.

    /usr/bin/python3 tests/golden/make_report.py
"""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import made_runs  # noqa: E402

STORED = Path(__file__).resolve().parent / "report.json"
OTHERS = {"references", "verdicts", "noise_published"}  # these follow from results/reference


def report_of(folder):
    """Returns name -> [columns, row, ...] of a report of the study, made in `folder`. A table of 60 lines
    or more, such as a curve, keeps every 40th row."""
    study = made_runs.grid(folder / "grid", batches=(32, 128, 512), rates=(0.05, 0.1, 0.2), seeds=(1, 2))
    made_runs.write(folder / "grid" / "stopped", 64, outcome="stopped by SIGTERM after 1.2 s")
    words = [ROOT / "results" / "report.py", study, "-o", folder / "report.html"]
    subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True, timeout=120)
    found = {}
    for path in sorted((folder / "report").glob("*.csv")):
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
        if path.stem not in OTHERS:
            found[path.stem] = rows if len(rows) < 60 else [rows[0], *rows[1::40]]
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = report_of(Path(folder))
    lines = [f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, rows)) + "]" for name, rows in found.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
