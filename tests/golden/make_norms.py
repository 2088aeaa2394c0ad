#!/usr/bin/env python3
"""Writes norms.json: how PyTorch evaluates and trains networks with group norm, with batch norm where make_resnet.py and
make_plain.py have none, and a ResNet without norms, in float64. image_case.py says which values are kept. Run by hand
with a Python that has torch (tests/bench/setup_pytorch.sh):
  python tests/golden/make_norms.py
"""
from pathlib import Path

import torch
from golden import write
from image_case import case
from make_plain import Perceptron, SmallCnn
from make_resnet import resnet

BATCH = 8


def described(normalization, groups):
    return {"normalization": normalization} | ({"norm_groups": groups} if normalization == "group" else {})


def resnet8(name, normalization, group=BATCH, groups=None, updated_steps=(2,)):
    return resnet(name, 8, "small", 20, group, 0.02, groups=groups, updated_steps=updated_steps, **described(normalization, groups))


def cnn(name, normalization, group=BATCH, groups=None):
    shape = {"channels": [16, 24], "kernel": 5, "widths": [40]}
    return case(name, SmallCnn(20, **shape, norms=(group, groups)), {"model": "cnn"} | shape | described(normalization, groups), BATCH, 20,
                group, 0.005, updated_steps=(2,))


def mlp(name, normalization, group=BATCH, groups=None):
    widths = [48, 32, 24]
    return case(name, Perceptron(widths, size=14, norms=(group, groups)), {"model": "mlp", "widths": widths} | described(normalization, groups),
                BATCH, 14, group, 0.005, updated_steps=(2,))


if __name__ == "__main__":
    write(Path(__file__).parent / "norms.json", {"torch": torch.__version__, "cases": [
        resnet8("resnet8_batch", "batch", group=4, updated_steps=()),
        resnet8("resnet8_group", "group", groups=4),
        resnet8("resnet8_none", "none", groups=0),
        cnn("cnn_batch", "batch", group=4),
        cnn("cnn_group", "group", groups=8),
        mlp("mlp_batch", "batch", group=4),
        mlp("mlp_group", "group", groups=2),
    ]})
