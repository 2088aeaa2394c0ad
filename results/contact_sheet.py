#!/usr/bin/env python3
"""Draws random images of a data set with their classes, as a PNG.

  results/contact_sheet.py data/photos -o sheet.png
  results/contact_sheet.py data/photos-validation -o sheet.png --count 100 --columns 10

DATA is one split (data/photos-validation), or what a converter's --out was (its training split).
"""
import argparse
import glob
import io
import os
import random
import sys

from reporting import outputs, script
from reporting.errors import ReportError
from reporting.interpreter import with_modules


DAMAGED = (OSError, ValueError, TypeError, AttributeError, LookupError)  # what h5py raises for a file that lacks something
VERIFY = "ringtrain-data verify checks all of the data set"


def fail(message):
    sys.exit(f"contact_sheet.py: error: {message}")


def text(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def split_of(data):
    """Returns the prefix of the split and its files."""
    for prefix in data, f"{data}-train":
        files = sorted(glob.glob(f"{glob.escape(prefix)}-[0-9]*-of-[0-9]*.h5"))
        if files:
            return prefix, files
    fail(f"there is no data set at {data} ({data}-00000-of-....h5 or {data}-train-00000-of-....h5)")


def pixels_of(file, row):
    import numpy
    from PIL import Image
    images = file["images"]
    if text(images.attrs["encoding"]) == "raw":
        pixels = images[row]
        return numpy.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    first, end = file["offsets"][row:row + 2]
    return numpy.asarray(Image.open(io.BytesIO(images[first:end].tobytes())).convert("RGB"))


def draw(axes, pixels, left, top, lines):
    """Fits the image into a square of side 1, with lines of text below it."""
    height, width, _ = pixels.shape
    high, wide = height / max(height, width), width / max(height, width)
    x, y = left + (1 - wide) / 2, top + (1 - high) / 2
    axes.imshow(pixels, extent=(x, x + wide, y + high, y))
    axes.text(left, top + 1.03, "\n".join(lines), fontsize=7, va="top", clip_on=True)


def sheet_of(chosen, columns, out):
    import h5py
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    columns = min(columns, len(chosen))
    rows = -(-len(chosen) // columns)
    pace, line = 1.06, 1.35  # from image to image, and from line to line
    figure = pyplot.figure(figsize=(1.3 * columns * pace, 1.3 * rows * line))
    axes = figure.add_axes((0.01, 0, 0.98, 1))
    for place, (path, row) in enumerate(chosen):
        with h5py.File(path) as file:
            try:
                pixels = pixels_of(file, row)
                label = int(file["labels"][row])
                name = text(file["class_names"][label])
            except DAMAGED as error:
                fail(f"{path}: image {row}: {error}; {VERIFY}")
        draw(axes, pixels, place % columns * pace, place // columns * line,
             [name if len(name) < 20 else name[:18] + "...", f"{label}  {pixels.shape[1]} x {pixels.shape[0]}"])
    axes.set(xlim=(-0.02, columns * pace), ylim=(rows * line, -0.02))
    axes.axis("off")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100, format=os.path.splitext(out)[1][1:] or None)
    outputs.write(out, drawn.getvalue())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("-o", "--out", required=True, metavar="FILE.png")
    parser.add_argument("--count", type=int, default=48, help="number of images [48]")
    parser.add_argument("--columns", type=int, default=8, help="images in a line [8]")
    parser.add_argument("--seed", type=int, default=1, help="chooses other images [1]")
    options = parser.parse_args()
    if not 1 <= options.count <= 1000 or not 1 <= options.columns <= 100:
        fail("expected 1 to 1000 for --count and 1 to 100 for --columns")
    with_modules("h5py", "matplotlib", "PIL")
    import h5py
    prefix, files = split_of(options.data)
    places = []
    for path in files:
        try:
            with h5py.File(path) as file:
                if text(file.attrs["kind"]) != "image":
                    fail(f"{path} is a data set of kind '{text(file.attrs['kind'])}', expected images")
                places += [(path, row) for row in range(len(file["labels"]))]
        except DAMAGED as error:
            fail(f"{path}: {error}; {VERIFY}")
    chosen = random.Random(options.seed).sample(places, min(options.count, len(places)))
    try:
        options.out = str(outputs.picture_path(options.out))
        outputs.expect(options.out, "-o", "picture", outputs.is_picture)
        sheet_of(chosen, options.columns, options.out)
    except ReportError as error:
        fail(error)
    except (OSError, ValueError) as error:
        fail(f"{options.out}: {error}")
    print(f"{options.out}: {len(chosen)} of {len(places):,} images of {prefix}")


if __name__ == "__main__":
    script.run(main)
