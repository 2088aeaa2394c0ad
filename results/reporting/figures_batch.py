"""Figures over the batch: the final error or loss, and the best learning rate."""

import numpy

from . import cells as grouping
from . import measures, style
from .style import Figure, Missing

PUBLISHED_ERRORS = [
    ("goyal.csv", "error against batch", "Goyal 2017, SGD"),
    ("lars.csv", "ResNet-50 with LARS, maximum augmentation", "You 2017, LARS"),
    ("adascale.csv", "AdaScale", "Johnson 2020, AdaScale"),
]


def columns_of(point):
    return {"family": grouping.label(point.cell.family), "batch": point.batch, "rate": point.cell.rate}


def spread_row(point):
    values = list(point.values.values())
    return {
        **columns_of(point),
        "mean": point.mean,
        "deviation": point.deviation,
        "min": min(values),
        "max": max(values),
        "seeds": len(values),
        "without_value": point.missing,
        "rates_tried": point.rates,
        "edge": point.edge,
    }


def sideways(index, count):
    """Returns a factor for the x values of a line. It shifts lines sideways, so that points of the same batch do not
    hide each other."""
    return 1.09 ** (index - (count - 1) / 2)


def draw_points(axis, index, name, points, shift=1.0):
    if not points:
        return
    x = [shift * p.batch for p in points]
    axis.errorbar(
        x, [p.mean for p in points], yerr=[p.deviation or 0 for p in points], capsize=3, label=name, **style.line(index)
    )


def outcome(cells, measure, rows):
    """Draws the final value at the best rate of each batch, and the values of all other rates in pale colour. For
    images, a second panel below has published errors."""
    title = f"{measure.title[0].upper()}{measure.title[1:]}, against the batch"
    lines = {family: grouping.best_points(own, measure.of) for family, own in grouping.families(cells).items()}
    if not any(lines.values()):
        return Missing(title, "no run has a final value")
    published = published_errors(rows) if measure is measures.ERROR else []
    drawing, axes = style.panels(2 if published else 1, shared=False)
    table = []
    for index, (family, points) in enumerate(lines.items()):
        shift = sideways(index, len(lines))
        for cell in grouping.families(cells)[family]:
            values = list(cell.by_seed(measure.of).values())
            axes[0].plot(
                [shift * cell.batch] * len(values), values, linestyle="", marker=".", color=style.COLOURS[index % 7], alpha=0.35
            )
        draw_points(axes[0], index, grouping.label(family), points, shift)
        table += [spread_row(p) for p in points]
    axes[0].set_ylabel(measure.axis)
    style.batch_axis(axes[0], [cell.batch for cell in cells])
    clip_outliers(axes[0], table)
    style.legend(axes[0])
    if published:
        draw_published(axes[1], published)
    note = (
        "At each batch the rate with the best mean over its seeds; bars are one standard deviation over seeds, pale dots "
        "all other rates and seeds."
    )
    if len(lines) > 1:
        note += " Points of the same batch stand side by side."
    if published:
        note += " Below: ResNet-50 on ImageNet as published. The data differ unless a verdict says otherwise; compare the shape."
    return Figure("outcome_vs_batch", title, drawing, table, note, tuning_warnings(lines, "finished"))


def tuning_warnings(lines, did):
    """Returns warnings: the best rate is at the edge of those that were tried, only one rate was tried, or there are
    few seeds. `lines` maps families to points. `did` says what a seed with a value did, such as "finished"."""
    lines = {grouping.label(family): points for family, points in lines.items() if points}
    found = [
        f"{name}, batch {p.batch}: the best rate, {p.cell.rate:.4g}, is the {'lowest' if p.edge == 'low' else 'highest'} of "
        f"{p.rates} that were tried; the best may lie outside"
        for name, points in lines.items()
        for p in points
        if p.edge
    ]
    untuned = [name for name, points in lines.items() if len(points) > 1 and all(p.rates == 1 for p in points)]
    if untuned:
        found.append(
            f"{names_of(untuned, lines)}one rate for each batch, so none was tuned (Shallue et al. 2019 tune at every batch)"
        )
    few = {name: [p.batch for p in points if len(p.values) < 3] for name, points in lines.items()}
    if len(few) > 1 and all(len(few[name]) == len(points) for name, points in lines.items()):
        found.append(f"fewer than three seeds {did} at every batch; the spread is not known well")
        few = {}
    for name, batches in few.items():
        if batches:
            listed = ", ".join(map(str, batches))
            found.append(f"{name}: fewer than three seeds {did} at batch {listed}; the spread is not known well")
    return found


def names_of(names, lines):
    return "" if len(names) == len(lines) else "; ".join(names) + ": "


def clip_outliers(axis, table):
    """Limits the y axis to values near the best rates. At some rates training diverges, and their values would make all
    other differences invisible."""
    low, high = min(r["min"] for r in table), max(r["max"] for r in table)
    room = 0.25 * (high - low) or 0.05 * abs(high) or 1
    axis.set_ylim(max(low - room, axis.get_ylim()[0]), min(high + 2 * room, axis.get_ylim()[1]))


def published_errors(rows):
    found = []
    for _, table, name in PUBLISHED_ERRORS:
        own = [r for r in rows if r.table == table and r.batch and r.is_checked and r.metric in ("top1", "top1_error")]
        own = list({r.batch: r for r in reversed(own)}.values())
        if own:
            found.append((name, sorted(own, key=lambda r: r.batch)))
    return found


def draw_published(axis, published):
    batches = []
    for index, (name, rows) in enumerate(published):
        errors = [r.value if r.metric == "top1_error" else 100 - r.value for r in rows]
        axis.errorbar(
            [r.batch for r in rows],
            errors,
            yerr=[r.spread or 0 for r in rows],
            capsize=3,
            label=name,
            **style.line(index, markerfacecolor="white"),
        )
        batches += [r.batch for r in rows]
    axis.set_ylabel("top-1 error (%),\npublished: ImageNet")
    style.batch_axis(axis, batches)
    style.legend(axis)


def best_rates(cells, value_of, by):
    """Draws the best peak rate of each batch. For comparison, draws the linear and the square-root rule from the
    smallest batch on."""
    title = "Best peak learning rate, against the batch"
    lines = {f: grouping.best_points(own, value_of) for f, own in grouping.families(cells).items()}
    lines = {f: p for f, p in lines.items() if len(p) > 1}
    if not lines:
        return Missing(title, "no family of runs has two batches")
    if all(p.rates < 2 for points in lines.values() for p in points):
        return Missing(title, "every batch ran at one rate only, so none is the best of several")
    drawing, (axis,) = style.panels()
    for index, (family, points) in enumerate(lines.items()):
        x = numpy.array([p.batch for p in points], float)
        for cell in grouping.families(cells)[family]:
            axis.plot(cell.batch, cell.rate, linestyle="", marker="_", color=style.GREY, alpha=0.6)
        axis.plot(x, [p.cell.rate for p in points], label=grouping.label(family), **style.line(index))
        for p in points:
            if p.edge:
                axis.plot(p.batch, p.cell.rate, marker="o", markersize=13, markerfacecolor="none", color=style.GREY)
        if index == 0:
            first = points[0].cell.rate
            axis.plot(x, first * x / x[0], color=style.GREY, linewidth=1, linestyle=":", label="linear rule")
            axis.plot(
                x, first * numpy.sqrt(x / x[0]), color=style.GREY, linewidth=1, linestyle="--", label="square-root rule"
            )
    style.log_y(axis)
    axis.set_ylabel("peak learning rate")
    style.batch_axis(axis, [p.batch for points in lines.values() for p in points])
    style.legend(axis)
    rows = [{**columns_of(p), "rates_tried": p.rates, "edge": p.edge} for points in lines.values() for p in points]
    return Figure(
        "best_rate_vs_batch",
        title,
        drawing,
        rows,
        f"Best by {by}. Short lines: all rates that were tried; a ring: the best one is the edge of what was tried.",
    )
