#!/usr/bin/env python3
"""Writes resnet.json: how PyTorch evaluates and trains small ResNets in float64. image_case.py says which values are
kept.

The networks are those of torchvision (version 1.5) with fewer channels, and one of version 1. All of them are written
out below with torch.nn, because their batch norm takes groups of samples. Run by hand with a Python that has torch
(tests/bench/setup_pytorch.sh):
  python tests/golden/make_resnet.py
"""
from pathlib import Path

import torch
from golden import write
from image_case import CLASSES, case, norm
from torch import nn

BLOCKS = {8: (1, 1, 1), 20: (3, 3, 3), 18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
BOTTLENECKS = (50,)


class Block(nn.Module):
    def __init__(self, inputs, channels, stride, bottleneck, group, stride_in, groups):
        super().__init__()
        conv = lambda i, o, kernel, s: nn.Conv2d(i, o, kernel, s, kernel // 2, bias=groups == 0)
        output = 4 * channels if bottleneck else channels
        if bottleneck:
            first, second = (stride, 1) if stride_in == "1x1" else (1, stride)
            sizes = [(inputs, channels, 1, first), (channels, channels, 3, second), (channels, output, 1, 1)]
        else:
            sizes = [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        self.count = len(sizes)
        for i, size in enumerate(sizes, 1):
            setattr(self, f"conv{i}", conv(*size))
            setattr(self, f"bn{i}", norm(size[1], group, groups))
        self.downsample = None
        if stride > 1 or inputs != output:
            self.downsample = nn.Sequential(conv(inputs, output, 1, stride), norm(output, group, groups))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = y.relu()
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, depth, width, stem, group, stride_in, groups):
        super().__init__()
        small, bottleneck = stem == "small", depth in BOTTLENECKS
        self.conv1 = nn.Conv2d(3, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=groups == 0)
        self.bn1 = norm(width, group, groups)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        inputs = width
        for stage, blocks in enumerate(BLOCKS[depth]):
            channels = width << stage
            layer = []
            for block in range(blocks):
                layer.append(Block(inputs, channels, 2 if block == 0 and stage > 0 else 1, bottleneck, group, stride_in, groups))
                inputs = 4 * channels if bottleneck else channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
        self.stages = len(BLOCKS[depth])
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        x = self.pool(self.bn1(self.conv1(x)).relu())
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def resnet(name, depth, stem, size, group, rate, width=16, stride_in="3x3", groups=None, updated_steps=(2,), **described):
    described |= {"model": "resnet", "depth": depth, "width": width, "stem": stem, "stride_in": stride_in}
    # In deep networks, rounding errors grow with later steps. Networks with the same tensors as another one keep no updates.
    return case(name, ResNet(depth, width, stem, group, stride_in, groups), described, 8, size, group, rate, updated_steps,
                last_norm=".bn3." if depth in BOTTLENECKS else ".bn2.")


if __name__ == "__main__":
    write(Path(__file__).parent / "resnet.json", {"torch": torch.__version__, "cases": [
        resnet("resnet18", 18, "small", 32, 8, 0.02),
        resnet("resnet18_groups", 18, "imagenet", 64, 4, 0.02, updated_steps=()),
        resnet("resnet50", 50, "imagenet", 64, 8, 0.002),
        resnet("resnet50_v1", 50, "imagenet", 64, 4, 0.002, stride_in="1x1", updated_steps=()),
    ]})
