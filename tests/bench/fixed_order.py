#!/usr/bin/env python3
"""Measures the cost and the effect of communication.order: fixed. The same runs are made on 1, 2 and 4 ranks, with
gradients added in any order and in the fixed order. A run in any order is made twice: with the micro-batch that it
would choose, and with that of the fixed order. Ranks that wait keep their processors busy, so processor seconds can
only be compared between runs of one rank.

  tests/bench/fixed_order.py [--rounds 3]            about 8 minutes on 2 cores

Needs the data of `make demo` and `make study` (data_prep/study_data.sh names, digits). Writes
results/bench/fixed_order.csv.
"""
import argparse
import csv
import json
import resource
import shutil
import statistics
import subprocess

from bench_tools import ROOT, WORK, fail

MODELS = {
    "names": ["configs/names.yaml", "batch.global=256", "batch.worker=32", "stop.epochs=1", "evaluate.every_epochs=1"],
    "digits": ["configs/digits_resnet18.yaml", "batch.global=128", "batch.worker=16", "stop.epochs=30", "learning_rate.milestones=[15,25]",
               "evaluate.every_epochs=30"],
}
SAME_PASSES = {"names": "batch.micro=32", "digits": "batch.micro=16"}


def ways(model):
    return {"any": [], "any, same passes": [SAME_PASSES[model]], "fixed": ["communication.order=fixed"]}


def run(model, way, ranks):
    folder = WORK / "fixed_order"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["tests/mpirun.sh", ranks, "bin/ringtrain", "train", *MODELS[model], *ways(model)[way], "noise.every_steps=0", "run.threads=1",
               "checkpoint.best=false", f"run.dir={folder}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(part) for part in command], cwd=ROOT, text=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    speed = statistics.median(record["samples_per_second"] for record in records if "loss" in record)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return speed, cpu, losses, [record["validation_loss"] for record in records if "validation_loss" in record][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each cell, of which the fastest counts")
    rounds = parser.parse_args().rounds
    rows = []
    for model in MODELS:
        cells = {}
        for _ in range(rounds):
            for ranks in (1, 2, 4):
                for way in ways(model):
                    cells.setdefault((way, ranks), []).append(run(model, way, ranks))
        for (way, ranks), runs in cells.items():
            speed, cpu = max(r[0] for r in runs), min(r[1] for r in runs)
            plain = cells[("any", ranks)]
            of_one = cells[(way, 1)][0][2]
            apart = next((step + 1 for step, (a, b) in enumerate(zip(runs[0][2], of_one)) if a != b), None)
            rows.append({"model": model, "order": way, "ranks": ranks, "steps": len(of_one), "samples_per_second": round(speed),
                         "speed_of_any": round(speed / max(r[0] for r in plain), 3),
                         "processor_seconds": round(cpu, 2), "processor_of_any": round(cpu / min(r[1] for r in plain), 3),
                         "first_loss_that_differs_from_one_rank": apart or "none",
                         "last_loss": runs[0][2][-1], "validation_loss": runs[0][3]})
            print(rows[-1], flush=True)
    with open(ROOT / "results/bench/fixed_order.csv", "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
