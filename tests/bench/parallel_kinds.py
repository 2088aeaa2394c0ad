#!/usr/bin/env python3
"""Compares ways of training in parallel, with and without a slow rank, on 4 ranks at an equal global batch: ring,
sharded state, parameter servers (synchronous, asynchronous, and with a backup worker) and pipelines.

  tests/bench/parallel_kinds.py                      all, about 10 minutes on 2 cores
  tests/bench/parallel_kinds.py --only async --model names

Needs the data of `make demo` and `make study` (data_prep/study_data.sh names, digits). Writes
results/bench/parallel_MODEL.csv, and parallel_MODEL.png next to it if Python has matplotlib.
"""
import argparse
import csv
import json
import os
import shutil
import subprocess

from bench_tools import ROOT, WORK, fail

RANKS = 4
# batch.global fits 4 workers and 3, so that servers may have a rank of their own.
MODELS = {
    "names": {"experiment": "configs/names.yaml", "title": "char-LSTM of names", "slow_seconds": 0.02,
              "keys": ["batch.global=192", "batch.worker=16", "stop.epochs=1", "evaluate.every_epochs=0.125", "checkpoint.best=false"]},
    "digits": {"experiment": "configs/digits_resnet18.yaml", "title": "ResNet-18 of digits", "slow_seconds": 0.02,
               "keys": ["batch.global=96", "batch.worker=8", "stop.epochs=15", "learning_rate.milestones=[5,10,13]", "checkpoint.best=false"]},
}
KINDS = {
    "ring": [],
    "ring, sharded state": ["parallel.shard_state=true"],
    "synchronous, 1 server": ["parallel.kind=server"],
    "synchronous, 4 servers": ["parallel.kind=server", "parallel.servers=4"],
    "asynchronous, no bound": ["parallel.kind=server", "parallel.mode=async"],
    "asynchronous, bound 2": ["parallel.kind=server", "parallel.mode=async", "parallel.max_staleness=2"],
    "asynchronous, bound 0": ["parallel.kind=server", "parallel.mode=async", "parallel.max_staleness=0"],
    "1 backup worker of 3": ["parallel.kind=server", "parallel.backup_workers=1"],
    "pipeline 2 x 2, 1F1B": ["parallel.kind=pipeline", "parallel.stages=2"],
    "pipeline 2 x 2, GPipe": ["parallel.kind=pipeline", "parallel.stages=2", "parallel.schedule=gpipe"],
}


def run(model, kind, slow):
    """Returns a row of the table and the records of the run."""
    facts = MODELS[model]
    folder, counts = WORK / "parallel_kinds" / f"{model}-{kind}-{slow}".replace(" ", "_"), WORK / "parallel_kinds.bytes"
    shutil.rmtree(folder, ignore_errors=True)
    for old in WORK.glob(counts.name + ".*"):
        old.unlink()
    micro = ["batch.micro=8"] if "pipeline" in kind else []
    slowness = ["test.slow_rank=3", f"test.slow_seconds={facts['slow_seconds']}"] if slow else []
    command = ["tests/mpirun.sh", RANKS, "bin/ringtrain", "train", facts["experiment"], *facts["keys"], *KINDS[kind], *micro, *slowness,
               "noise.every_steps=0", "run.threads=1", f"run.dir={folder}"]
    environment = {**os.environ, "LD_PRELOAD": str(WORK / "sent_bytes.so"), "SENT_BYTES": str(counts)}
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, text=True, capture_output=True)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    evaluations, elapsed = [], 0.0  # an evaluation has the time of the step before it
    for record in records:
        elapsed = record.get("elapsed_seconds", elapsed)
        if "validation_loss" in record:
            evaluations.append({**record, "elapsed_seconds": elapsed})
    start = json.loads((folder / "run.json").read_text())["starts"][-1]
    seconds = sum(step["seconds"] for step in steps)
    samples = sum(step["global_batch"] for step in steps)
    computing = [sum(rank[part] for part in ("forward", "backward", "update")) for rank in start["rank_seconds"]]
    sent = sum(int(path.read_text()) for path in WORK.glob(counts.name + ".*"))
    row = {"model": model, "kind": kind, "slow_rank": "yes" if slow else "no", "updates": len(steps), "samples": samples,
           "seconds": round(seconds, 2), "samples_per_second": round(samples / seconds, 1),
           "validation_loss": round(evaluations[-1]["validation_loss"], 4),
           "best_validation_loss": round(min(e["validation_loss"] for e in evaluations), 4),
           "computing_share_of_ranks": " ".join(f"{c / seconds:.2f}" for c in computing),
           "megabytes_sent_per_1000_samples": round(sent / samples / 1000, 3)}
    return row, evaluations


def draw(model, curves, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(2, 2, figsize=(13, 9), sharey=True)
    for (kind, slow), evaluations in curves.items():
        row = axes[1 if slow else 0]
        style = {"linestyle": {"r": "-", "1": "--", "2": "--", "a": ":", "p": "-.", "s": (0, (5, 1))}[kind[0]], "marker": ".", "label": kind}
        loss = [record["validation_loss"] for record in evaluations]
        row[0].plot([record["samples"] for record in evaluations], loss, **style)
        row[1].plot([record["elapsed_seconds"] for record in evaluations], loss, **style)
    for row, what in zip(axes, ("four equal ranks", "rank 3 sleeps in each of its steps")):
        row[0].set(title=f"{MODELS[model]['title']}: {what}", xlabel="samples", ylabel="validation loss")
        row[1].set(title=f"{MODELS[model]['title']}: {what}", xlabel="seconds")
    axes[0][1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    print("wrote", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--output", default="results/bench")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mpicc", "-shared", "-fPIC", "-O2", "-o", str(WORK / "sent_bytes.so"), "tests/bench/sent_bytes.c"], cwd=ROOT, check=True)
    for model in options.model or MODELS:
        rows, curves = [], {}
        for slow in False, True:
            for kind in KINDS:
                if options.only in kind:
                    row, curves[kind, slow] = run(model, kind, slow)
                    rows.append(row)
                    print(*row.values(), sep=" | ", flush=True)
        draw(model, curves, ROOT / options.output / f"parallel_{model}.png")
        with open(ROOT / options.output / f"parallel_{model}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
