"""Loss curves: a line for each experiment, which is the mean over its seeds, and a band from the lowest to the highest."""

import numpy

from . import cells as grouping
from . import style
from .records import is_number
from .style import Figure, Missing

OTHERS = {"color": "#999999", "alpha": 0.6, "linewidth": 0.7, "zorder": 1}  # lines of experiments without a colour
POINTS = 80  # points of a line; more could not be seen
COLOURED = 8
FAR = 4  # lines whose lengths differ by more get a logarithmic axis
CURVES = (("loss", "training loss (nats)"), ("validation_loss", "validation loss (nats)"))


def spread_over(items, count):
    """Returns `count` of the items at equal distances, the first and the last among them. All if there are fewer."""
    if len(items) <= count:
        return list(items)
    return [items[i] for i in numpy.linspace(0, len(items) - 1, count).round().astype(int)]


def coloured(cells, value_of):
    """Returns (the cells to draw in colour, a sentence about the choice). If there are more than COLOURED cells, these
    are the cells at the best rate of each batch, or some of them. Of many families, half of COLOURED are shown: a family
    has two lines at least, at its smallest and its largest batch."""
    if len(cells) <= COLOURED:
        return list(cells), ""
    best = {f: [p.cell for p in grouping.best_points(own, value_of)] for f, own in grouping.families(cells).items()}
    best = {f: own for f, own in best.items() if own}
    common = set.intersection(*({cell.batch for cell in own} for own in best.values())) if best else set()
    same = [[cell for cell in own if cell.batch in common] or own for own in best.values()]
    same = spread_over(same, COLOURED // 2 if any(len(own) > 1 for own in same) else COLOURED)
    shown = [cell for own in same for cell in spread_over(own, COLOURED // len(same))]
    if not shown:
        return [], " Grey: all experiments, as none has a best rate."
    left = sum(map(len, best.values())) - len(shown)
    some = f" {len(shown)} of {len(shown) + left} of them, spread over families and batches." if left else ""
    return shown, f" In colour: the best rate of each batch.{some} Grey: the other experiments."


def looks(cells):
    """Returns how the line of each cell looks. If batch and family tell the cells apart, the colour goes from dark to
    light with the batch, and each family has a style of line. Otherwise each cell has a colour of its own."""
    batches = sorted({cell.batch for cell in cells})
    families = list(grouping.families(cells))
    if len(batches) > 1 and len({(cell.batch, cell.family) for cell in cells}) == len(cells):
        shades = style.shades(len(batches))
        return [
            {
                "color": shades[batches.index(cell.batch)],
                "linestyle": style.LINES[families.index(cell.family) % len(style.LINES)],
            }
            for cell in cells
        ]
    return [{"color": style.colour(i, len(cells)), "linestyle": style.LINES[i % 4]} for i in range(len(cells))]


def points_of(run, key):
    """Returns (epochs, losses) of the run's updates or evaluations, without values that are not finite."""
    if key == "loss":
        x, y = run.column("epoch"), run.column("loss")
    else:
        pairs = [(e.get("epoch"), e[key]) for e in run.evaluations if is_number(e.get(key))]
        x, y = numpy.array([p for p in pairs if p[0] is not None], float).reshape(-1, 2).T
    if len(x) != len(y):
        return numpy.array([]), numpy.array([])
    keep = numpy.isfinite(x) & numpy.isfinite(y)
    return x[keep], y[keep]


def smooth(x, y):
    """Returns at most about POINTS points, which are means of neighbours."""
    width = len(x) // POINTS
    if width < 2:
        return x, y
    count = len(x) // width
    return tuple(v[: count * width].reshape(count, width).mean(axis=1) for v in (x, y))


def counting(cell):
    """Returns the runs whose mean is drawn: those that went on to their end. If there are none, all of them."""
    return [run for run in cell.runs if run.state in ("finished", "running")] or cell.runs


def band(cell, key):
    """Returns (epochs, means, lowest, highest, number of seeds), or None without points. The curves are read at the
    epochs of the seed that ended first, because a mean would jump where a seed leaves it."""
    curves = {}
    for run in counting(cell):
        x, y = smooth(*points_of(run, key))
        if len(x):
            curves.setdefault(run.seed, (x, y))
    if not curves:
        return None
    curves = list(curves.values())
    grid = min((x for x, _ in curves), key=lambda x: x[-1])
    grid = grid[grid >= max(x[0] for x, _ in curves)] if len(curves) > 1 else grid
    if not len(grid):
        return None
    values = numpy.array([numpy.interp(grid, x, y) for x, y in curves])
    return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(curves)


def draw(axis, cell, key, look):
    """Draws the line and the band of a cell, or a thin grey line if `look` is None. Returns the rows of its table."""
    found = band(cell, key)
    if found is None:
        return []
    x, mean, low, high, seeds = found
    dot = {"marker": "o", "markersize": 4} if len(x) == 1 else {}
    if look is None:
        (line,) = axis.plot(x, mean, **OTHERS, **dot)
    else:
        (line,) = axis.plot(x, mean, linewidth=1.6, zorder=3, **look, **dot)
        if seeds > 1:
            axis.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0, zorder=2)
    line.fell_apart = all(run.state == "diverged" for run in cell.runs)
    name = grouping.label(cell.family)
    return [
        {
            "family": name,
            "batch": cell.batch,
            "rate": cell.rate,
            "seeds": seeds,
            "epoch": e,
            "curve": key,
            "mean": m,
            "low": a,
            "high": b,
        }
        for e, m, a, b in zip(x, mean, low, high)
    ]


def limit(axis):
    """Limits the y axis to the lowest 97 % of the points of experiments that did not diverge. One that diverged would
    make the other lines look flat."""
    lines = [line for line in axis.get_lines() if not line.fell_apart] or axis.get_lines()
    values = numpy.concatenate([line.get_ydata() for line in lines] or [numpy.array([])]).astype(float)
    if len(values):
        low, high = values.min(), numpy.percentile(values, 97)
        room = high - low or 0.05 * abs(high) or 1
        axis.set_ylim(low - 0.05 * room, high + 0.1 * room)


def spread_epochs(axes):
    """Makes the axis of epochs logarithmic if some lines are many times as long as a coloured one, which could not be seen
    otherwise."""
    lines = [line for axis in axes for line in axis.get_lines()]
    longest = max(line.get_xdata()[-1] for line in lines)
    shortest = min((line.get_xdata()[-1] for line in lines if line.get_zorder() == 3), default=longest)
    first = min(line.get_xdata()[0] for line in axes[-1].get_lines())
    if first > 0 and longest > FAR * shortest:
        for axis in axes:
            axis.set_xlim(left=first)
            style.log_x(axis)


def entry_of_others(count):
    """Returns the entry of a legend for the grey lines."""
    words = f"{count} other experiment{'s' if count > 1 else ''}"
    return style.pyplot.Line2D([], [], color=OTHERS["color"], linewidth=0.8, label=words)


def legend(axis, shown, look, others):
    """Names the coloured cells, and the grey ones in one entry. Words that all names share are left out."""
    pyplot = style.pyplot
    with_rate = len({(c.batch, c.family) for c in shown}) < len(shown) or len({c.family for c in shown}) == 1
    several = len({c.family for c in shown}) > 1
    handles = []
    for cell, own in zip(shown, look):
        words = [f"batch {style.short(cell.batch)}"]
        words += [f"rate {cell.rate:.3g}"] if with_rate else []
        words += [grouping.label(cell.family)] if several else []
        handles.append(pyplot.Line2D([], [], linewidth=2, label=", ".join(words), **own))
    if others:
        handles.append(entry_of_others(others))
    style.legend(axis, below=0.62, handles=handles)


def losses(cells, value_of, title="Loss curves"):
    """Draws training and validation loss against epochs."""
    shown, note = coloured(cells, value_of)
    look = looks(shown)
    ways = {id(cell): own for cell, own in zip(shown, look)}
    others = [cell for cell in cells if id(cell) not in ways]
    curves = [c for c in CURVES if any(band(cell, c[0]) for cell in cells)]
    if not any(key == "loss" for key, _ in curves):
        return Missing(title, "no run has finished a step")
    drawing, axes = style.panels(len(curves), height=2.8)
    rows = []
    for axis, (key, words) in zip(axes, curves):
        for cell in [*others, *shown]:
            rows += draw(axis, cell, key, ways.get(id(cell)))
        axis.set_ylabel(words)
        limit(axis)
    axes[-1].set_xlabel("epoch")
    spread_epochs(axes)
    legend(axes[-1], shown, look, len(others))
    text = (
        "Mean over the seeds of an experiment, up to the end of the seed that ended first; the band goes from the lowest "
        "seed to the highest. Training: means of neighbouring steps. Seeds that failed are left out."
    )
    return Figure("losses", title, drawing, rows, text + note)
