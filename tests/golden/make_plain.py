#!/usr/bin/env python3
"""Writes plain.json: how PyTorch evaluates and trains AlexNet, small CNNs and a multilayer perceptron in float64. image_case.py says which
values are kept.

One AlexNet is torchvision's without its adaptive pooling, which does nothing to pictures of 224 pixels. The other one
has batch norm after every convolution. Both have no dropout, whose masks have tests of their own. Run by hand with a
Python that has torch (tests/bench/setup_pytorch.sh):
  python tests/golden/make_plain.py
"""
from pathlib import Path

import torch
from golden import write
from image_case import CLASSES, GroupedBatchNorm, case, norm
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


class Perceptron(nn.Module):
    """Hidden layers fc1, fc2, ... with ReLU, and the classifier fc. Without `inputs`, fc1 reads the pixels of a square
    image, as a convolution with a single window. `norms` has the arguments of image_case.norm() for the norms bn1, bn2,
    ... before the ReLUs. Without it, there are none, and the layers have biases."""

    def __init__(self, widths, inputs=None, size=None, norms=None):
        super().__init__()
        self.hidden, self.has_norms = [str(i + 1) for i in range(len(widths))], norms is not None
        bias = norms is None
        for name, width in zip(self.hidden, widths):
            setattr(self, "fc" + name, nn.Linear(inputs, width, bias) if inputs else nn.Conv2d(3, width, size, bias=bias))
            if self.has_norms:
                setattr(self, "bn" + name, norm(width, *norms))
            inputs = width
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        for name in self.hidden:
            x = getattr(self, "fc" + name)(x)
            if self.has_norms:
                x = getattr(self, "bn" + name)(x.reshape(*x.shape[:2], 1, 1))
            x = x.relu().flatten(1)
        return self.fc(x)


class SmallCnn(Perceptron):
    """Convolutions conv1, conv2, ... with ReLU and pooling, then a perceptron without norms. With `norms`, norms bn1, bn2,
    ... follow the convolutions, which have no bias."""

    def __init__(self, size, channels, kernel, widths=(), norms=None):
        super().__init__(widths, channels[-1] * (size // 2 ** len(channels)) ** 2)
        self.convolutions = [str(i + 1) for i in range(len(channels))]
        for name, inputs, outputs in zip(self.convolutions, (3, *channels), channels):
            setattr(self, "conv" + name, nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norms is None))
            setattr(self, "bn" + name, nn.Identity() if norms is None else norm(outputs, *norms))

    def forward(self, x):
        for name in self.convolutions:
            x = getattr(self, "bn" + name)(getattr(self, "conv" + name)(x))
            x = nn.functional.max_pool2d(x.relu(), 2)
        return super().forward(x.flatten(1))


def alexnet(name, group, rate, norm):
    size, side = 95, 2  # 23, 11, 11, 5, 5, 5, 5, 2
    return case(name, AlexNet(side, norm, group), {"model": "alexnet", "norm": norm}, 4, size, group, rate, updated_steps=(1, 2, 5))


if __name__ == "__main__":
    write(Path(__file__).parent / "plain.json", {"torch": torch.__version__, "cases": [
        case("cnn", SmallCnn(28, (32, 64, 128), 3), {"model": "cnn"}, 8, 28, 8, 0.005, updated_steps=(1, 2, 5)),
        case("described_cnn", SmallCnn(20, (16, 24), 5, (40, 30)), {"model": "cnn", "channels": [16, 24], "kernel": 5, "widths": [40, 30]},
             8, 20, 8, 0.005, updated_steps=(1, 2, 5)),
        case("mlp", Perceptron((40, 30), size=14), {"model": "mlp", "widths": [40, 30]}, 8, 14, 8, 0.005, updated_steps=(1, 2, 5)),
        alexnet("alexnet", 4, 0.005, norm=False),
        alexnet("alexnet_norm", 2, 0.001, norm=True),
    ]})
