#!/usr/bin/env python3
"""Trains the pet-name study in PyTorch, on the split that ringtrain trains on, to see which validation loss it reaches.

  bin/ringtrain-data names seattle_pet_licenses.csv --column "Animal's Name" --out data_prep/data/pet_names
  build/pytorch/bin/python tests/bench/pet_names_pytorch.py --seed 1

The settings are those of configs/pet_names.yaml: 4 layers of 128 units, dropout 0.1, Adam at 0.001, batch 4096, 8
epochs. An epoch drops the last N mod 4096 samples of its order. The losses are means over all 8 positions, including
blanks, in nats. The program prints a line per epoch, and the last line is JSON. The order and the initial weights are
PyTorch's own, so compare final losses, not curves.
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path

try:
    import h5py
    import numpy
    import torch
except ImportError as error:
    sys.exit(f"error: {sys.executable} cannot import {error.name}; tests/bench/setup_pytorch.sh makes an environment that can")


def read_rows(prefix):
    """Returns the tokens [N, L + 1] of all shards and the number of symbols."""
    folder = Path(prefix).parent
    paths = sorted(folder.glob(Path(prefix).name + "-?????-of-?????.h5"))
    if not paths:
        sys.exit(f"error: there are no files {prefix}-00000-of-*.h5; bin/ringtrain-data names ... --out makes them (see --help)")
    rows = []
    for path in paths:
        with h5py.File(path, "r") as file:
            rows.append(file["tokens"][:])
            symbols = len(file["tokens"].attrs["vocab"])
    rows = numpy.concatenate(rows)
    if rows.ndim != 2:
        sys.exit(f"error: {paths[0]} holds running text, not names")
    return torch.from_numpy(rows.astype(numpy.int64)), symbols


class Generator(torch.nn.Module):
    def __init__(self, symbols, hidden, layers, dropout):
        super().__init__()
        self.symbols = symbols
        self.lstm = torch.nn.LSTM(symbols, hidden, layers, dropout=dropout, batch_first=True)
        self.linear = torch.nn.Linear(hidden, symbols)

    def forward(self, tokens):
        return self.linear(self.lstm(torch.nn.functional.one_hot(tokens, self.symbols).float())[0])


def loss_of(model, rows, reduction="mean"):
    logits = model(rows[:, :-1])
    return torch.nn.functional.cross_entropy(logits.reshape(-1, model.symbols), rows[:, 1:].reshape(-1), reduction=reduction)


def validation_loss(model, rows, batch):
    model.eval()
    with torch.no_grad():
        total = sum(loss_of(model, part, "sum").double().item() for part in rows.split(batch))
    model.train()
    return total / rows[:, 1:].numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data_prep/data/pet_names", help="prefix; -train and -validation follow [data_prep/data/pet_names]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=0, help="[PyTorch's choice]")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    train, symbols = read_rows(options.data + "-train")
    validation, _ = read_rows(options.data + "-validation")
    steps = len(train) // options.batch
    if not steps:
        sys.exit(f"error: --batch {options.batch} is more than the {len(train)} training samples")
    torch.manual_seed(options.seed)
    model = Generator(symbols, options.hidden, options.layers, options.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    print(f"{len(train):,} training and {len(validation):,} validation samples, {symbols} symbols, {steps} steps an epoch, "
          f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    start, losses = time.perf_counter(), []
    for epoch in range(options.epochs):
        order = torch.randperm(len(train))
        training_sum = 0.0
        for chosen in order[:steps * options.batch].split(options.batch):
            optimizer.zero_grad()
            loss = loss_of(model, train[chosen])
            if not math.isfinite(loss.item()):
                sys.exit(f"error: the loss of epoch {epoch + 1} is {loss.item()}")
            loss.backward()
            optimizer.step()
            training_sum += loss.item()
        losses.append(validation_loss(model, validation, options.batch))
        print(f"epoch {epoch + 1}: training loss {training_sum / steps:.4f}, validation loss {losses[-1]:.4f}, "
              f"{time.perf_counter() - start:.0f} s", flush=True)
    print(json.dumps({"validation_loss": losses[-1], "validation_losses": losses, "seed": options.seed, "batch": options.batch,
                      "epochs": options.epochs, "lr": options.lr, "train_samples": len(train),
                      "validation_samples": len(validation), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
