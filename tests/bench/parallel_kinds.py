#!/usr/bin/env python3
"""Compares ways of training in parallel on 4 ranks at an equal global batch: ring, sharded state, parameter servers
(synchronous, asynchronous, and with a backup worker) and pipelines. Each way runs with equal ranks and with a slow rank
3; ways whose server has a rank of its own also run with a slow server.

  tests/bench/parallel_kinds.py                      all, about 20 minutes on 2 cores
  tests/bench/parallel_kinds.py --only async --model names --runs 1

Needs the data of `make demo` and `make study` (data_prep/study_data.sh names, digits). Each row is the median of --runs
runs, which take turns: all rows once, then all rows again. Writes results/bench/parallel_MODEL.csv, and
parallel_MODEL.png if Python has matplotlib, and prints the table for results/bench/parallel.md. Bytes and times are
those that the program records (rank_bytes and rank_seconds in run.json).
"""
import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
import time

from bench_tools import ROOT, WORK, fail

RANKS = 4
# batch.global fits 4 workers and 3, so that servers may have a rank of their own.
MODELS = {
    "names": {"experiment": "configs/names.yaml", "title": "char-LSTM of names", "slow_seconds": 0.02,
              "keys": ["batch.global=192", "batch.worker=16", "stop.epochs=0.5", "evaluate.every_epochs=0.0625", "checkpoint.best=false"]},
    "digits": {"experiment": "configs/digits_resnet18.yaml", "title": "ResNet-18 of digits", "slow_seconds": 0.02,
               "keys": ["batch.global=96", "batch.worker=8", "stop.epochs=10", "learning_rate.milestones=[4,7,9]", "checkpoint.best=false"]},
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


# What is slow: nothing, a rank that computes, or the server. Server 0 is rank 0.
SLOW = {"nothing": None, "rank": RANKS - 1, "server": 0}


def has_own_server(kind):
    return kind.startswith(("asynchronous", "1 backup"))


def shares(ranks, parts, seconds):
    """For each rank, the share of the steps' time that these parts took."""
    return " ".join(f"{sum(rank.get(part, 0) for part in parts) / seconds:.2f}" for rank in ranks)


def run(model, kind, slow):
    """Returns the figures of a run, and its evaluations."""
    facts = MODELS[model]
    folder = WORK / "parallel_kinds" / f"{model}-{kind}-{slow}".replace(" ", "_")
    shutil.rmtree(folder, ignore_errors=True)
    micro = ["batch.micro=8"] if "pipeline" in kind else []
    slowness = [] if SLOW[slow] is None else [f"test.slow_rank={SLOW[slow]}", f"test.slow_seconds={facts['slow_seconds']}"]
    command = ["tests/mpirun.sh", RANKS, "bin/ringtrain", "train", facts["experiment"], *facts["keys"], *KINDS[kind], *micro, *slowness,
               "noise.every_steps=0", "run.threads=1", f"run.dir={folder}"]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, text=True, capture_output=True)
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
    ranks, sent = start["rank_seconds"], start["rank_bytes"]
    counts = {int(stale): updates for stale, updates in start.get("staleness", {}).items()}
    figures = {"updates": len(steps), "samples": samples, "seconds": round(seconds, 2),
               "samples_per_second": round(samples / seconds, 1),
               "validation_loss": round(evaluations[-1]["validation_loss"], 4),
               "best_validation_loss": round(min(e["validation_loss"] for e in evaluations), 4),
               "mb_by_message_per_1000_samples": round(sum(rank["sent"] for rank in sent) / samples / 1000, 3),
               "mb_through_memory_per_1000_samples": round(sum(rank["shared"] for rank in sent) / samples / 1000, 3),
               "mean_staleness": round(sum(s * n for s, n in counts.items()) / sum(counts.values()), 3) if counts else "",
               "dropped_gradients": start.get("dropped_gradients", ""),
               "computing_share_of_ranks": shares(ranks, ("forward", "backward", "update"), seconds),
               "bubble_share_of_ranks": shares(ranks, ("bubble",), seconds),
               "boundary_share_of_ranks": shares(ranks, ("boundary",), seconds),
               "server_wait_share_of_ranks": shares(ranks, ("server",), seconds),
               "worker_wait_share_of_ranks": shares(ranks, ("workers",), seconds)}
    return figures, evaluations


def median_row(runs):
    """The row and the evaluations of the run with the median speed. The row also has the slowest and the fastest speed.
    Its losses are medians of all runs, because the losses of asynchronous runs differ."""
    runs = sorted(runs, key=lambda run: run[0]["samples_per_second"])
    figures, evaluations = runs[(len(runs) - 1) // 2]
    rates = [own["samples_per_second"] for own, _ in runs]
    row = dict(figures)
    for key in "validation_loss", "best_validation_loss":
        row[key] = round(statistics.median(own[key] for own, _ in runs), 4)
    return {**row, "runs": len(runs), "samples_per_second_min": rates[0], "samples_per_second_max": rates[-1]}, evaluations


def least_to_most(text):
    values = [float(value) for value in text.split()]
    return f"{100 * min(values):.0f} to {100 * max(values):.0f} %"


def markdown(rows):
    """The table of a page: a line for each way."""
    by_kind = {}
    for row in rows:
        by_kind.setdefault(row["kind"], {})[row["slow"]] = row
    ring = next((row["samples_per_second"] for row in rows if (row["kind"], row["slow"]) == ("ring", "nothing")), None)
    lines = ["| way | updates | loss | samples/s | against the ring | computing | MB by message | MB through memory | "
             "slow rank: loss | slow rank: samples/s | slow server: loss | slow server: samples/s |", "|" + "---|" * 12]
    for kind, own in by_kind.items():
        plain = own["nothing"]
        against = f"{plain['samples_per_second'] / ring:.2f}" if ring else "-"
        cells = [kind, plain["updates"], plain["validation_loss"], f"{plain['samples_per_second']:,.0f}", against,
                 least_to_most(plain["computing_share_of_ranks"]), f"{plain['mb_by_message_per_1000_samples']:.1f}",
                 f"{plain['mb_through_memory_per_1000_samples']:.1f}"]
        for slow in "rank", "server":
            cells += [own[slow]["validation_loss"], f"{own[slow]['samples_per_second']:,.0f}"] if slow in own else ["-", "-"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def draw(model, curves, path):
    try:
        import matplotlib
    except ImportError:
        return print("no picture: this Python has no matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    sys.path.insert(0, str(ROOT / "results"))
    from reporting import pictures
    titles = {"nothing": "four equal ranks", "rank": "rank 3 sleeps in each of its steps",
              "server": "the server sleeps in each update"}
    shown = [slow for slow in SLOW if any(own == slow for _, own in curves)]
    figure, axes = plt.subplots(len(shown), 2, figsize=(13, 4.5 * len(shown)), sharey=True, squeeze=False)
    for (kind, slow), evaluations in curves.items():
        row = axes[shown.index(slow)]
        style = {"linestyle": {"r": "-", "1": "--", "2": "--", "a": ":", "p": "-.", "s": (0, (5, 1))}[kind[0]], "marker": ".",
                 "color": f"C{list(KINDS).index(kind)}", "label": kind}
        loss = [record["validation_loss"] for record in evaluations]
        row[0].plot([record["samples"] for record in evaluations], loss, **style)
        row[1].plot([record["elapsed_seconds"] for record in evaluations], loss, **style)
    for row, slow in zip(axes, shown):
        row[0].set(title=f"{MODELS[model]['title']}: {titles[slow]}", xlabel="samples", ylabel="validation loss")
        row[1].set(title=f"{MODELS[model]['title']}: {titles[slow]}", xlabel="seconds")
    axes[0][1].legend(fontsize=8)
    figure.tight_layout()
    pictures.save(figure, path, dpi=100)
    print("wrote", path)


def compare(model, options):
    """Runs all rows once, then all rows again, so that a busy minute of the machine does not hit one row alone."""
    wanted = [(kind, slow) for slow in SLOW for kind in KINDS
              if options.only in kind and (slow != "server" or has_own_server(kind))]
    if not wanted:
        fail(f"no way is called {options.only}")
    runs = {key: [] for key in wanted}
    for number in range(options.runs):
        for kind, slow in wanted:
            begin = time.monotonic()
            runs[kind, slow].append(run(model, kind, slow))
            figures = runs[kind, slow][-1][0]
            print(f"{model}, {kind}, slow: {slow}, run {number + 1} of {options.runs}: {figures['samples_per_second']:,.0f} samples/s, "
                  f"loss {figures['validation_loss']}, {time.monotonic() - begin:.1f} s in all", flush=True)
    rows, curves = [], {}
    for (kind, slow), own in runs.items():
        row, curves[kind, slow] = median_row(own)
        rows.append({"model": model, "kind": kind, "slow": slow, **row})
    return rows, curves


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="ways whose name contains this")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--runs", type=int, default=3, help="runs of each row; the row is their median [3]")
    parser.add_argument("--output", default="results/bench")
    options = parser.parse_args()
    if options.runs < 1:
        fail("--runs must be at least 1")
    WORK.mkdir(parents=True, exist_ok=True)
    (ROOT / options.output).mkdir(parents=True, exist_ok=True)
    for model in options.model or MODELS:
        rows, curves = compare(model, options)
        with open(ROOT / options.output / f"parallel_{model}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(markdown(rows))
        draw(model, curves, ROOT / options.output / f"parallel_{model}.png")


if __name__ == "__main__":
    main()
