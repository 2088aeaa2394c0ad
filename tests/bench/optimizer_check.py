#!/usr/bin/env python3
"""Checks experiments with every optimizer except plain Adam and AdamW against second implementations, the optimizers of
tests/golden with PyTorch's gradients. tests/golden/make_optimizers.py covers plain Adam and AdamW.

  make demo                                                       (for the program and the names)
  build/pytorch/bin/python tests/bench/optimizer_check.py         (about 5 minutes on 2 cores)

There are two models: a char-LSTM on names, and torchvision's ResNet-18 on images that the script makes. A step uses the
whole data set, so the order of samples does not matter. Both programs begin with ringtrain's initial weights. The
second one computes in float64. For comparison the table also has the difference between PyTorch's own fp32 and float64.
Writes results/bench/optimizers.csv. It holds the largest difference of the loss over 20 steps, relative to the first
loss. It also holds the difference of the worst tensor after these steps, relative to the distance that this tensor has
moved.
"""
import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import numpy
    import torch
    import torchvision
except ImportError as error:
    sys.exit(f"error: {sys.executable} cannot import {error.name}; tests/bench/setup_pytorch.sh makes an environment that can")

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "golden")]
import make_muon  # noqa: E402
from bench_tools import fail  # noqa: E402
from make_large_batch import RULES, Options  # noqa: E402
from noise_check import Generator, read_safetensors, ringtrain  # noqa: E402
from pet_names_pytorch import read_rows  # noqa: E402

WORK = ROOT / "build" / "optimizer_check"
STEPS, STEPS_PER_EPOCH = 20, 1
RATES = [1.0] * 8 + [0.5] * 6 + [0.25] * 6  # factors of the base rate

# kind of the reference, keys of the experiment, rate of the LSTM and of the ResNet
CASES = {
    "lars, paper": ("lars", {"optimizer.kind": "lars", "optimizer.weight_decay": 0.0005, "optimizer.trust_coefficient": 0.02,
                             "optimizer.no_trust": "[]", "optimizer.no_decay": "[]"}, 1.0, 0.03),
    "lars, mlperf": ("lars", {"optimizer.kind": "lars", "optimizer.weight_decay": 0.0005, "optimizer.trust_coefficient": 0.02,
                              "optimizer.lars_form": "mlperf"}, 1.0, 0.006),
    "lamb": ("lamb", {"optimizer.kind": "lamb", "optimizer.weight_decay": 0.01, "optimizer.epsilon": 1e-6}, 0.01, 0.0005),
    "rmsprop": ("rmsprop", {"optimizer.kind": "rmsprop", "optimizer.beta2": 0.95, "optimizer.clip_value": 0.01,
                            "optimizer.epsilon": 1e-4}, 0.002, 0.00003),
    "rmsprop_to_sgd": ("rmsprop_to_sgd", {"optimizer.kind": "rmsprop_to_sgd", "optimizer.beta2": 0.99, "optimizer.epsilon": 0.01,
                                          "optimizer.transition_center": 10, "optimizer.transition_length": 5}, 0.01, 0.0005),
    "sgd": ("sgd", {"optimizer.kind": "sgd", "optimizer.weight_decay": 0.0005}, 0.1, 0.002),
    "muon, AdamW for the rest": ("muon", {"optimizer.kind": "muon", "optimizer.momentum": 0.95, "optimizer.weight_decay": 0.1,
                                          "optimizer.other_rate": 0.1}, 0.01, 0.001),
    # The averages of the weights are compared. ResNet-18 is left out, because its norms' statistics would have to be
    # recomputed.
    "schedule-free sgd": ("schedule_free_sgd", {"optimizer.kind": "sgd", "optimizer.schedule_free": "true"}, 0.5, None),
    "schedule-free adamw": ("schedule_free_adamw", {"optimizer.kind": "adamw", "optimizer.schedule_free": "true",
                                                    "optimizer.weight_decay": 0.01}, 0.01, None),
}


def kind_of(name):
    if name.startswith(("bn", "norm")) or ".bn" in name or "downsample.1" in name:
        return "norm"
    return "bias" if "bias" in name else "weight"


def muon(o, kind, name, w, g, state, rate, applied):
    """Muon's reference on hidden matrices, and AdamW elsewhere. Both have decoupled decay, with the momentum and betas
    of `o`."""
    if kind == "weight" and name not in ("lstm.weight_ih_l0", "linear.weight", "conv1.weight", "fc.weight"):
        w, g = torch.from_numpy(w.copy()), torch.from_numpy(g)
        buffer = state.setdefault("buffer", torch.zeros(len(w), w[0].numel(), dtype=w.dtype))
        make_muon.muon(w.view(len(w), -1), g.reshape(len(g), -1), buffer, rate,
                       {"momentum": o.momentum, "weight_decay": o.weight_decay})
        return w.numpy()
    m, v = state.setdefault("m", numpy.zeros_like(w)), state.setdefault("v", numpy.zeros_like(w))
    rate, decay = rate * 0.1, 0 if kind in o.no_decay else o.weight_decay
    m[...] = o.beta1 * m + (1 - o.beta1) * g
    v[...] = o.beta2 * v + (1 - o.beta2) * g ** 2
    direction = m / (1 - o.beta1 ** applied) / (numpy.sqrt(v / (1 - o.beta2 ** applied)) + o.epsilon)
    return (1 - rate * decay) * w - rate * direction


def words(keys):
    return [f"{key}={value}" for key, value in keys.items()]


class Names:
    name = "char-LSTM, 2 x 32"
    rate = 0

    def __init__(self):
        source = WORK / "names.txt"
        lines = (ROOT / "data_prep" / "data" / "names.txt").read_text().splitlines()[:400]
        source.write_text("\n".join(lines) + "\n")
        subprocess.run([ROOT / "bin/ringtrain-data", "names", source, "--out", WORK / "names", "--force"], check=True, capture_output=True)
        self.rows, _ = read_rows(str(WORK / "names-train"))
        self.keys = {"name": "check", "model.hidden": 32, "model.layers": 2, "model.dropout": 0, "data.train": WORK / "names-train",
                     "data.validation": "", "batch.global": len(self.rows), "batch.worker": 1}

    def loss(self, weights, dtype):
        model = Generator(weights, 0.0, dtype)
        value, _ = model.forward(self.rows)
        return value / len(self.rows), model.weights


class Images:
    name = "ResNet-18, 16 images of 32 pixels"
    rate = 1

    def __init__(self):
        folder = WORK / "images"
        shutil.rmtree(folder, ignore_errors=True)
        generator = numpy.random.default_rng(3)
        for label in range(4):
            (folder / f"class{label}").mkdir(parents=True)
            for index in range(5):
                pattern = generator.integers(0, 256, (8, 8, 3)).repeat(4, 0).repeat(4, 1).astype(numpy.uint8)
                torchvision.io.write_png(torch.from_numpy(pattern).permute(2, 0, 1).contiguous(), str(folder / f"class{label}" / f"{index}.png"))
        subprocess.run([ROOT / "bin/ringtrain-data", "images", folder, "--out", WORK / "images-set", "--validation", "0.2", "--force"],
                       check=True, capture_output=True)
        self.keys = {"name": "check", "model.kind": "resnet", "model.depth": 18, "model.zero_gamma": "false", "data.train": WORK / "images-set-train",
                     "data.validation": "", "data.image_size": 32, "data.resize": 0, "data.augmentation": "none", "data.flip": "false",
                     "data.mean": "[0.5,0.5,0.5]", "data.std": "[0.25,0.25,0.25]",
                     "batch.global": 16, "batch.worker": 16}
        logits = WORK / "seen.safetensors"
        run = WORK / "seen"
        shutil.rmtree(run, ignore_errors=True)
        keys = self.keys | {"data.validation": self.keys["data.train"], "run.dir": run, "stop.steps": 1}
        ringtrain("train", EXPERIMENT, *words(keys))
        ringtrain("evaluate", run, "--logits", logits, "--samples", 16)
        seen = read_safetensors(logits)
        self.inputs = (seen["inputs"].double().permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
        self.labels = seen["targets"].reshape(-1)

    def loss(self, weights, dtype):
        model = torchvision.models.resnet18(num_classes=4).to(dtype)
        model.load_state_dict({name: value.to(dtype) for name, value in weights.items()}, strict=False)
        model.train()
        return torch.nn.functional.cross_entropy(model(self.inputs.to(dtype)), self.labels), dict(model.named_parameters())


EXPERIMENT = WORK / "base.yaml"
BASE = """name: check
data: {train: x}
batch: {global: 4, worker: 1}
stop: {steps: 1}
evaluate: {every_epochs: 0}
checkpoint: {every_epochs: 0}
"""


def train(task, name, keys, rate, steps):
    """Trains. Returns the losses of the run and its final weights."""
    run, weights = WORK / name, WORK / f"{name}.safetensors"
    shutil.rmtree(run, ignore_errors=True)
    schedule = {} if "optimizer.schedule_free" in keys else {
        "learning_rate.schedule": "points", "learning_rate.points": "[[0,1],[8,1],[8,0.5],[14,0.5],[14,0.25]]"}
    ringtrain("train", EXPERIMENT, *words(task.keys | keys | schedule | {
        "run.dir": run, "learning_rate.base": repr(rate), "stop.steps": steps}))
    ringtrain("export", run, "--newest", "--force", "--out", weights)
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return losses, {key: value for key, value in read_safetensors(weights).items() if "running_" not in key and "num_batches" not in key}


def reference(task, first, kind, keys, rate, dtype=torch.float64):
    """The second implementation. In fp32 too, the optimizer and its state are computed in float64."""
    given = {key.split(".")[1]: [] if value == "[]" else value for key, value in keys.items()
             if key not in ("optimizer.kind", "optimizer.schedule_free", "optimizer.other_rate")}
    options = Options(given)
    weights = {name: value.double() for name, value in first.items()}
    states, losses = {name: {} for name in weights}, []
    for step in range(STEPS):
        loss, parameters = task.loss(weights, dtype)
        gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))
        losses.append(loss.item())
        for name, gradient in gradients.items():
            g = gradient.double().numpy()
            if options.clip_value > 0:
                g = numpy.clip(g, -options.clip_value, options.clip_value)
            now = rate if kind.startswith("schedule_free") else rate * RATES[step]
            before = weights[name].detach().numpy()
            if kind == "muon":
                after = muon(options, kind_of(name), name, before, g, states[name], now, step + 1)
            else:
                after = RULES[kind](options, kind_of(name), before, g, states[name], now, step + 1, step / STEPS_PER_EPOCH)
            weights[name] = torch.from_numpy(after)
            weights[name] = weights[name].to(dtype).double()
    if kind.startswith("schedule_free"):
        weights = {name: torch.from_numpy(state["x"]) for name, state in states.items()}
    return losses, weights


def loss_apart(losses, expected):
    return max(abs(a - b) for a, b in zip(losses, expected)) / expected[0]


def weights_apart(weights, expected, first):
    """The difference of the tensor that differs most, relative to the distance that it has moved."""
    moved = {name: (expected[name] - value.double()).norm().item() for name, value in first.items()}
    return max((expected[name] - weights[name].double()).norm().item() / distance for name, distance in moved.items() if distance > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a case's name")
    options = parser.parse_args()
    cases = {case: facts for case, facts in CASES.items() if options.only in case}
    if not cases:
        fail(f"no case is called {options.only}; there are {'; '.join(CASES)}")
    WORK.mkdir(parents=True, exist_ok=True)
    EXPERIMENT.write_text(BASE)
    table = []
    for task in (Names(), Images()):
        for case, (kind, keys, *rates) in cases.items():
            rate = rates[task.rate]
            if rate is None:
                continue
            _, first = train(task, "first", {"optimizer.kind": "sgd"}, 1e-30, 1)
            first = {name: value * (value.abs() > 1e-20) for name, value in first.items()}  # biases begin at 0
            losses, weights = train(task, "run", keys, rate, STEPS)
            expected, expected_weights = reference(task, first, kind, keys, rate)
            single, single_weights = reference(task, first, kind, keys, rate, torch.float32)
            table.append({"model": task.name, "optimizer": case, "first_loss": expected[0], "last_loss": expected[-1],
                          "loss_apart": loss_apart(losses, expected), "loss_apart_pytorch_fp32": loss_apart(single, expected),
                          "weights_apart": weights_apart(weights, expected_weights, first),
                          "weights_apart_pytorch_fp32": weights_apart(single_weights, expected_weights, first)})
            print(", ".join(f"{value:.3g}" if isinstance(value, float) else value for value in table[-1].values()), flush=True)
    with open(ROOT / "results" / "bench" / "optimizers.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
