#!/usr/bin/env python3
"""Compares the gradient noise scale of configs/names.yaml with PyTorch's gradient of every single sample, at the same
weights.

  make demo                                                  (for the data set and the program)
  build/pytorch/bin/python tests/bench/noise_check.py --epochs 0.5 3

For each value of --epochs, ringtrain trains that many epochs and exports the weights. It then trains on at a rate of
almost zero, so that the weights stay as they are, and averages its estimates over --passes epochs. PyTorch computes the
gradient of every training sample at these weights, with its own dropout masks. From these gradients it computes
tr(Sigma) and |G|^2 without any estimate from batches. Writes both programs' values, for the population and for the
training set, to results/bench/noise_names.csv.
"""
import argparse
import csv
import json
import math
import subprocess
import sys
from pathlib import Path

try:
    import h5py  # noqa: F401
    import numpy
    import torch
except ImportError as error:
    sys.exit(f"error: {sys.executable} cannot import {error.name}; tests/bench/setup_pytorch.sh makes an environment that can")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "bench"))
from pet_names_pytorch import read_rows  # noqa: E402

WORK = ROOT / "build" / "noise_check"
EXPERIMENT = "configs/names.yaml"
SMALL_BATCH = 32


def ringtrain(*words, ranks=1):
    launcher = ["tests/mpirun.sh", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*launcher, "bin/ringtrain", *map(str, words)], cwd=ROOT, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: ringtrain {' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    types = {"U8": numpy.uint8, "F32": numpy.float32, "I64": numpy.int64, "I32": numpy.int32}
    return {name: torch.from_numpy(numpy.frombuffer(data[8 + length:][slice(*entry["data_offsets"])], types[entry["dtype"]])
                                   .reshape(entry["shape"]).copy())
            for name, entry in header.items() if name != "__metadata__"}


class Generator:
    """The char-LSTM written out step by step. It keeps the inputs of every matrix product."""

    def __init__(self, weights, dropout, dtype=torch.float64):
        self.weights = {name: value.detach().to(dtype).requires_grad_() for name, value in weights.items()}
        self.layers = sum(name.startswith("lstm.weight_ih") for name in weights)
        self.dense = next(name.removesuffix(".weight") for name in weights if not name.startswith("lstm.") and name.endswith("weight"))
        self.dropout = dropout
        self.dtype = dtype

    def forward(self, rows):
        """Returns the sum of the samples' mean losses, and x and the result of every product W x + b, [N, L, .]."""
        w = self.weights
        symbols, hidden = w[self.dense + ".weight"].shape
        products = []
        values = torch.eye(symbols, dtype=self.dtype)[rows[:, :-1]]
        for layer in range(self.layers):
            input_part = values @ w[f"lstm.weight_ih_l{layer}"].T + w[f"lstm.bias_ih_l{layer}"]
            h = c = torch.zeros(len(rows), hidden, dtype=self.dtype)
            before, gates, after = [], [], []
            for t in range(values.shape[1]):
                before.append(h)
                gates.append(input_part[:, t] + h @ w[f"lstm.weight_hh_l{layer}"].T + w[f"lstm.bias_hh_l{layer}"])
                gates[-1].retain_grad()
                i, f, g, o = gates[-1].chunk(4, 1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                after.append(h)
            products += [(values, gates), (torch.stack(before, 1), gates)]
            values = torch.stack(after, 1)
            if layer + 1 < self.layers:
                values = torch.nn.functional.dropout(values, self.dropout)
        logits = values @ w[self.dense + ".weight"].T + w[self.dense + ".bias"]
        logits.retain_grad()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, symbols), rows[:, 1:].reshape(-1), reduction="sum")
        return loss / values.shape[1], products + [(values, [logits])]


def squared_norms(products):
    """Squared norms of the gradients of all W and b, summed over samples. The gradient of one sample's W is sum_t d_t
    x_t^T, and that of its b is sum_t d_t. Their squared norms are therefore sums over pairs of positions of (d_t
    d_s)(x_t x_s) and of d_t d_s."""
    total = 0.0
    for x, results in products:
        d = results[0].grad if len(results) == 1 else torch.stack([result.grad for result in results], 1)
        pairs = d @ d.transpose(1, 2)
        total += (pairs * (x @ x.transpose(1, 2))).sum().item() + pairs.sum().item()
    return total


def of_every_sample(weights, rows, dropout):
    """Returns tr(Sigma), and |G|^2 of the population and of the training set."""
    torch.manual_seed(1)
    model = Generator(weights, dropout)
    squares, count = 0.0, len(rows)
    for part in rows.split(1024):
        loss, products = model.forward(part)
        loss.backward()
        squares += squared_norms(products)
    training_set = sum((value.grad / count).square().sum().item() for value in model.weights.values())
    trace = (squares / count - training_set) * count / (count - 1)
    return trace, training_set - trace / count, training_set


def of_ringtrain(weights_file, passes, data, samples):
    """Returns the same values from the averages of a run whose weights stay as they are, with the 95 % interval of its
    noise scale."""
    run = WORK / "still"
    subprocess.run(["rm", "-rf", run], check=True)
    settings = [f"run.dir={run}", *data, "learning_rate.base=1e-30", f"stop.epochs={passes}", "evaluate.every_epochs=0",
                "learning_rate.schedule=constant", "learning_rate.factor=0.1", f"noise.small_batch={SMALL_BATCH}",
                "noise.half_life=1000000000000", "seed=2"]
    ringtrain("import", weights_file, EXPERIMENT, *settings)
    ringtrain("train", EXPERIMENT, *settings, "--resume", ranks=2)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "noise_trace" in step]
    trace = sum(step["noise_trace"] for step in steps) / len(steps)
    gradient = sum(step["noise_gradient"] for step in steps) / len(steps)
    last = steps[-1]
    return trace, gradient, gradient + trace / samples, last["noise_scale_low"], last["noise_scale_high"], len(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data_prep/data/names", help="prefix; -train and -validation follow")
    parser.add_argument("--epochs", type=float, nargs="+", default=[0.5, 3])
    parser.add_argument("--passes", type=int, default=4)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    rows, _ = read_rows(str(ROOT / options.data) + "-train")
    data = [f"data.train={options.data}-train", f"data.validation={options.data}-validation"]
    table = []
    for epochs in options.epochs:
        run, weights = WORK / f"trained-{epochs}", WORK / f"weights-{epochs}.safetensors"
        subprocess.run(["rm", "-rf", run], check=True)
        ringtrain("train", EXPERIMENT, *data, f"run.dir={run}", f"stop.epochs={epochs}", ranks=2)
        ringtrain("export", run, "--newest", "--force", "--out", weights)
        theirs = of_every_sample(read_safetensors(weights), rows, dropout=0.1)
        ours = of_ringtrain(weights, options.passes, data, len(rows))
        *parts, low, high, steps = ours
        for what, index in (("population", 1), ("training set", 2)):
            row = {"epochs": epochs, "of": what, "trace_pytorch": theirs[0], "trace_ringtrain": parts[0],
                   "gradient_pytorch": theirs[index], "gradient_ringtrain": parts[index],
                   "noise_scale_pytorch": theirs[0] / theirs[index], "noise_scale_ringtrain": parts[0] / parts[index]}
            if what == "population":
                row |= {"low": low, "high": high, "steps": steps}
            table.append(row)
            print({name: round(value, 5) if isinstance(value, float) and math.isfinite(value) else value
                   for name, value in row.items()}, flush=True)
    with open(ROOT / "results" / "bench" / "noise_names.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
