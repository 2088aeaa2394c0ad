#!/usr/bin/env python3
"""Writes muon.json: the weights of a small model while Muon trains its matrices, and AdamW or SGD the rest, for 20
steps in float64. torch.optim.Muon (PyTorch 2.9 or later), whose products are bf16, must give nearly the same matrices.
AdamW and SGD are those of torch.optim, in float64.

Run by hand with a Python that has torch: python tests/golden/make_muon.py
"""
from pathlib import Path

import torch
from golden import tensor, write

STEPS = 20
SKIPPED = 8  # this step's gradient has overflowed: nothing may change, and the rate changes at the same step
SHOWN = [0, 8, 19]  # steps whose weights are in the file
RATES = [0.05, 0.1, 0.15] + [0.2] * 5 + [0.04] * 7 + [0.1] * 5  # begins with a warm-up
# Kind, whether it belongs to the first or the last layer, shape. There are wide, tall and square matrices, convolutions
# of both kinds, and one row.
TENSORS = {"last.weight": ("weight", True, (4, 6)), "last.bias": ("bias", True, (4,)),
           "wide.weight": ("weight", False, (6, 14)), "tall.weight": ("weight", False, (13, 5)),
           "square.weight": ("weight", False, (7, 7)), "wide_conv.weight": ("weight", False, (4, 2, 3, 3)),
           "tall_conv.weight": ("weight", False, (11, 1, 3, 3)), "row.weight": ("weight", False, (1, 7)),
           "norm.weight": ("norm", False, (6,)), "norm.bias": ("norm", False, (6,)),
           "hidden.bias": ("bias", False, (6,)), "first.weight": ("weight", True, (3, 2, 2, 2))}


def is_muons(name):
    kind, outer, _ = TENSORS[name]
    return kind == "weight" and not outer


def orthogonal(update):
    """Newton-Schulz of Jordan 2024, in the precision of the input."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.T if update.size(0) > update.size(1) else update
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if update.size(0) > update.size(1) else x


def muon(w, g, buffer, rate, options):
    """One step of the matrix w, following the source of torch.optim.Muon."""
    momentum = options.get("momentum", 0.9)
    buffer.lerp_(g, 1 - momentum)
    update = orthogonal(g.lerp(buffer, momentum))
    rows, columns = w.shape
    factor = 0.2 * max(rows, columns) ** 0.5 if options.get("muon_rate") == "match_rms_adamw" else max(1, rows / columns) ** 0.5
    w.mul_(1 - rate * options.get("weight_decay", 0))
    w.sub_(rate * factor * update)


def other(name, parameter, options):
    kind = TENSORS[name][0]
    decay = 0 if kind in options.get("no_decay", ["norm", "bias"]) else options.get("weight_decay", 0)
    if options.get("other_kind", "adamw") == "sgd":
        return torch.optim.SGD([parameter], lr=1, momentum=options.get("momentum", 0.9), weight_decay=decay)
    return torch.optim.AdamW([parameter], lr=1, betas=(options.get("beta1", 0.9), options.get("beta2", 0.999)),
                             eps=options.get("epsilon", 1e-8), weight_decay=decay)


def torch_muon(parameter, options):
    return torch.optim.Muon([parameter], lr=1, weight_decay=options.get("weight_decay", 0),
                            momentum=options.get("momentum", 0.9), adjust_lr_fn=options.get("muon_rate", "original"))


def step(optimizer, parameter, gradient, rate):
    optimizer.param_groups[0]["lr"] = rate
    parameter.grad = gradient
    optimizer.step()


def case(name, first, gradients, rate=1.0, **options):
    """`rate` multiplies RATES."""
    weights = {n: w.clone() for n, w in first.items()}
    flat = {n: w.view(w.size(0), -1) for n, w in weights.items() if is_muons(n)}
    buffers = {n: torch.zeros_like(w) for n, w in flat.items()}
    peers = {n: torch.nn.Parameter(w.float()) for n, w in flat.items()}
    optimizers = {n: torch_muon(p, options) for n, p in peers.items()}
    others = {n: torch.nn.Parameter(w) for n, w in weights.items() if not is_muons(n)}
    optimizers |= {n: other(n, p, options) for n, p in others.items()}
    shown = []
    for number, g in enumerate(gradients):
        now = rate * RATES[number]
        if number != SKIPPED:
            norm = torch.sqrt(sum((value ** 2).sum() for value in g.values())).item()
            clip = options.get("clip_norm", 0)
            scale = clip / norm if 0 < clip < norm else 1.0
            for n in TENSORS:
                own = scale * g[n]
                if is_muons(n):
                    muon(flat[n], own.view(flat[n].shape), buffers[n], now, options)
                    step(optimizers[n], peers[n], own.view(flat[n].shape).float(), now)
                else:
                    step(optimizers[n], others[n], own, now * options.get("other_rate", 1))
        if number in SHOWN:
            shown.append(torch.cat([weights[n].reshape(-1) for n in TENSORS]))
    for n, peer in peers.items():
        moved, difference = (flat[n] - first[n].view(flat[n].shape)).norm(), (peer - flat[n]).norm()
        assert difference < 0.02 * moved, f"{name}, {n}: torch.optim.Muon is {difference / moved:.3f} of the way apart"
    return {"name": name, "kind": "muon", "options": options, "rates": [rate * r for r in RATES], "weights": tensor(torch.stack(shown))}


if __name__ == "__main__":
    torch.manual_seed(3)
    first = {n: torch.randn(shape, dtype=torch.float64) * 0.3 for n, (_, _, shape) in TENSORS.items()}
    gradients = [{n: torch.randn(shape, dtype=torch.float64) * 10 ** (2 * torch.rand(1, dtype=torch.float64) - 2)
                  for n, (_, _, shape) in TENSORS.items()} for _ in range(STEPS)]
    # These gradients are zero for a whole matrix, and for all but the first row of another one.
    gradients[0]["square.weight"].zero_()
    gradients[5]["tall.weight"][1:] = 0
    cases = [case("AdamW for the rest", first, gradients, momentum=0.95, weight_decay=0.1, other_rate=0.1),
             case("SGD for the rest", first, gradients, momentum=0.9, weight_decay=0.1, other_kind="sgd", other_rate=2.0),
             case("rates of AdamW", first, gradients, rate=0.1, momentum=0.95, weight_decay=1.0, muon_rate="match_rms_adamw",
                  beta1=0.8, beta2=0.95, epsilon=1e-3),
             case("clipped, everything decays", first, gradients, momentum=0.8, weight_decay=0.1, no_decay=[],
                  clip_norm=0.5, other_rate=0.1)]
    write(Path(__file__).parent / "muon.json",
          {"torch": torch.__version__,
           "tensors": [{"name": n, "kind": kind, "outer": outer, "size": list(shape)}
                       for n, (kind, outer, shape) in TENSORS.items()],
           "skipped": SKIPPED, "shown": SHOWN, "start": tensor(torch.cat([first[n].reshape(-1) for n in TENSORS])),
           "gradients": tensor(torch.stack([torch.cat([g[n].reshape(-1) for n in TENSORS]) for g in gradients])),
           "cases": cases}, digits=7)
