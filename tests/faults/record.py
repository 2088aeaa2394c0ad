"""The record of all campaigns, tests/faults/record.csv, with one line for each fault. tests/inputs uses it, too."""
import csv
import subprocess

from jobs import ROOT

RECORD = ROOT / "tests" / "faults" / "record.csv"


def commit():
    """The commit of the checkout, with a + if the sources have changes."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return git("rev-parse", "--short=9", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "src", "slurm", "data_prep") else "")


def append(path, row):
    """Appends each line with one write, so that a killed campaign leaves whole lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def done(path, seed):
    """The numbers of this seed that the record has."""
    if not path.exists():
        return set()
    with open(path, newline="") as file:
        return {int(row["number"]) for row in csv.DictReader(file) if int(row["seed"]) == seed}
