"""Makes safetensors_fp32/fp16/bf16.safetensors with the format's own library. Our reader must read them, and our writer
must write the same bytes. Tensor number t has the values f(t, index) below, which are exact in float32. The unit test
has the same formula.

    python tests/golden/make_safetensors.py      # needs torch and safetensors
"""
from pathlib import Path

import torch
from safetensors.torch import save_file

SHAPES = {
    "conv1.weight": [4, 3, 3, 3],
    "bn1.weight": [4],
    "bn1.bias": [4],
    "bn1.running_mean": [4],
    "bn1.running_var": [4],
    "layer1.0.conv1.weight": [3, 4, 1, 1],
    "empty": [0, 5],
    "fc.weight": [5, 3],
}


def value(tensor, index):
    """Returns a 24-bit integer, or one of 13 bits to include ties, times a power of two. Some values are too small for
    float16's normal numbers, and some for any of its numbers."""
    state = (index * 2654435761 + tensor * 40503 + 12345) % 2**32
    integer = (state >> 19) - 2**12 if index % 2 else (state >> 8) - 2**23
    return float(integer) * 2.0 ** (-22 - index % 23 + 11 * (index % 2))


def main():
    folder = Path(__file__).resolve().parent
    for name, dtype in ("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16):
        tensors = {}
        for number, (key, shape) in enumerate(SHAPES.items()):
            count = torch.Size(shape).numel()
            values = torch.tensor([value(number, i) for i in range(count)], dtype=torch.float64)
            assert torch.equal(values.float().double(), values)
            tensors[key] = values.float().to(dtype).reshape(shape)
        tensors["bn1.num_batches_tracked"] = torch.tensor(1234)
        save_file(tensors, folder / f"safetensors_{name}.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
