#!/usr/bin/env python3
"""Gives the converters, verify and train odd and wrong inputs: tests/inputs/campaign.py [--seed 1] [--count 300] [--only 17 ...]

Draws inputs (draw.py) and writes them (arrays.py, pictures.py, tables.py, texts.py, shards.py). For each one it checks
the exit code and the message, the counts, the finished shards, and that tar files, ranks and threads change nothing
(checks.py). What is found is added to the record. The last line is `N inputs, N found`. The exit code is 1 when something
was found. --only repeats inputs and records nothing. --keep leaves their folders.
"""
import argparse
import collections
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "faults")]
import record  # noqa: E402
from checks import Trial, clear, of_a_shard, of_an_input  # noqa: E402
from input_families import FAMILIES, draw, make  # noqa: E402
from made import Draw, Shard  # noqa: E402
from input_programs import ROOT  # noqa: E402

RECORD = ROOT / "tests" / "inputs" / "record.csv"


def strike(folder, seed, number, train_too=True):
    """Makes an input below `folder`, runs all checks, and returns the Trial."""
    trial = Trial(draw(seed, number))
    place = folder / f"{seed}-{number}"
    clear(place)
    made, trial.more = make(trial.drawn, place / "in")
    generator = Draw("check", seed, number)
    if isinstance(made, Shard):
        trial.outcome, trial.wrong = of_a_shard(made, place, generator)
    else:
        trial.outcome, trial.wrong = of_an_input(made, place, generator, train_too)
    return trial


def row_of(trial, commit):
    drawn = trial.drawn
    return {"seed": drawn.seed, "number": drawn.number, "family": drawn.family, "form": drawn.form,
            "change": drawn.change + (f", {trial.more}" if trial.more else ""), "outcome": trial.outcome, "found": " ".join(" | ".join(trial.wrong)[:300].split()), "commit": commit}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="inputs FIRST to FIRST + COUNT - 1 of this seed")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these inputs, without a record")
    parser.add_argument("--family", choices=FAMILIES, help="only inputs of this family, without a record")
    parser.add_argument("--keep", action="store_true", help="leave the folders of all inputs, and say where they are")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--place", type=Path, help="the campaign's folder; by default a new one that is removed at the end")
    arguments = parser.parse_args()
    folder = arguments.place or Path(tempfile.mkdtemp(prefix="inputs-", dir=ROOT / "build"))
    repeats = arguments.only is not None or arguments.family is not None
    commit, outcomes, found = record.commit(), collections.Counter(), 0
    numbers = arguments.only or range(arguments.first, arguments.first + arguments.count)
    for number in numbers:
        if arguments.family and draw(arguments.seed, number).family != arguments.family:
            continue
        trial = strike(folder, arguments.seed, number)
        outcomes[f"{trial.drawn.family} {trial.outcome}"] += 1
        found += bool(trial.wrong)
        print(f"{arguments.seed} {number} {trial.drawn}{f' ({trial.more})' if trial.more else ''}: {trial.outcome}", flush=True)
        for sentence in trial.wrong:
            print(f"    FOUND: {sentence}", flush=True)
        if trial.wrong and not repeats:
            record.append(arguments.record, row_of(trial, commit))
        if not trial.wrong and not arguments.keep:
            clear(folder / f"{arguments.seed}-{number}")
    if not repeats:
        counts = ", ".join(f"{n} {what}" for what, n in sorted(outcomes.items()))
        record.append(arguments.record, {"seed": arguments.seed, "number": f"{numbers[0]}-{numbers[-1]}", "family": "all", "form": "", "change": "",
                                         "outcome": counts, "found": f"{found} inputs", "commit": commit})
    if arguments.keep or (found and arguments.place):
        print(f"the folders are in {folder}")
    elif arguments.place is None:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{sum(outcomes.values())} inputs, {found} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
