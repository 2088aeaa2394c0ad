#!/usr/bin/env python3
"""Compares ringtrain with Pillow and torchvision at making 224 x 224 crops for training from JPEGs in memory, on one
thread. Pillow and torchvision run first, then ringtrain. Then all run again in reverse order.

  make build/bench/input_bench && build/pytorch/bin/python tests/bench/input_bench.py FOLDER_OF_JPEGS

Needs a Python with torch, torchvision and Pillow. All sides use the same random crops (scale 0.08 to 1) and mirrors,
which are drawn beforehand. The result is CPU time, which other processes disturb less than wall-clock time. Pillow and
torchvision.transforms must give the same bytes as ringtrain, or the bench stops. Writes results/bench/input.csv and
input.md.
"""
import argparse
import csv
import datetime
import io
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, features
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as F

ROOT = Path(__file__).resolve().parent.parent.parent
TARGETS = {"Pillow": 1.3, "torchvision": 1.6}


def fail(message):
    sys.exit(f"input_bench.py: error: {message}")


def pillow(data, box, size):
    top, left, height, width, flip = box
    image = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)


def with_torchvision(data, box, size):
    """Does what torchvision.datasets.ImageFolder runs with RandomResizedCrop, RandomHorizontalFlip and PILToTensor."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image = F.resized_crop(image, *box[:4], [size, size])
    return F.pil_to_tensor(F.hflip(image) if box[4] else image)


def with_torchvision_io(data, box, size):
    """Decodes and resizes tensors. The pixels differ, so this is for comparison only."""
    image = torchvision.io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=torchvision.io.ImageReadMode.RGB)
    image = F.resized_crop(image, *box[:4], [size, size], InterpolationMode.BILINEAR, antialias=True)
    return F.hflip(image) if box[4] else image


PEERS = {"Pillow": pillow, "torchvision": with_torchvision, "torchvision.io": with_torchvision_io}


def crc32c(arrays):
    """Slow, but called only once."""
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    crc = 0xFFFFFFFF
    for array in arrays:
        for byte in array.tobytes():
            crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def draw_boxes(files, seed=1):
    torch.manual_seed(seed)
    boxes = []
    for data in files:
        crop = RandomResizedCrop.get_params(Image.open(io.BytesIO(data)), (0.08, 1.0), (3 / 4, 4 / 3))
        boxes.append((*crop, int(torch.rand(1).item() < 0.5)))
    return boxes


def run_peer(make, files, boxes, size, passes):
    seconds = []
    for number in range(passes + 1):  # the first pass warms up
        start = time.process_time()
        for data, box in zip(files, boxes):
            make(data, box, size)
        seconds.append(time.process_time() - start)
    return seconds[1:]


def run_ringtrain(list_path, size, passes, *more):
    done = subprocess.run([str(ROOT / "build/bench/input_bench"), str(list_path), str(size), str(passes), *more],
                          text=True, capture_output=True)
    if done.returncode != 0:
        fail(done.stderr)
    *seconds, last = done.stdout.splitlines()
    return [float(s) for s in seconds], int(last.split()[1], 16)


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in
                subprocess.run(["lscpu"], text=True, capture_output=True, env={**os.environ, "LC_ALL": "C"}).stdout.splitlines()
                if line.startswith("Model name")), platform.processor())
    return f"{cpu}, one thread"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with *.JPEG or *.jpg files")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--passes", type=int, default=5, help="passes over the files, in each of the two turns [5]")
    parser.add_argument("--output", default="results/bench/input", help="without .csv and .md [results/bench/input]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(p for p in options.folder.iterdir() if p.suffix.lower() in (".jpeg", ".jpg"))
    if not paths:
        fail(f"{options.folder} holds no JPEGs")
    files = [path.read_bytes() for path in paths]
    boxes = draw_boxes(files)
    list_path = ROOT / "build/bench/boxes.txt"
    list_path.write_text("".join(f"{' '.join(map(str, box))} {path.resolve()}\n" for box, path in zip(boxes, paths)))

    _, ours = run_ringtrain(list_path, options.size, 1)
    if run_ringtrain(list_path, options.size, 1, "whole")[1] != ours:
        fail("decoding the crop alone makes other pixels than decoding the whole image")
    exact = {"Pillow": crc32c(pillow(data, box, options.size) for data, box in zip(files, boxes)),
             "torchvision": crc32c(with_torchvision(data, box, options.size).permute(1, 2, 0).contiguous().numpy()
                                   for data, box in zip(files, boxes))}
    for name, crc in exact.items():
        if crc != ours:
            fail(f"{name} made other pixels (CRC-32C {crc:08x}) than ringtrain ({ours:08x})")

    seconds = {name: [] for name in ("ringtrain", "ringtrain, whole pictures decoded", *PEERS)}
    order = list(PEERS) + ["ringtrain", "ringtrain, whole pictures decoded"]
    for turn in (order, order[::-1]):
        for name in turn:
            if name in PEERS:
                seconds[name] += run_peer(PEERS[name], files, boxes, options.size, options.passes)
            else:
                more = ["whole"] if "whole" in name else []
                seconds[name] += run_ringtrain(list_path, options.size, options.passes, *more)[0]
    rates = {name: sorted(len(files) / s for s in all_seconds) for name, all_seconds in seconds.items()}
    best = statistics.median(rates["ringtrain"])
    rows = [{"program": name, "images_per_cpu_second": round(statistics.median(r), 1), "min": round(r[0], 1), "max": round(r[-1], 1),
             "ringtrain_ratio": round(best / statistics.median(r), 3), "target": TARGETS.get(name, ""),
             "same_bytes": "no" if name in PEERS and name not in exact else "yes"} for name, r in rates.items()]
    about = {"date": datetime.date.today().isoformat(), "machine": machine(),
             "commit": subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, capture_output=True).stdout.strip(),
             "versions": f"Pillow {PIL.__version__} (libjpeg-turbo {features.version('libjpeg_turbo')}), torchvision "
                         f"{torchvision.__version__}, torch {torch.__version__}",
             "command": f"tests/bench/input_bench.py {options.folder.name} --size {options.size} --passes {options.passes}",
             "input": f"{len(files)} JPEGs, {statistics.mean(map(len, files)) / 1000:.0f} KB on average"}
    output = ROOT / options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{output}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0], *about])
        writer.writeheader()
        writer.writerows({**row, **about} for row in rows)
    lines = ["# JPEG to training crops on one core: how fast is ringtrain against Pillow and torchvision?", "", f"    {about['command']}", "",
             f"- Date: {about['date']}. Commit: {about['commit']}. Machine: {about['machine']}.", f"- Versions: {about['versions']}.",
             f"- Input: {about['input']}.",
             "- Work: random crops (scale 0.08 to 1, ratio 3/4 to 4/3), resized to the square, mirrored or not, as u8."
             " All programs make the same crops.", "", "How to read the table:", "",
             "- **images per CPU second**: over whole passes, as median [minimum, maximum].",
             "- **ringtrain's ratio**: ringtrain's median divided by the median of the row.",
             "- **target**: the least ratio that ringtrain should reach.",
             "- **same bytes as ringtrain**: whether the crops have the same bytes.",
             "- **whole pictures decoded**: usually, ringtrain decodes only the part of a picture that the crop needs. In this row, it decodes the"
             " whole picture.", "",
              "| program | images per CPU second | ringtrain's ratio | target | same bytes as ringtrain |", "|---|---|---|---|---|"]
    lines += [f"| {r['program']} | {r['images_per_cpu_second']:,.0f} [{r['min']:,.0f}, {r['max']:,.0f}] | {r['ringtrain_ratio']:.2f} "
              f"| {r['target'] or '-'} | {r['same_bytes']} |" for r in rows]
    Path(f"{output}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
