#!/usr/bin/env python3
"""Measures the cost of measuring the gradient noise scale, for ResNet-50 at 224 px and the char-LSTM 4 x 512, with and
without accumulation.

  tests/bench/noise_cost.py                                   everything, about 13 minutes on 2 cores
  tests/bench/noise_cost.py --only ResNet-50 --seconds 120    a part

In a run every second step measures the noise scale (noise.every_steps 2), so that the state of the machine is the same
for both kinds of step. The cost is the median, over pairs of neighbouring steps, of the ratio of their times. The
interval holds 95 % of the medians of resampled pairs. Writes results/bench/noise_cost.csv.
"""
import argparse
import csv
import json
import random
import shutil
import statistics

import lstm_bench
import resnet_bench
from bench_tools import ROOT, WORK, about, call, fail, ringtrain_command

RESNET = {"model": "{kind: resnet, depth: 50, stem: imagenet}", "data": f"{{train: {resnet_bench.DATA}-train, image_size: 224}}",
          "optimizer": "{kind: sgd, momentum: 0.9, weight_decay: 0.0001}", "learning_rate": "{base: 0.01}"}
LSTM = {"model": "{kind: char_lstm, layers: 4, hidden: 512, dropout: 0.1}", "data": f"{{train: {WORK / 'text'}-train, sequence: 64}}",
        "optimizer": "{kind: adam}", "learning_rate": "{base: 0.001}"}
# model, precision, global batch, batch.worker, samples of one pass, ranks; one or four passes a step and rank
CASES = [("ResNet-50", RESNET, "fp32", 16, 8, 8, 2), ("ResNet-50", RESNET, "fp32", 32, 4, 4, 2),
         ("char-LSTM 4 x 512", LSTM, "fp32", 64, 16, 32, 2), ("char-LSTM 4 x 512", LSTM, "fp32", 256, 16, 32, 2),
         ("char-LSTM 4 x 512", LSTM, "fp32", 64, 16, 8, 2)]


def run(case, options, every_steps):
    name, keys, precision, batch, worker, micro_batch, ranks = case
    path, run_dir = WORK / "noise_cost.yaml", WORK / "noise_cost"
    lines = [f"{key}: {value}" for key, value in keys.items()]
    path.write_text("\n".join(["name: noise_cost", f"precision: {precision}", *lines,
                               f"batch: {{global: {batch}, worker: {worker}, micro: {micro_batch}}}", f"noise: {{every_steps: {every_steps}}}",
                               f"stop: {{seconds: {options.seconds}}}", "evaluate: {every_epochs: 0}",
                               "checkpoint: {every_epochs: 0, best: false}", "run: {log_every_steps: 1000000}"]) + "\n")
    shutil.rmtree(run_dir, ignore_errors=True)
    call(ringtrain_command(path, run_dir, ranks, 2))
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    return [step for step in steps if step["elapsed_seconds"] >= options.warmup_seconds]


def cost(steps):
    """Returns the median ratio of neighbouring steps with and without the measurement, its interval, and the number of
    pairs. The two kinds take turns to come first in a pair, which removes a slow drift."""
    ratios = []
    for one, other in zip(steps, steps[1:]):
        measured, plain = (one, other) if "noise_trace" in one else (other, one)
        if "noise_trace" in measured and "noise_trace" not in plain:
            ratios.append(measured["seconds"] / plain["seconds"])
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949], len(ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one model")
    parser.add_argument("--seconds", type=float, default=150, help="seconds of each case")
    parser.add_argument("--warmup-seconds", type=float, default=10)
    parser.add_argument("--output", default="results/bench/noise_cost.csv")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in (None, case[0])]
    if not cases:
        fail(f"no model is called {options.only}; there are {', '.join(dict.fromkeys(case[0] for case in CASES))}")
    WORK.mkdir(parents=True, exist_ok=True)
    resnet_bench.make_data()
    lstm_bench.make_data()
    rows = []
    for case in cases:
        name, _, precision, batch, _, micro_batch, ranks = case
        steps = run(case, options, 2)
        median, low, high, pairs = cost(steps)
        plain = statistics.median(step["seconds"] for step in steps if "noise_trace" not in step)
        rows.append({"model": name, "precision": precision, "ranks": ranks, "global_batch": batch, "passes": batch // (micro_batch * ranks),
                     "step_seconds": round(plain, 4), "cost": round(median - 1, 5), "cost_low": round(low - 1, 5),
                     "cost_high": round(high - 1, 5), "pairs": pairs})
        print(rows[-1], flush=True)
    facts = about(argparse.Namespace(seconds=options.seconds, only=options.only), "was not used")
    with open(ROOT / options.output, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames={**rows[0], **facts})
        writer.writeheader()
        writer.writerows({**row, **facts} for row in rows)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
