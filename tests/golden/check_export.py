#!/usr/bin/env python3
"""Checks that PyTorch computes the same logits from an exported file. Give it the file and the logits that `evaluate`
kept for some samples:

    bin/ringtrain export RUN --out weights.safetensors
    bin/ringtrain evaluate RUN --logits logits.safetensors --samples 64
    python tests/golden/check_export.py weights.safetensors logits.safetensors

RUN is the same checkpoint for both, with fp32 weights. The script needs torch and safetensors. All
networks are written out below. With torchvision, networks that torchvision has are also computed by torchvision's own,
loaded strictly. The exit code is 0 when all logits agree.
"""
import argparse
import functools
import itertools
import json
import sys

import torch
from safetensors.torch import load_file, safe_open
from torch.nn import functional as F

try:
    import torchvision
except ImportError:
    torchvision = None


def normalized(w, norm, x, groups):
    """Applies the norm with this name: batch norm if it has running statistics, group norm if it has none, and no norm if it
    is not there."""
    if norm + ".weight" not in w:
        return x
    affine = w[norm + ".weight"], w[norm + ".bias"]
    if norm + ".running_mean" in w:
        return F.batch_norm(x, w[norm + ".running_mean"], w[norm + ".running_var"], *affine)
    return F.group_norm(x, groups, *affine)


def plain_resnet(w, x, stride_in="3x3", groups=None):
    """A ResNet described by the shapes of its tensors. stride_in is 3x3 for version 1.5 and 1x1 for version 1."""
    def conv_norm(conv, norm, x, stride=1):
        weight = w[conv + ".weight"]
        x = F.conv2d(x, weight, w.get(conv + ".bias"), stride, weight.shape[-1] // 2)
        return normalized(w, norm, x, groups)

    imagenet = w["conv1.weight"].shape[-1] == 7
    x = F.relu(conv_norm("conv1", "bn1", x, 2 if imagenet else 1))
    if imagenet:
        x = F.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
        for block in itertools.count():
            name = f"layer{stage}.{block}"
            if f"{name}.conv1.weight" not in w:
                break
            stride = 2 if stage > 1 and block == 0 else 1
            convolutions = 3 if f"{name}.conv3.weight" in w else 2
            shortcut, y = x, x
            if f"{name}.downsample.0.weight" in w:
                shortcut = conv_norm(f"{name}.downsample.0", f"{name}.downsample.1", x, stride)
            for i in range(1, convolutions + 1):
                strided = i == (1 if stride_in == "1x1" else convolutions - 1)
                y = conv_norm(f"{name}.conv{i}", f"{name}.bn{i}", y, stride if strided else 1)
                if i < convolutions:
                    y = F.relu(y)
            x = F.relu(y + shortcut)
    return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])


def plain_alexnet(w, x):
    """In AlexNet-BN, a norm follows every convolution."""
    def conv(i, x, stride, padding):
        x = F.conv2d(x, w[f"features.{i}.weight"], w.get(f"features.{i}.bias"), stride, padding)
        norm = f"features.{i + 1}"
        if f"{norm}.running_mean" in w:
            x = F.batch_norm(x, *(w[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")))
        return F.relu(x)

    i, j, k, l, m = (0, 4, 8, 11, 14) if "features.1.weight" in w else (0, 3, 6, 8, 10)
    x = F.max_pool2d(conv(i, x, 4, 2), 3, 2)
    x = F.max_pool2d(conv(j, x, 1, 2), 3, 2)
    x = F.max_pool2d(conv(m, conv(l, conv(k, x, 1, 1), 1, 1), 1, 1), 3, 2).flatten(1)
    for i in 1, 4, 6:
        x = F.linear(x, w[f"classifier.{i}.weight"], w[f"classifier.{i}.bias"])
        x = x if i == 6 else F.relu(x)
    return x


def plain_cnn(w, x, groups=None):
    for i in itertools.count(1):
        if f"conv{i}.weight" not in w:
            break
        weight = w[f"conv{i}.weight"]
        x = F.conv2d(x, weight, w.get(f"conv{i}.bias"), 1, weight.shape[-1] // 2)
        x = F.max_pool2d(F.relu(normalized(w, f"bn{i}", x, groups)), 2)
    x = x.flatten(1)
    for i in itertools.count(1):
        if f"fc{i}.weight" not in w:
            return F.linear(x, w["fc.weight"], w["fc.bias"])
        x = F.relu(F.linear(x, w[f"fc{i}.weight"], w[f"fc{i}.bias"]))


def plain_mlp(w, x, groups=None):
    x = x.flatten(1)
    for i in itertools.count(1):
        if f"fc{i}.weight" not in w:
            return F.linear(x, w["fc.weight"], w["fc.bias"])
        x = F.linear(x, w[f"fc{i}.weight"].flatten(1), w.get(f"fc{i}.bias"))
        x = F.relu(normalized(w, f"bn{i}", x, groups))


def char_lstm(w, symbols):
    """torch.nn.LSTM over one-hot symbols, and a linear layer at every position."""
    hidden = w["lstm.weight_hh_l0"].shape[1]
    layers = sum(name.startswith("lstm.weight_hh_l") for name in w)
    vocabulary = w["linear.weight"].shape[0]
    lstm = torch.nn.LSTM(vocabulary, hidden, layers, batch_first=True)
    lstm.load_state_dict({name.removeprefix("lstm."): t for name, t in w.items() if name.startswith("lstm.")}, strict=True)
    return F.linear(lstm(F.one_hot(symbols.long(), vocabulary).float())[0], w["linear.weight"], w["linear.bias"])


def torchvision_model(kind, w, stride_in, groups):
    """Returns torchvision's own model, or None if it has none of this shape."""
    if torchvision is None or stride_in == "1x1":
        return None
    if kind == "alexnet" and "features.1.weight" not in w:
        model = torchvision.models.alexnet(num_classes=w["classifier.6.weight"].shape[0])
    elif kind == "resnet" and w["conv1.weight"].shape[0] == 64 and "layer4.0.conv1.weight" in w and "bn1.weight" in w:
        models = torchvision.models
        blocks = [sum(f"layer{stage}.{i}.conv1.weight" in w for i in range(99)) for stage in range(1, 5)]
        bottleneck = "layer1.0.conv3.weight" in w
        block = models.resnet.Bottleneck if bottleneck else models.resnet.BasicBlock
        norm = functools.partial(torch.nn.GroupNorm, groups) if groups else None
        model = models.ResNet(block, blocks, num_classes=w["fc.weight"].shape[0], norm_layer=norm)
        if w["conv1.weight"].shape[-1] == 3:  # the stem for small images
            model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    else:
        return None
    model.load_state_dict(w, strict=True)
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export"), parser.add_argument("logits")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference of a logit; a share of the largest logit if that is above 1")
    arguments = parser.parse_args()
    w, kept = load_file(arguments.export), load_file(arguments.logits)
    with safe_open(arguments.logits, "pt") as file:
        metadata = file.metadata()
    kind, inputs = metadata["model"], kept["inputs"]
    networks = {}
    with torch.no_grad():
        if kind == "char_lstm":
            networks["torch.nn.LSTM"] = char_lstm(w, inputs)
        else:
            mean, std = (torch.tensor(json.loads(metadata[key])).reshape(3, 1, 1) for key in ("mean", "std"))
            images = (inputs.permute(0, 3, 1, 2).float() / 255 - mean) / std
            stride_in = metadata.get("stride_in", "3x3")
            groups = int(metadata["norm_groups"]) if "norm_groups" in metadata else None
            more = {"alexnet": [], "resnet": [stride_in, groups]}.get(kind, [groups])
            networks[f"{kind} with torch.nn.functional"] = globals()[f"plain_{kind}"](w, images, *more)
            model = torchvision_model(kind, w, stride_in, groups)
            if model is not None:
                networks[f"{kind} of torchvision {torchvision.__version__}"] = model(images)
    ours = kept["logits"].double()
    tolerance = arguments.tolerance * max(1.0, ours.abs().max().item())
    agree = True
    for name, theirs in networks.items():
        difference = (theirs.double() - ours).abs().max().item()
        same = (theirs.argmax(-1) == ours.argmax(-1)).double().mean().item()
        agree = agree and difference <= tolerance
        print(f"{name}: largest difference {difference:.2e} of logits up to {ours.abs().max():.3g} "
              f"({len(inputs)} samples, tolerance {tolerance:.1e}); {100 * same:.2f} % of the likeliest classes are the same")
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
