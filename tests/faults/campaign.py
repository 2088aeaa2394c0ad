#!/usr/bin/env python3
"""Strikes running jobs with faults: tests/faults/campaign.py [--seed 1] [--count 1000] [--only 17 ...]

Draws faults (draw.py) and strikes small jobs with them (running.py). For each fault it checks whether the job ended or
went on as it should, whether anything durable was lost, and whether the resumed run equals the undisturbed run bit for
bit (outcome.py). Each fault adds a line to the record. Numbers that the record already has are skipped, so a campaign
can run in parts. The last line is `N faults, N found`. The exit code is 1 when something was found. --only repeats
faults and records nothing. --keep leaves their folders.
"""
import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record  # noqa: E402
from draw import draw  # noqa: E402
from jobs import ROOT  # noqa: E402
from running import Place  # noqa: E402
from trial import clear, strike  # noqa: E402


def row_of(trial, commit):
    fault = trial.fault
    return {"seed": fault.seed, "number": fault.number, "family": fault.family, "fault": fault.what, "moment": fault.moment,
            "hit": trial.hit, "target": fault.target, "job": fault.job, "outcome": trial.outcome,
            "seconds": f"{trial.seconds:.1f}", "found": " | ".join(trial.wrong), "commit": commit}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="faults 1 to COUNT of this seed")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these faults, without a record")
    parser.add_argument("--family", help="only faults of this family, without a record")
    parser.add_argument("--keep", action="store_true", help="leave the folders of all faults, and say where they are")
    parser.add_argument("--record", type=Path, default=record.RECORD)
    parser.add_argument("--place", type=Path, help="the campaign's folder; by default a new one that is removed at the end")
    arguments = parser.parse_args()
    folder = arguments.place or Path(tempfile.mkdtemp(prefix="faults-", dir=ROOT / "build"))
    folder.mkdir(parents=True, exist_ok=True)
    place = Place(folder.resolve())
    repeats = arguments.only is not None or arguments.family is not None
    passed_over = set() if repeats else record.done(arguments.record, arguments.seed)
    commit = record.commit()
    count = found = 0
    try:
        for number in arguments.only or range(1, arguments.count + 1):
            fault = draw(arguments.seed, number)
            if number in passed_over or (arguments.family and fault.family != arguments.family):
                continue
            trial = strike(place, fault)
            row = row_of(trial, commit)
            count, found = count + 1, found + bool(trial.wrong)
            print(f"{fault.seed} {fault.number} {fault.job}: {fault.family}: {fault.what}, {fault.target}, {fault.moment} "
                  f"[{trial.hit}]: {trial.outcome}, {trial.seconds:.1f} s", flush=True)
            for sentence in trial.wrong:
                print(f"    FOUND: {sentence}", flush=True)
            if not repeats:
                record.append(arguments.record, row)
            if not trial.wrong and not arguments.keep:
                clear(place, fault)
        print(f"{count} faults, {found} found")
    finally:
        if arguments.place is None and not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
