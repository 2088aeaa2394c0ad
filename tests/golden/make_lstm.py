#!/usr/bin/env python3
"""Writes lstm.json: losses, gradients and final states of small char-LSTMs, computed by PyTorch in float64.

The model is nn.LSTM(one-hot, batch_first) + nn.Linear on every position. The loss is the mean cross-entropy over the
targets that count. Run by hand with a Python that has torch (tests/bench/setup_pytorch.sh makes one):
  python tests/golden/make_lstm.py
"""
from pathlib import Path

import torch
from golden import tensor, write

VOCABULARY, STEPS, BATCH, LAYERS = 7, 4, 3, 2
IGNORED = 255  # a target that does not count


def case(name, hidden, seed, masked=False, given_state=False, layers=LAYERS):
    torch.manual_seed(seed)
    lstm = torch.nn.LSTM(VOCABULARY, hidden, layers, batch_first=True).double()
    linear = torch.nn.Linear(hidden, VOCABULARY).double()
    for parameter in [*lstm.parameters(), *linear.parameters()]:
        torch.nn.init.uniform_(parameter, -0.5, 0.5)  # larger than the default, so that gates leave their linear range
    tokens = torch.randint(VOCABULARY, (BATCH, STEPS))
    targets = torch.randint(VOCABULARY, (BATCH, STEPS))
    if masked:  # left padding of different lengths, and one whole row
        targets[0, :2] = IGNORED
        targets[1, :] = IGNORED
        targets[2, :1] = IGNORED
    shape = (layers, BATCH, hidden)
    h0, c0 = (torch.randn(shape).double(), torch.randn(shape).double()) if given_state else (torch.zeros(shape).double(),) * 2

    one_hot = torch.nn.functional.one_hot(tokens, VOCABULARY).double()
    output, (h, c) = lstm(one_hot, (h0, c0))
    logits = linear(output)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), ignore_index=IGNORED)
    loss.backward()

    named = {**dict(lstm.named_parameters()), **{f"linear.{n}": p for n, p in linear.named_parameters()}}
    return {
        "name": name, "vocabulary": VOCABULARY, "hidden": hidden, "layers": layers, "steps": STEPS, "batch": BATCH,
        "ignored_target": IGNORED, "counted_targets": int((targets != IGNORED).sum()),
        "tokens": tensor(tokens), "targets": tensor(targets), "h0": tensor(h0), "c0": tensor(c0),
        "parameters": {n: tensor(p) for n, p in named.items()},
        "logits": tensor(logits), "loss": loss.item(), "h": tensor(h), "c": tensor(c),
        "gradients": {n: tensor(p.grad) for n, p in named.items()},
    }


if __name__ == "__main__":
    write(Path(__file__).parent / "lstm.json", {"torch": torch.__version__, "cases": [
        case("plain", hidden=5, seed=1),
        case("wide", hidden=9, seed=2),
        case("masked", hidden=8, seed=3, masked=True),
        case("given_state", hidden=5, seed=4, given_state=True),
    ]}, digits=7)
