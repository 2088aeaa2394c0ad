#!/usr/bin/env python3
"""The training step of torchvision's ResNet in PyTorch on a GPU: channels_last, autocast, fused SGD with momentum and
weight decay, mean cross-entropy. Random pixels (u8, NHWC) lie in device memory and are normalised in the step. See
peer_tools.py. A case has depth, size, batch, precision and way."""
import sys

import peer_tools
from peer_tools import Training, torch

try:
    import torchvision
except ImportError:
    sys.exit(f"error: {sys.executable} has no torchvision")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_training(case, device):
    model = torchvision.models.get_model(f"resnet{case['depth']}", zero_init_residual=True)
    model = model.to(device).to(memory_format=torch.channels_last).train()
    rows, size = case["batch"], case["size"]
    batches = [(torch.randint(256, (rows, size, size, 3), dtype=torch.uint8, device=device),
                torch.randint(1000, (rows,), device=device)) for _ in range(2)]
    mean, std = (torch.tensor(values, device=device).reshape(1, 3, 1, 1) * 255 for values in (MEAN, STD))

    def loss(network, batch):
        pixels, labels = batch
        x = (pixels.permute(0, 3, 1, 2).float() - mean) / std  # this is channels_last already
        return torch.nn.functional.cross_entropy(network(x).float(), labels)

    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=device == "cuda")

    return Training(model, optimizer, loss, batches, case, device)


if __name__ == "__main__":
    peer_tools.main(make_training)
