#!/usr/bin/env python3
"""Computes the bound of ResNet-50's training on an H200 if every layer uses the library of convolutions for Hopper
where it can.

Each kernel k moves B_k bytes and makes F_k floating-point operations per image, so it takes at least max(B_k /
bandwidth, F_k / rate). The bound is one over the sum of these times. Activations are 16-bit NHWC, ReLU masks have one
bit, images have 224 x 224 pixels, and the network is v1.5.

  tests/bench/hopper_bound.py [--bandwidth 4.3e12] [--rate 790e12] [--batch 256] [--kernels]

Where the library refuses (7 x 7 maps, data gradients with a stride, the stem), own kernels compute the sums and cuDNN
computes the products. The library refuses a 7 x 7 map only when batch norm has several groups, of 32 samples for
example. Partial sums count, too: each channel of a tile of 128 pixels has two of 4 bytes, which are written and read
once.
"""
import argparse
from dataclasses import dataclass

ELEMENT = 2


@dataclass
class Convolution:
    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int  # height and width of the input's map
    stored: int = 0  # channels of the input in memory, if they are more

    @property
    def out(self):
        return self.size // self.stride

    @property
    def x(self):
        return (self.stored or self.inputs) * self.size ** 2

    @property
    def x_read(self):  # a 1 x 1 kernel with a stride reads only a part
        return self.x // self.stride ** 2 if self.kernel == 1 else self.x

    @property
    def y(self):
        return self.outputs * self.out ** 2

    @property
    def weights(self):
        return self.inputs * self.outputs * self.kernel ** 2

    @property
    def flops(self):
        return 2 * self.weights * self.out ** 2


def blocks():
    size, inputs = 56, 64
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3)), 1):
        for index in range(count):
            stride, name = (2 if index == 0 and stage > 1 else 1), f"layer{stage}.{index}"
            yield (Convolution(f"{name}.conv1", inputs, width, 1, 1, size),
                   Convolution(f"{name}.conv2", width, width, 3, stride, size),
                   Convolution(f"{name}.conv3", width, 4 * width, 1, 1, size // stride),
                   Convolution(f"{name}.downsample", inputs, 4 * width, 1, stride, size) if index == 0 else None)
            size, inputs = size // stride, 4 * width


def kernels(batch):
    """Returns (name, bytes, operations) per image."""
    found = []

    def add(name, elements, flops=0.0, more_bytes=0.0):
        found.append((name, elements * ELEMENT + more_bytes, flops))

    def mask(elements):
        return elements / 8

    def partial_sums(elements):
        return elements / 128 * 2 * 4 * 2

    def whole_tiles(size):
        return size != 7

    def forward(c):
        fused = whole_tiles(c.out)
        add(f"{c.name} forward", c.x_read + c.y + c.weights / batch, c.flops, partial_sums(c.y) if fused else 0)
        if not fused:
            add(f"{c.name} sums", c.y)

    def weight_gradient(c):
        add(f"{c.name} weight gradient", c.x_read + c.y, c.flops, 4 * c.weights / batch)

    def data_gradient(c, elements=0.0, more_bytes=0.0):
        add(f"{c.name} data gradient", c.x + c.y + c.weights / batch + elements, c.flops, more_bytes)

    net, pooled, classes = list(blocks()), 64 * 56 * 56, 2048 * 1000
    stem = Convolution("conv1", 3, 64, 7, 2, 224, stored=4)
    add("conv1 forward", stem.x_read + stem.y, stem.flops)
    add("stem's norm, ReLU and pooling", stem.y + pooled, more_bytes=pooled)
    for first, second, third, down in net:
        for c in (first, second):
            forward(c)
            add(f"{c.name} norm", 2 * c.y, more_bytes=0 if c is first and second.stride == 1 and whole_tiles(c.out) or
                c is second and whole_tiles(c.out) else mask(c.y))
        forward(third)
        if down:
            forward(down)
        add(f"{third.name} norm, addition, ReLU", 3 * third.y, more_bytes=mask(third.y))
    add("pooling, classes and loss", 2048 * 49 + 2 * 2048 + 1000 + classes / batch, 2 * classes, 3000 * 4)
    add("classes' data gradient", 2048 + 1000 + classes / batch, 2 * classes)
    add("classes' weight gradient", 2048 + 1000, 2 * classes, 4 * classes / batch)
    add("pooling's gradient", 2048 * 49 + 2048)

    for index in reversed(range(len(net))):
        first, second, third, down = net[index]
        brought = index + 1 < len(net) and whole_tiles(third.out) and not down
        if not brought:
            add(f"{third.name} norm's sums", (3 if down else 2) * third.y, more_bytes=mask(third.y))
        add(f"{third.name} norm's gradient", (3 if brought or down else 4) * third.y, more_bytes=0 if brought else mask(third.y))
        if down:
            add(f"{down.name} norm's gradient", 2 * down.y)
            data_gradient(down)
            weight_gradient(down)
        for c, before in ((third, second), (second, first)):
            fused = whole_tiles(before.out) and c.stride == 1
            data_gradient(c, before.y if fused else 0, partial_sums(before.y) if fused else 0)
            if not fused:
                add(f"{before.name} norm's sums", 2 * before.y, more_bytes=mask(before.y))
            weight_gradient(c)
            add(f"{before.name} norm's gradient", 3 * before.y, more_bytes=0 if fused else mask(before.y))
        weight_gradient(first)
        # If the block before ends in a single norm, the output of that block and the input of that norm are read, too.
        brings = index > 0 and whole_tiles(net[index - 1][2].out) and not net[index - 1][3]
        data_gradient(first, first.x * (3 if brings else 1), partial_sums(first.x) if brings else 0)
    for words in (1, 2):
        add("stem's gradients", words * stem.y + pooled, more_bytes=pooled)
    add("conv1 weight gradient", stem.x_read + stem.y, stem.flops)
    convolutions = [c for block in net for c in block if c] + [stem]
    parameters = sum(c.weights + 2 * c.outputs for c in convolutions) + classes + 1000
    add("update", 0, more_bytes=parameters * (8 + 8 + 4 + 2) / batch)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes a second that an H200's memory reaches")
    parser.add_argument("--rate", type=float, default=790e12, help="16-bit operations a second that its tensor cores reach")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--kernels", action="store_true", help="list them")
    arguments = parser.parse_args()
    found = kernels(arguments.batch)
    if arguments.kernels:
        for name, size, flops in found:
            print(f"{name:40s} {size / 1e6:8.3f} MB {flops / 1e6:9.1f} MFLOP")
    seconds = sum(max(size / arguments.bandwidth, flops / arguments.rate) for _, size, flops in found)
    print(f"{len(found)} kernels, {sum(size for _, size, _ in found) / 1e6:.1f} MB an image, at most {1 / seconds:.0f} images/s")


if __name__ == "__main__":
    main()
