#!/usr/bin/env python3
"""Writes plain.json: how PyTorch evaluates and trains AlexNet and the small CNN in float64. image_case.py says which
values are kept.

One AlexNet is torchvision's without its adaptive pooling, which does nothing to pictures of 224 pixels. The other one
has batch norm after every convolution. Both have no dropout, whose masks have tests of their own. Run by hand with a
Python that has torch (tests/bench/setup_pytorch.sh):
  python tests/golden/make_plain.py
"""
from pathlib import Path

import torch
from golden import write
from image_case import CLASSES, GroupedBatchNorm, case
from torch import nn

# Channels, kernel, stride, padding, and whether pooling follows.
ALEXNET = [(64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False), (256, 3, 1, 1, True)]


class AlexNet(nn.Module):
    def __init__(self, side, norm, group):
        """`side` is the side of the last pooling's output."""
        super().__init__()
        features, inputs = [], 3
        for channels, kernel, stride, padding, pools in ALEXNET:
            features.append(nn.Conv2d(inputs, channels, kernel, stride, padding, bias=not norm))
            features += [GroupedBatchNorm(channels, group)] if norm else []
            features.append(nn.ReLU())
            features += [nn.MaxPool2d(3, 2)] if pools else []
            inputs = channels
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(inputs * side * side, 4096), nn.ReLU(),
                                        nn.Identity(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class SmallCnn(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1)
        self.fc = nn.Linear(128 * (size // 8) ** 2, CLASSES)

    def forward(self, x):
        for convolution in self.conv1, self.conv2, self.conv3:
            x = nn.functional.max_pool2d(convolution(x).relu(), 2)
        return self.fc(x.flatten(1))


def alexnet(name, group, rate, norm):
    size, side = 95, 2  # 23, 11, 11, 5, 5, 5, 5, 2
    return case(name, AlexNet(side, norm, group), {"model": "alexnet", "norm": norm}, 4, size, group, rate, updated_steps=(1, 2, 5))


if __name__ == "__main__":
    write(Path(__file__).parent / "plain.json", {"torch": torch.__version__, "cases": [
        case("cnn", SmallCnn(28), {"model": "cnn"}, 8, 28, 8, 0.005, updated_steps=(1, 2, 5)),
        alexnet("alexnet", 4, 0.005, norm=False),
        alexnet("alexnet_norm", 2, 0.001, norm=True),
    ]})
