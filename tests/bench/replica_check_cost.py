#!/usr/bin/env python3
"""Measures what a comparison of the ranks' copies costs (communication.check_every_steps), for the names model and for
ResNet-18 on the digits, on 2 ranks. Runs that compare after every step take turns with runs that never compare.

  tests/bench/replica_check_cost.py [--rounds 4]           about 3 minutes on 2 cores; the machine should be idle
  tests/bench/replica_check_cost.py --rounds 1 --steps 20  to see that it works

The seconds of a comparison are the difference between the median steps of two neighbouring runs. The result is the
median over all rounds, with the smallest and the largest value. With the default, -1, ranks compare once a minute, or
less often if the comparisons would take more than a thousandth of the time. The share of the time at this default is
computed from the seconds.

Needs the data of `make demo` and `make study` (data_prep/study_data.sh names, digits). Writes
results/bench/replica_check.csv.
"""
import argparse
import csv
import json
import shutil
import statistics

from bench_tools import ROOT, WORK, about, call

MODELS = {
    "names": (["configs/names.yaml", "batch.global=256", "batch.worker=32"], 600),
    "digits, ResNet-18": (["configs/digits_resnet18.yaml", "batch.global=128", "batch.worker=16"], 120),
}
PAUSE_SECONDS, PAUSES_PER_COST = 60, 1000  # is_time_to_compare() in src/train/replica_check.cpp


def median_step(model, every_steps, options):
    keys, steps = MODELS[model]
    steps = options.steps or steps
    folder = WORK / "replica_check"
    shutil.rmtree(folder, ignore_errors=True)
    call(["tests/mpirun.sh", options.ranks, "bin/ringtrain", "train", *keys, f"stop.steps={steps}", "stop.epochs=0", "noise.every_steps=0",
          "evaluate.every_epochs=0", "checkpoint.every_epochs=0", "checkpoint.best=false", "run.threads=1", f"run.dir={folder}",
          f"communication.check_every_steps={every_steps}"])
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = [record["seconds"] for record in records if "loss" in record]
    return statistics.median(seconds[len(seconds) // 10:])  # the first steps fill caches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="pairs of runs of each model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="steps of each run; 0: enough for some tens of seconds")
    parser.add_argument("--output", default="results/bench/replica_check.csv")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    rows = []
    for model in MODELS:
        costs, plain = [], []
        for number in range(options.rounds):
            order = (1, 0) if number % 2 == 0 else (0, 1)  # so that a slow drift of the machine cancels out
            step = {every: median_step(model, every, options) for every in order}
            costs.append(step[1] - step[0])
            plain.append(step[0])
        cost = max(0.0, statistics.median(costs))
        rows.append({"model": model, "ranks": options.ranks, "step_seconds": round(statistics.median(plain), 6),
                     "comparison_seconds": round(cost, 6), "smallest": round(min(costs), 6), "largest": round(max(costs), 6),
                     "share_if_every_step": round(cost / (statistics.median(plain) + cost), 5),
                     "share_by_default": f"{cost / max(PAUSE_SECONDS, PAUSES_PER_COST * cost):.7f}", "rounds": options.rounds})
        print(rows[-1], flush=True)
    facts = about(argparse.Namespace(rounds=options.rounds, steps=options.steps), "was not used")
    with open(ROOT / options.output, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames={**rows[0], **facts}, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **facts} for row in rows)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
