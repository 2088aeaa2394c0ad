"""The cases of make_resnet.py, make_plain.py and make_norms.py: how PyTorch evaluates and trains networks for images in float64.

Weights, pixels and targets come from a formula, keyed_uniform(), which the C++ test (tests/unit/image_golden_test.cpp)
has, too, so the files hold results only. These are the loss and every gradient's norm and samples of the first step
(label smoothing 0.1, batch norm over groups), how far the gradients of bf16 autocast are from them, the logits and the
loss with the starting statistics, the statistics after the step, and the losses of five steps of SGD with Nesterov
momentum and decay of the weights alone. For some of these steps, they also say how far every tensor has moved.
"""
import copy

import numpy
import torch
from golden import rounded
from torch import nn

CLASSES, SMOOTHING = 10, 0.1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MOMENTUM, DECAY, STEPS, NORM_MOMENTUM = 0.9, 0.1, 5, 0.1
SAMPLES = 2  # number of values that are kept of every gradient


def keyed_uniform(name, count):
    """Returns numbers in [0, 1) that depend on name and index: the splitmix64 finaliser of FNV-1a(name) + index."""
    key = 0xcbf29ce484222325
    for letter in name.encode():
        key = (key ^ letter) * 0x100000001b3 % 2**64
    with numpy.errstate(over="ignore"):
        z = (numpy.uint64(key) + numpy.arange(count, dtype=numpy.uint64)) * numpy.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
        z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53


def starting_value(name, shape, last_norm):
    """Returns float32 values: convolutions within +-sqrt(6 / (output x kernel^2)), dense layers within
    +-sqrt(3 / input), the others near 1 or 0 but not exactly there. The last norm of every block (names with
    `last_norm`; "" for no blocks) is small, as in real training, so that rounding does not grow from block to block."""
    u = keyed_uniform(name, int(numpy.prod(shape)))
    if len(shape) == 4:
        values = (2 * u - 1) * numpy.sqrt(6 / (shape[0] * shape[2] * shape[3]))
    elif len(shape) == 2:
        values = (2 * u - 1) * numpy.sqrt(3 / shape[1])
    elif name.endswith(("bias", "running_mean")):
        values = 0.4 * u - 0.2
    else:
        values = (0.75 + 0.5 * u) * (0.25 if last_norm and last_norm in name and name.endswith("weight") else 1)
    return torch.from_numpy(values.astype(numpy.float32).astype(numpy.float64).reshape(shape))


class GroupedBatchNorm(nn.BatchNorm2d):
    """Batch norm over groups of neighbouring samples. The running statistics take the mean over the groups."""

    def __init__(self, channels, group):
        super().__init__(channels, momentum=NORM_MOMENTUM)
        self.group = group

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        means, variances, parts = [], [], []
        for part in x.split(self.group):
            means.append(part.mean((0, 2, 3)).detach().to(self.running_mean))
            variances.append(part.var((0, 2, 3), unbiased=True).detach().to(self.running_var))
            parts.append(nn.functional.batch_norm(part, None, None, self.weight, self.bias, True, 0.0, self.eps))
        with torch.no_grad():
            self.running_mean.lerp_(torch.stack(means).mean(0), self.momentum)
            self.running_var.lerp_(torch.stack(variances).mean(0), self.momentum)
        return torch.cat(parts)


def norm(channels, group, groups):
    """Returns batch norm over `group` samples; or group norm over `groups` groups of channels, if they are not None; or no
    norm, with groups = 0."""
    if groups is None:
        return GroupedBatchNorm(channels, group)
    return nn.GroupNorm(groups, channels) if groups else nn.Identity()


def numbers(tensor):
    return tensor.detach().reshape(-1).tolist()


def samples(name, tensor, digits=10):
    """Returns the norm, and the values at SAMPLES places that depend on the name. Ten digits are for tests that compare
    within 1e-7."""
    places = (keyed_uniform(name + " places", SAMPLES) * tensor.numel()).astype(int)
    values = [tensor.detach().reshape(-1)[i].item() for i in places]
    return rounded({"norm": tensor.detach().norm().item(), "values": values}, digits)


def bf16_distances(model, x, targets):
    """Returns |g - g64| / |g64| of the whole gradient ("") and of each tensor's gradient, where autocast computes g."""
    gradients = []
    for precision in torch.float64, torch.bfloat16:
        trained = copy.deepcopy(model).to(torch.float64 if precision == torch.float64 else torch.float32).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            logits = trained(x.to(next(trained.parameters()).dtype))
        nn.functional.cross_entropy(logits.to(precision).double(), targets, label_smoothing=SMOOTHING).backward()
        gradients.append({key: p.grad.double().reshape(-1) for key, p in trained.named_parameters()})
    exact, near = gradients
    distance = lambda a, b: ((a - b).norm() / b.norm()).item()
    whole = distance(torch.cat(list(near.values())), torch.cat(list(exact.values())))
    return rounded({"": whole} | {key: distance(near[key], exact[key]) for key in exact}, 4)


def case(name, model, described, batch, size, group, rate, updated_steps, last_norm=""):
    """`described` says how the test builds the same network. `updated_steps` are the steps after which updates are
    kept."""
    model = model.double()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                value.copy_(starting_value(key, tuple(value.shape), last_norm))
    pixels = torch.from_numpy((256 * keyed_uniform(name + " pixels", batch * size * size * 3)).astype(int)).reshape(batch, size, size, 3)
    targets = torch.from_numpy((CLASSES * keyed_uniform(name + " targets", batch)).astype(int))
    x = ((pixels.double() / 255 - torch.tensor(MEAN, dtype=torch.float64)) / torch.tensor(STD, dtype=torch.float64)).permute(0, 3, 1, 2)

    model.eval()
    with torch.no_grad():
        logits = model(x)
        evaluation = nn.functional.cross_entropy(logits, targets).item()

    distances = bf16_distances(model, x, targets)
    start = copy.deepcopy(model.state_dict())
    model.train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0}],
                                lr=rate, momentum=MOMENTUM, nesterov=True)
    losses, updates = [], {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), targets, label_smoothing=SMOOTHING)
        loss.backward()
        losses.append(loss.item())
        if step == 1:
            gradients = {key: samples(key, p.grad) for key, p in model.named_parameters()}
            statistics = {key: samples(key, b) for key, b in model.named_buffers() if "running" in key}
        optimizer.step()
        if step in updated_steps:
            updates[str(step)] = {key: samples(key, p - start[key], 6) for key, p in model.state_dict().items() if "tracked" not in key}
    return {"name": name, **described, "image_size": size, "batch": batch, "group": group,
            "classes": CLASSES, "label_smoothing": SMOOTHING, "learning_rate": rate, "momentum": MOMENTUM,
            "weight_decay": DECAY, "norm_momentum": NORM_MOMENTUM, "mean": MEAN, "std": STD,
            "logits": numbers(logits), "evaluation_loss": evaluation, "losses": losses, "bf16_gradient_distances": distances, "gradients": gradients,
            "statistics": statistics, "updates": updates}
