#!/usr/bin/env python3
"""Writes resnet.json: what small ResNets compute and how they train, by PyTorch in float64.

The networks are torchvision's (version 1.5) and one of version 1, written out below with torch.nn. Weights, pixels and targets come from a
formula, keyed_uniform(), that the C++ test (tests/unit/resnet_golden_test.cpp) has too, so the file holds results only: the
loss and every gradient's norm and samples of the first step (label smoothing 0.1, batch norm over groups), the
logits with the starting statistics, the statistics after the step, and the losses of five steps of SGD with Nesterov
momentum and decay of the weights alone, with the update of every tensor by the first two of them. Run by hand with a Python that has torch (tests/bench/setup_pytorch.sh):
  python tests/golden/make_resnet.py
"""
import copy
from pathlib import Path

import numpy
import torch
from golden import write
from torch import nn

CLASSES, BATCH, SMOOTHING = 10, 8, 0.1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MOMENTUM, DECAY, STEPS, NORM_MOMENTUM = 0.9, 0.1, 5, 0.1
UPDATED_STEPS = 2  # later ones grow what rounding does to deep networks
SAMPLES = 4  # of every gradient
BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


def keyed_uniform(name, count):
    """In [0, 1), a function of name and index: the splitmix64 finaliser of FNV-1a(name) + index."""
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
    """float32 values: convolutions +-sqrt(6 / (output x kernel^2)), the rest near 1 or 0 but not there. The last norm of
    every block is weak, as it is in real training: then rounding does not grow from block to block."""
    u = keyed_uniform(name, int(numpy.prod(shape)))
    if len(shape) == 4:
        values = (2 * u - 1) * numpy.sqrt(6 / (shape[0] * shape[2] * shape[3]))
    elif len(shape) == 2:
        values = (2 * u - 1) * numpy.sqrt(3 / shape[1])
    elif name.endswith(("bias", "running_mean")):
        values = 0.4 * u - 0.2
    else:
        values = (0.75 + 0.5 * u) * (0.25 if last_norm in name and name.endswith("weight") else 1)
    return torch.from_numpy(values.astype(numpy.float32).astype(numpy.float64).reshape(shape))


class GroupedBatchNorm(nn.BatchNorm2d):
    """Batch norm over groups of neighbouring samples; the running statistics take the mean over the groups."""

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


class Block(nn.Module):
    def __init__(self, inputs, channels, stride, bottleneck, group, stride_in):
        super().__init__()
        conv = lambda i, o, kernel, s: nn.Conv2d(i, o, kernel, s, kernel // 2, bias=False)
        output = 4 * channels if bottleneck else channels
        if bottleneck:
            first, second = (stride, 1) if stride_in == "1x1" else (1, stride)
            sizes = [(inputs, channels, 1, first), (channels, channels, 3, second), (channels, output, 1, 1)]
        else:
            sizes = [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        self.count = len(sizes)
        for i, size in enumerate(sizes, 1):
            setattr(self, f"conv{i}", conv(*size))
            setattr(self, f"bn{i}", GroupedBatchNorm(size[1], group))
        self.downsample = None
        if stride > 1 or inputs != output:
            self.downsample = nn.Sequential(conv(inputs, output, 1, stride), GroupedBatchNorm(output, group))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = y.relu()
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, depth, width, stem, group, stride_in):
        super().__init__()
        small, bottleneck = stem == "small", depth >= 50
        self.conv1 = nn.Conv2d(3, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = GroupedBatchNorm(width, group)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        inputs = width
        for stage, blocks in enumerate(BLOCKS[depth]):
            channels = width << stage
            layer = []
            for block in range(blocks):
                layer.append(Block(inputs, channels, 2 if block == 0 and stage > 0 else 1, bottleneck, group, stride_in))
                inputs = 4 * channels if bottleneck else channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        x = self.pool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def numbers(tensor):
    return tensor.detach().reshape(-1).tolist()


def samples(name, tensor):
    """The norm, and the values at SAMPLES places that the name decides."""
    places = (keyed_uniform(name + " places", SAMPLES) * tensor.numel()).astype(int)
    return {"norm": tensor.detach().norm().item(), "values": [tensor.detach().reshape(-1)[i].item() for i in places]}


def bf16_distances(model, x, targets):
    """|g - g64| / |g64| of the whole gradient ("") and of each tensor's, as autocast computes it."""
    gradients = []
    for precision in torch.float64, torch.bfloat16:
        trained = copy.deepcopy(model).to(torch.float64 if precision == torch.float64 else torch.float32).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            logits = trained(x.to(next(trained.parameters()).dtype))
        nn.functional.cross_entropy(logits.to(precision).double(), targets, label_smoothing=SMOOTHING).backward()
        gradients.append({key: p.grad.double().reshape(-1) for key, p in trained.named_parameters()})
    exact, rounded = gradients
    distance = lambda a, b: ((a - b).norm() / b.norm()).item()
    whole = distance(torch.cat(list(rounded.values())), torch.cat(list(exact.values())))
    return {"": whole} | {key: distance(rounded[key], exact[key]) for key in exact}


def case(name, depth, stem, size, group, rate, width=16, stride_in="3x3"):
    model = ResNet(depth, width, stem, group, stride_in).double()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                value.copy_(starting_value(key, tuple(value.shape), ".bn3." if depth >= 50 else ".bn2."))
    pixels = torch.from_numpy((256 * keyed_uniform(name + " pixels", BATCH * size * size * 3)).astype(int)).reshape(BATCH, size, size, 3)
    targets = torch.from_numpy((CLASSES * keyed_uniform(name + " targets", BATCH)).astype(int))
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
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), targets, label_smoothing=SMOOTHING)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {key: samples(key, p.grad) for key, p in model.named_parameters()}
            statistics = {key: samples(key, b) for key, b in model.named_buffers() if "running" in key}
        optimizer.step()
        if step + 1 == UPDATED_STEPS:
            updates = {key: samples(key, p - start[key]) for key, p in model.state_dict().items() if "tracked" not in key}
    return {"name": name, "depth": depth, "width": width, "stem": stem, "stride_in": stride_in, "image_size": size, "batch": BATCH, "group": group,
            "classes": CLASSES, "label_smoothing": SMOOTHING, "learning_rate": rate, "momentum": MOMENTUM,
            "weight_decay": DECAY, "norm_momentum": NORM_MOMENTUM, "mean": MEAN, "std": STD,
            "logits": numbers(logits), "evaluation_loss": evaluation, "losses": losses, "bf16_gradient_distances": distances, "gradients": gradients,
            "statistics": statistics, "updates": updates}


if __name__ == "__main__":
    write(Path(__file__).parent / "resnet.json", {"torch": torch.__version__, "cases": [
        case("resnet18", 18, "small", 32, 8, 0.02),
        case("resnet18_groups", 18, "imagenet", 64, 4, 0.02),
        case("resnet50", 50, "imagenet", 64, 8, 0.002),
        case("resnet50_v1", 50, "imagenet", 64, 4, 0.002, stride_in="1x1"),
    ]})
