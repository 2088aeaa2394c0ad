#!/usr/bin/env python3
"""Writes optimizers.json: parameters after each of 5 updates with given gradients, computed by PyTorch in float64.

Run by hand with a Python that has torch: python tests/golden/make_optimizers.py
"""
from pathlib import Path

import torch
from golden import tensor, write

ELEMENTS, UPDATES = 8, 5
# The rate changes on the way, so that a rate kept inside the momentum buffer would give other values.
RATES = [0.1, 0.1, 0.02, 0.05, 0.05]


def case(name, kind, **options):
    torch.manual_seed(7)
    parameter = torch.nn.Parameter(torch.randn(ELEMENTS, dtype=torch.float64))
    gradients = torch.randn(UPDATES, ELEMENTS, dtype=torch.float64) * torch.logspace(-3, 1, ELEMENTS, dtype=torch.float64)
    gradients[1, 0] = 0
    start = parameter.detach().clone()
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    optimizer = make([parameter], lr=RATES[0], **options)
    trajectory = []
    for rate, gradient in zip(RATES, gradients):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = gradient.clone()
        optimizer.step()
        trajectory.append(parameter.detach().clone())
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    return {"name": name, "kind": kind, "momentum": options.get("momentum", 0.0), "nesterov": options.get("nesterov", False),
            "weight_decay": options.get("weight_decay", 0.0), "beta1": beta1, "beta2": beta2, "epsilon": options.get("eps", 1e-8),
            "rates": RATES, "start": tensor(start), "gradients": tensor(gradients),
            "trajectory": tensor(torch.stack(trajectory))}


if __name__ == "__main__":
    write(Path(__file__).parent / "optimizers.json", {"torch": torch.__version__, "cases": [
        case("sgd", "sgd"),
        case("sgd, momentum", "sgd", momentum=0.9),
        case("sgd, Nesterov, weight decay", "sgd", momentum=0.9, nesterov=True, weight_decay=0.01),
        case("sgd, momentum, weight decay", "sgd", momentum=0.9, weight_decay=0.01),
        case("adam", "adam", weight_decay=0.0),
        case("adam, weight decay", "adam", weight_decay=0.1),
        case("adam, other betas", "adam", betas=(0.8, 0.95), eps=1e-3, weight_decay=0.0),
        case("adamw, no decay", "adamw", weight_decay=0.0),
        case("adamw, weight decay", "adamw", weight_decay=0.1),
    ]})
