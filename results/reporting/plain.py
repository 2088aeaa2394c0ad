"""Draws texts as they are, because names of studies and of runs may have any letters. Matplotlib takes what stands between
two $ for a formula, and leaves names that begin with _ out of legends."""

import math
import re

import matplotlib
from matplotlib import collections, lines, patches, ticker

matplotlib.rcParams["text.parse_math"] = False
NAMELESS = re.compile(r"_child\d+|_nolegend_")  # matplotlib's names of things without one


def named(axis):
    """Returns the lines, bands and bars that have a name. Matplotlib leaves out those whose name begins with _, because
    its own names for things without one do. A study's name may begin with _, too."""
    parts = [part for part in axis.get_children() if isinstance(part, (lines.Line2D, patches.Patch, collections.Collection))]
    return [part for part in [*parts, *axis.containers] if part.get_label() and not NAMELESS.fullmatch(part.get_label())]


def add_legend(axis, handles, labels, **more):
    """Gives the axis a legend of all labels, also of those that begin with _."""
    made = axis.legend(handles, ["" for _ in labels], **more)
    for text, label in zip(made.get_texts(), labels, strict=True):
        text.set_text(label)


def log_ticks(side, limits):
    """Labels the ticks of a logarithmic axis with plain numbers. Matplotlib's own labels, such as 10^2, need
    text.parse_math."""
    low, high = limits
    side.set_major_formatter(ticker.FuncFormatter(lambda v, _: short(v)))
    if high / low < 5:
        side.set_major_locator(ticker.AutoLocator())  # there may be only one of 1, 2 and 5, or none
    elif high / low < 30:
        side.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    side.set_minor_formatter(ticker.NullFormatter())


def short(value):
    """Returns a short text. Different whole numbers have different texts. Powers of two from 1,024 on are counted in
    units of 1,024 or 1,024^2: 8,192 becomes 8k, and 1,048,576 becomes 1M. Other numbers from 10,000 on are counted in
    thousands or millions: 10,000 becomes 10k, 10,240 becomes 10.24k, and 16,000 becomes 16.0k, because 16k is 16,384.
    0.004 stays."""
    for size, letter in ((2**20, "M"), (2**10, "k")):
        if value >= size and math.log2(value).is_integer():
            return f"{value / size:.0f}{letter}"
    if not value >= 1e4:
        return f"{value:.4g}"
    size, letter = (1e6, "M") if value >= 1e6 else (1e3, "k")
    if value != round(value):
        return f"{value / size:.4g}{letter}"
    count = f"{value / size:.15g}"
    return count + (".0" if math.log2(float(count)).is_integer() else "") + letter
