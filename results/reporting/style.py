"""The look of all figures. Lines and letters are large enough for a phone. Markers and line styles differ as well as
colours, so that figures can be printed in grey."""

import csv
import io
import math
import textwrap
from dataclasses import dataclass, field

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker, transforms  # noqa: E402

from .colours import colors  # noqa: E402
from .plain import add_legend, log_ticks, named, short  # noqa: E402

# Colours of Okabe and Ito 2008, which colour-blind readers can tell apart. The first ones differ in grey, too.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
LINES = ["-", "--", "-.", ":"]
GREY = "#555555"
LEGEND_WIDTH = 52  # letters per line

matplotlib.rcParams.update(
    {
        "figure.figsize": (5.4, 3.7),
        "font.size": 11,
        "axes.labelsize": 11,
        "legend.fontsize": 9,
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "lines.linewidth": 1.6,
        "lines.markersize": 6,
        "svg.hashsalt": "ringtrain",
        "svg.fonttype": "path",
        "figure.max_open_warning": 0,
        "hatch.linewidth": 0.6,
    }
)


@dataclass
class Figure:
    """A drawing and its numbers. `rows` are dictionaries with the same keys, in the order of the columns."""

    name: str
    title: str
    drawing: object
    rows: list
    note: str = ""
    warnings: list = field(default_factory=list)


@dataclass(frozen=True)
class Missing:
    title: str
    reason: str


@dataclass
class Table:
    name: str
    title: str
    rows: list
    note: str = ""
    is_folded: bool = False  # the page shows more than a few rows folded in any case


def colour(index, count):
    """The colour of one of `count` lines. No two of them have the same."""
    return COLOURS[index] if count <= len(COLOURS) else colors(count)[index]


def shades(count):
    """Returns `count` colours from dark to light, for lines in an order. They differ in grey, too."""
    return [matplotlib.colormaps["viridis"](0.85 * i / max(1, count - 1)) for i in range(count)]


def line(index, count=0, **more):
    """How a line looks. Without `count`, the number of lines, colours repeat with another style of line."""
    return {
        "color": colour(index, count) if count else COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index % len(LINES)],
        **more,
    }


def panels(count=1, height=3.3, shared=True):
    """Returns (drawing, list of axes). The axes are one below another, with room for legends between them."""
    drawing, axes = pyplot.subplots(
        count,
        1,
        squeeze=False,
        sharex=shared,
        figsize=(5.4, 0.5 + height * count),
        layout="constrained" if count > 1 else None,
    )
    return drawing, list(axes[:, 0])


def batch_axis(axis, batches, title="global batch (samples)"):
    axis.set_xlabel(title)
    powers(axis, batches)


def powers(axis, values):
    """Makes the x axis logarithmic with ticks at the values. If values are close together, some get no tick."""
    values = sorted({v for v in values if v > 0})
    if not values:
        return
    axis.set_xscale("log", base=2)
    apart, shown = max(0.4, math.log2(values[-1] / values[0]) / 8), values[:1]
    for value in values[1:]:
        if math.log2(value / shown[-1]) >= apart:
            shown.append(value)
    axis.xaxis.set_major_locator(ticker.FixedLocator(shown))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: short(v)))
    axis.set_xlim(values[0] / 1.4, values[-1] * 1.4)


def log_x(axis):
    """Makes the x axis logarithmic. A short range gets more ticks with labels."""
    axis.set_xscale("log")
    log_ticks(axis.xaxis, axis.get_xlim())


def log_y(axis):
    """Makes the y axis logarithmic. A short range gets more ticks with labels."""
    axis.set_yscale("log")
    log_ticks(axis.yaxis, axis.get_ylim())


def wrapped(text, width):
    """Breaks the text into lines of at most `width` letters, so that a long name does not make the drawing small."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)) or text


def legend(axis, columns=3, below=0.5, handles=None, **more):
    """Puts the legend `below` inches below the axis. The layout can then shrink the axis to make room for it. Without
    `handles`, it has the axis' own lines."""
    handles = named(axis) if handles is None else handles
    labels = [wrapped(handle.get_label(), LEGEND_WIDTH) for handle in handles]
    if len(labels) > 12:
        handles, labels = handles[:12], labels[:11] + [f"and {len(labels) - 11} more"]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    if labels:
        add_legend(
            axis,
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=axis.transAxes + transforms.ScaledTranslation(0, -below, axis.figure.dpi_scale_trans),
            frameon=False,
            ncol=max(1, min(columns, len(labels), 62 // (longest + 7))),
            borderaxespad=0,
            **more,
        )


def svg_of(drawing):
    buffer = io.StringIO()
    drawing.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save(figure, folder):
    """Writes NAME.svg, NAME.png and NAME.csv. Returns the text of the SVG."""
    svg = svg_of(figure.drawing)
    (folder / f"{figure.name}.svg").write_text(svg, encoding="utf-8")
    figure.drawing.savefig(folder / f"{figure.name}.png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure.drawing)
    write_csv(folder / f"{figure.name}.csv", figure.rows)
    return svg


def csv_text(rows):
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
    return text.getvalue()


def write_csv(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(csv_text(rows))
