#!/usr/bin/env python3
"""Writes large_batch.json: the weights of a small model while LARS, LAMB, RMSprop, RMSprop-to-SGD, SGD, and
schedule-free SGD and AdamW train it for 20 steps in float64. The script uses plain numpy and follows the formulas of
the papers one after another.

Run by hand with a Python that has numpy: python tests/golden/make_large_batch.py
"""
from pathlib import Path

import numpy as np
from golden import tensor, write

STEPS = 20
SKIPPED = 8  # this step's gradient has overflowed: nothing may change, and the rate changes at the same step
SHOWN = [0, 8, 19]  # steps whose weights are in the file
# The weight and the bias of a dense layer, and gamma and beta of a norm. start() gives them a model's initial values:
# gamma 1, beta and bias 0.
TENSORS = {"dense.weight": ("weight", (6, 5)), "norm.weight": ("norm", (5,)), "norm.bias": ("norm", (5,)),
           "dense.bias": ("bias", (6,))}
RATES = [0.05, 0.1, 0.15] + [0.2] * 5 + [0.04] * 7 + [0.1] * 5  # begins with a warm-up
EPOCHS = [step / 4 for step in range(STEPS)]  # finished epochs


def start(random):
    return {"dense.weight": random.normal(size=(6, 5)) * 0.3, "norm.weight": np.ones(5), "norm.bias": np.zeros(5),
            "dense.bias": np.zeros(6)}


def gradients(random):
    all_steps = []
    for step in range(STEPS):
        g = {name: random.normal(size=shape) * 10 ** random.uniform(-2, 0) for name, (_, shape) in TENSORS.items()}
        if step in (0, 5):
            g["norm.weight"][:] = 0  # a whole tensor
        all_steps.append(g)
    return all_steps


class Options:
    """The keys of an experiment's optimizer section, with their defaults."""

    def __init__(self, given):
        self.momentum, self.weight_decay, self.no_decay = 0.9, 0.0, ["norm", "bias"]
        self.beta1, self.beta2, self.epsilon = 0.9, 0.999, 1e-8
        self.trust_coefficient, self.lars_form, self.no_trust = 0.001, "paper", ["norm", "bias"]
        self.trust_undecayed = False
        self.transition_center, self.transition_length, self.transition_rate = 10.0, 5.0, 0.0003
        self.clip_norm, self.clip_value = 0.0, 0.0
        self.schedule_free = False
        for key, value in given.items():
            assert hasattr(self, key), key
            setattr(self, key, value)


def lars(o, kind, w, g, state, rate, applied, epoch):
    """You et al. 2017, algorithm 1. The excluded kinds are as in MLPerf's lars_optimizer.py."""
    v = state.setdefault("v", np.zeros_like(w))
    beta = 0 if kind in o.no_decay else o.weight_decay
    local = 1.0
    if kind in o.no_trust:
        if o.lars_form == "mlperf":
            beta = 0
    elif np.linalg.norm(w) > 0 and (o.lars_form == "paper" or np.linalg.norm(g) > 0):
        local = o.trust_coefficient * np.linalg.norm(w) / (np.linalg.norm(g) + beta * np.linalg.norm(w))
    v[...] = o.momentum * v + rate * local * (g + beta * w)
    return w - v


def lamb(o, kind, w, g, state, rate, applied, epoch):
    """apex's FusedLAMB, with decoupled decay and bias correction."""
    m, v = state.setdefault("m", np.zeros_like(w)), state.setdefault("v", np.zeros_like(w))
    decay = 0 if kind in o.no_decay else o.weight_decay
    m[...] = o.beta1 * m + (1 - o.beta1) * g
    v[...] = o.beta2 * v + (1 - o.beta2) * g ** 2
    m_hat, v_hat = m / (1 - o.beta1 ** applied), v / (1 - o.beta2 ** applied)
    u = m_hat / (np.sqrt(v_hat) + o.epsilon) + decay * w
    ratio = 1.0
    if (decay > 0 or o.trust_undecayed) and np.linalg.norm(w) > 0 and np.linalg.norm(u) > 0:
        ratio = np.linalg.norm(w) / np.linalg.norm(u)
    return w - rate * ratio * u


def rmsprop(o, kind, w, g, state, rate, applied, epoch):
    """Torch7's optim.rmsprop, which char-rnn uses."""
    m = state.setdefault("m", np.zeros_like(w))
    g = g + (0 if kind in o.no_decay else o.weight_decay) * w
    m[...] = o.beta2 * m + (1 - o.beta2) * g ** 2
    return w - rate * g / (np.sqrt(m) + o.epsilon)


def rmsprop_to_sgd(o, kind, w, g, state, rate, applied, epoch):
    """Akiba et al. 2017, with a continuous alpha_SGD. RMSprop has a rate of its own, and `rate` is that of SGD."""
    m, delta = state.setdefault("m", np.zeros_like(w)), state.setdefault("delta", np.zeros_like(w))
    since = epoch - o.transition_center
    if since < 0:
        alpha = 0.5 * np.exp(2 * since / o.transition_length)
    elif since < o.transition_length / 2:
        alpha = 0.5 + since / o.transition_length
    else:
        alpha = 1.0
    g = g + (0 if kind in o.no_decay else o.weight_decay) * w
    m[...] = o.beta2 * m + (1 - o.beta2) * g ** 2
    alpha_rmsprop = (1 - alpha) * o.transition_rate / rate
    delta[...] = o.momentum * delta - (alpha + alpha_rmsprop / (np.sqrt(m) + o.epsilon)) * g
    return w + rate * delta


def sgd(o, kind, w, g, state, rate, applied, epoch):
    u = state.setdefault("u", np.zeros_like(w))
    u[...] = o.momentum * u + g + (0 if kind in o.no_decay else o.weight_decay) * w
    return w - rate * u


def schedule_free(o, w, u, state, rate, beta):
    """Defazio et al. 2024, algorithm 1, with z and x stored separately. Returns y. `w` is the previous y."""
    z, x = state.setdefault("z", w.copy()), state.setdefault("x", w.copy())
    largest = state["largest"] = max(state.get("largest", 0), rate)
    state["weight"] = state.get("weight", 0) + largest ** 2
    c = largest ** 2 / state["weight"]
    z[...] = z - rate * u
    x[...] = (1 - c) * x + c * z
    return (1 - beta) * z + beta * x


def schedule_free_sgd(o, kind, w, g, state, rate, applied, epoch):
    return schedule_free(o, w, g + (0 if kind in o.no_decay else o.weight_decay) * w, state, rate, o.momentum)


def schedule_free_adamw(o, kind, w, g, state, rate, applied, epoch):
    v = state.setdefault("v", np.zeros_like(w))
    v[...] = o.beta2 * v + (1 - o.beta2) * g ** 2
    u = g / (np.sqrt(v / (1 - o.beta2 ** applied)) + o.epsilon) + (0 if kind in o.no_decay else o.weight_decay) * w
    return schedule_free(o, w, u, state, rate, o.beta1)


RULES = {"schedule_free_sgd": schedule_free_sgd, "schedule_free_adamw": schedule_free_adamw, "lars": lars, "lamb": lamb, "rmsprop": rmsprop, "rmsprop_to_sgd": rmsprop_to_sgd, "sgd": sgd}


def case(name, kind, first, steps, rate=1.0, **given):
    """`rate` multiplies RATES."""
    o = Options(given)
    weights = {tensor_name: w.copy() for tensor_name, w in first.items()}
    states = {tensor_name: {} for tensor_name in first}
    rule = RULES[("schedule_free_" if o.schedule_free else "") + kind]
    shown, averaged, applied = [], [], 0
    for step, g in enumerate(steps):
        if step != SKIPPED:
            applied += 1
            norm = np.sqrt(sum(np.sum(value ** 2) for value in g.values()))
            scale = o.clip_norm / norm if 0 < o.clip_norm < norm else 1.0
            for tensor_name, (tensor_kind, _) in TENSORS.items():
                own = g[tensor_name] * scale
                if o.clip_value > 0:
                    own = np.clip(own, -o.clip_value, o.clip_value)
                weights[tensor_name] = rule(o, tensor_kind, weights[tensor_name], own, states[tensor_name],
                                                   rate * RATES[step], applied, EPOCHS[step])
        if step in SHOWN:
            shown.append(np.concatenate([weights[tensor_name].reshape(-1) for tensor_name in TENSORS]))
            if o.schedule_free:
                averaged.append(np.concatenate([states[tensor_name]["x"].reshape(-1) for tensor_name in TENSORS]))
    result = {"name": name, "kind": kind, "options": given, "rates": [rate * r for r in RATES],
              "weights": tensor(np.stack(shown))}
    return {**result, "averaged": tensor(np.stack(averaged))} if averaged else result


if __name__ == "__main__":
    random = np.random.default_rng(5)
    first, steps = start(random), gradients(random)

    def flat(values):
        return np.concatenate([values[name].reshape(-1) for name in TENSORS])

    def of(name, kind, **options):
        return case(name, kind, first, steps, **options)

    cases = [
        of("the paper's LARS, every tensor scaled", "lars", rate=5.0, trust_coefficient=0.02, weight_decay=0.01,
           no_trust=[], no_decay=[]),
        of("the paper's LARS without norms and biases", "lars", rate=5.0, trust_coefficient=0.02, weight_decay=0.01),
        of("the paper's LARS, biases decay", "lars", rate=2.0, trust_coefficient=0.02, weight_decay=0.01,
           no_decay=["norm"]),
        of("MLPerf's LARS", "lars", rate=5.0, trust_coefficient=0.02, weight_decay=0.01, lars_form="mlperf"),
        of("MLPerf's LARS, whatever no_decay says", "lars", rate=2.0, trust_coefficient=0.02, weight_decay=0.01,
           lars_form="mlperf", no_decay=[]),
        of("MLPerf's LARS, only biases left alone", "lars", rate=2.0, trust_coefficient=0.02, weight_decay=0.01,
           lars_form="mlperf", no_trust=["bias"], no_decay=[]),
        of("LARS of a clipped gradient", "lars", rate=2.0, trust_coefficient=0.02, weight_decay=0.1, clip_norm=0.5),
        of("LAMB", "lamb", rate=0.2, weight_decay=0.1, epsilon=1e-6),
        of("LAMB, ratios without decay", "lamb", rate=0.2, weight_decay=0.1, trust_undecayed=True, epsilon=1e-6),
        of("LAMB, clipped", "lamb", rate=0.2, weight_decay=0.1, clip_norm=0.5, beta1=0.8, beta2=0.95, epsilon=1e-3),
        of("RMSprop", "rmsprop", rate=0.1, beta2=0.95, epsilon=1e-6),
        of("RMSprop, elements cut, decay", "rmsprop", rate=0.1, beta2=0.95, clip_value=0.1, weight_decay=0.1,
           epsilon=1e-3),
        of("RMSprop to SGD", "rmsprop_to_sgd", rate=0.05, beta2=0.95, epsilon=0.01, transition_center=2.0,
           transition_length=3.0, transition_rate=0.04, weight_decay=0.01),
        of("SGD, elements cut", "sgd", clip_value=0.2, weight_decay=0.01),
        of("schedule-free SGD", "sgd", schedule_free=True, weight_decay=0.05, no_decay=[]),
        of("schedule-free SGD, clipped, hardly averaged", "sgd", schedule_free=True, momentum=0.2, clip_norm=0.5,
           weight_decay=0.05),
        of("schedule-free AdamW", "adamw", rate=0.1, schedule_free=True, weight_decay=0.2, beta2=0.95),
        of("schedule-free AdamW, everything decays", "adamw", rate=0.1, schedule_free=True, weight_decay=0.2,
           no_decay=[], beta1=0.98, epsilon=1e-3),
    ]
    write(Path(__file__).parent / "large_batch.json",
          {"tensors": [{"name": name, "kind": kind, "size": list(shape)} for name, (kind, shape) in TENSORS.items()],
           "epochs": EPOCHS, "skipped": SKIPPED, "shown": SHOWN, "start": tensor(flat(first)),
           "gradients": tensor(np.stack([flat(g) for g in steps])), "cases": cases}, digits=7)
