#!/usr/bin/env python3
"""The training step of torchvision's ResNet in PyTorch, as its users write it: channels_last, autocast for bf16, SGD
with momentum and weight decay, mean cross-entropy. Pixels are random and in memory, so the input takes no time except
for normalisation. Prints one JSON object.

  build/pytorch/bin/python tests/bench/pytorch_resnet.py --batch 16 --precision bf16
  ... --ranks 2    DistributedDataParallel over gloo; the ranks share the batch and the threads

samples_per_second holds median, minimum and maximum over windows of the whole step. matmul_gflops is as in
pytorch_lstm.py. peak_memory_bytes is the peak of resident memory, summed over all ranks. import_memory_bytes of it are
used before there is a model.
"""
import contextlib
import sys

from pytorch_tools import add_options, make_parser, measure, run, summary, torch

try:
    import torchvision
except ImportError:
    sys.exit(f"error: {sys.executable} has no torchvision; tests/bench/setup_pytorch.sh makes an environment that has")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_step(options):
    torch.manual_seed(1)
    model = torchvision.models.get_model(f"resnet{options.depth}", zero_init_residual=True)
    model = model.to(memory_format=torch.channels_last).train()
    wrapped = model
    if options.ranks > 1:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    rows, size = options.batch // options.ranks, options.size
    batches = [(torch.randint(256, (rows, size, size, 3), dtype=torch.uint8), torch.randint(1000, (rows,))) for _ in range(4)]
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) * 255 for values in (MEAN, STD))
    cast = (lambda: torch.autocast("cpu", torch.bfloat16)) if options.precision == "bf16" else contextlib.nullcontext

    def step(number):
        pixels, labels = batches[number % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        x = (pixels.permute(0, 3, 1, 2).float() - mean) / std  # x is in channels_last order after the permute
        with cast():
            loss = torch.nn.functional.cross_entropy(wrapped(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def body(options, agree):
    return {"samples_per_second": summary(measure(make_step(options), options, agree)), "depth": options.depth,
            "size": options.size, "torchvision": torchvision.__version__}


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--depth", type=int, default=50, choices=[18, 34, 50, 101, 152])
    parser.add_argument("--size", type=int, default=224, help="pixels [224]")
    add_options(parser, batch=16)
    run(body, parser)


if __name__ == "__main__":
    main()
