"""What a GPU can reach, in one place: the rates of each device, and the most images and characters per second that follow
from them. Every row of speed is a share of such a bound."""
import csv
import re
from pathlib import Path

VOCABULARY = 128  # symbols of the text that the LSTMs train on

# FLOP/s of a matrix product (bf16, 8192 x 8192 x 8192), and bytes per second of a copy, read and written. The key is a
# pattern of the device's name. An H100 PCIe or NVL has other rates and is not in the table.
DEVICES = {
    r"\bH100\b.*\bHBM3\b": (798e12, 3.0e12),
    r"\bH200\b": (790e12, 4.3e12),
}
HALF = ("bf16", "fp16")

# Targets: images per second of ResNet-50, and characters per second of LSTMs by shape and batch, on an H200.
IMAGES_TARGET = 8000
CHARACTERS_TARGETS = {("4x512", 4096): 9e6, ("4x512", 16384): 9e6, ("4x1024", 4096): 3e6, ("4x1024", 16384): 3e6,
                      ("4x128", 4096): 50e6, ("4x128", 16384): 50e6}
H100_MEMORY_FACTOR = 0.7  # an H100 has 0.7 of an H200's bandwidth, so targets of work that memory limits are 0.7 of these


def rates_of(device, precision, measured=None):
    """Returns (FLOP/s, bytes per second), or None when nothing is known. `measured` has the two rates that another program
    has reached on this device. It is used for devices and precisions that are not in the table."""
    if precision in HALF:
        for pattern, rates in DEVICES.items():
            if re.search(pattern, device or ""):
                return rates
    return measured


def resnet50_images_per_second(batch, rates):
    """Images per second of kernels that run one after the other, fused as in resnet50_kernels.csv. The bytes of the
    optimizer are divided by this batch. The bytes of weights in the other kernels are those of batch 256. Returns None
    without rates."""
    if rates is None:
        return None
    flops, bandwidth = rates
    seconds = 0.0
    with open(Path(__file__).parent / "resnet50_kernels.csv") as file:
        for kernel in csv.DictReader(file):
            moved = float(kernel["bytes_per_image"])
            if kernel["kernel"] == "sgd":
                moved *= 256 / batch
            seconds += max(moved / bandwidth, float(kernel["flops_per_image"]) / flops)
    return 1 / seconds


def flops_per_character(layers, hidden):
    """FLOPs of the forward pass, and twice that for the backward pass. The first layer's one-hot input is a gather,
    which needs none."""
    per_position = layers * 4 * hidden * hidden + (layers - 1) * 4 * hidden * hidden + hidden * VOCABULARY
    return 3 * 2 * per_position


def lstm_step_seconds(layers, hidden, positions, batch, rates):
    """The least seconds of a step by each limit: (FLOPs, memory, the chain of dependent steps of at least 3 us). Bytes are
    those of a fused LSTM with 16-bit activations."""
    flops, bytes_per_second = rates
    per_layer = (2 * hidden + 5 * hidden + 5 * hidden + 4 * hidden + 8 * hidden + 4 * hidden) * 2
    weights = sum(4 * hidden * ((VOCABULARY if layer == 0 else hidden) + hidden) for layer in range(layers)) * 22
    moved = (layers * per_layer + (2 * hidden + 3 * VOCABULARY) * 2) * positions * batch + weights
    work = flops_per_character(layers, hidden) * positions * batch
    wave = max(2 * batch * 4 * hidden * hidden * layers / flops, 3e-6)
    return work / flops, moved / bytes_per_second, 2 * (positions + layers - 1) * wave


def lstm_characters_per_second(layers, hidden, positions, batch, rates):
    """The most characters per second that are possible, or None without rates."""
    return None if rates is None else positions * batch / max(lstm_step_seconds(layers, hidden, positions, batch, rates))


def memory_factor(device):
    """What a target of work that memory limits is multiplied by on this device."""
    return H100_MEMORY_FACTOR if re.search(r"\bH100\b", device or "") else 1.0


def images_target(device):
    return IMAGES_TARGET * memory_factor(device)


def characters_target(device, shape, layers, hidden, positions, batch):
    """The target, or None when there is none. An LSTM is limited by memory where that takes the longest on an H200."""
    target = CHARACTERS_TARGETS.get((shape, batch))
    if target is None:
        return None
    seconds = lstm_step_seconds(layers, hidden, positions, batch, DEVICES[r"\bH200\b"])
    return target * (memory_factor(device) if max(seconds) == seconds[1] else 1.0)


def lost_milliseconds(units, rate, bound):
    """How much longer a step of so many images or characters takes than at the bound."""
    return 1e3 * (units / rate - units / bound) if rate and bound else None
