"""Figures over the time of training: learning rate, batch, and the gradient noise scale."""

import math

import numpy

from . import cells as grouping
from . import figures_losses, noise_answers, style
from .style import Figure, Missing

POINTS = 200  # points of a line; more could not be seen
LINES = 12


def chosen(cells, value_of):
    """Returns (the cells to draw, a sentence about the choice). A figure shows at most LINES cells. If there are more,
    it shows those at the best rate of each batch, or a part of these."""
    if len(cells) <= LINES:
        return cells, ""
    best = [p.cell for own in grouping.families(cells).values() for p in grouping.best_points(own, value_of)]
    if len(best) > LINES:
        step = math.ceil(len(best) / LINES)
        return (
            best[::step],
            f" {len(best[::step])} of {len(cells)} experiments, spread over families and batches, at their best rates.",
        )
    return best, f" Of {len(cells)} experiments, those at the best rate of each batch."


def thinned(x, y):
    """Returns about POINTS points: every n-th, and the last."""
    keep = numpy.isfinite(x) & numpy.isfinite(y)
    x, y = x[keep], y[keep]
    width = max(1, len(x) // POINTS)
    return (x, y) if width == 1 else (numpy.append(x[::width], x[-1]), numpy.append(y[::width], y[-1]))


def marks(index, count):
    """Returns matplotlib's markevery: about five points of a line get a marker. The places differ from line to line."""
    every = max(1, count // 5)
    return (index * every // 7) % every, every


def draw_column(axis, cells, key):
    """Draws a line for the first run of each cell. Returns the rows of the figure's table."""
    rows = []
    for index, cell in enumerate(cells):
        run = cell.runs[0]
        if key not in run.steps or "epoch" not in run.steps:
            continue
        xs, ys = thinned(run.steps["epoch"], run.steps[key])
        axis.plot(
            xs,
            ys,
            label=grouping.cell_label(cell),
            color=style.colour(index, len(cells)),
            linestyle=style.LINES[index % 4],
            linewidth=1.1,
            marker=style.MARKERS[index % 7],
            markersize=5,
            markevery=marks(index, len(xs)),
        )
        rows += [
            {"trial": run.name, "batch": cell.batch, "rate": cell.rate, "seed": run.seed, "epoch": x, key: y}
            for x, y in zip(xs, ys)
        ]
    return rows


def course(cells, value_of, key, name, title, unit, always):
    shown, note = chosen(cells, value_of)
    if not always and all(
        len(set(run.column(key)[numpy.isfinite(run.column(key))])) < 2 for cell in cells for run in cell.runs
    ):
        return Missing(title, "every run kept it constant")
    drawing, (axis,) = style.panels(height=2.8)
    rows = draw_column(axis, shown, key)
    if not rows:
        return Missing(title, f"no run recorded {key}")
    axis.set_xlabel("epoch")
    axis.set_ylabel(unit)
    style.log_y(axis)
    style.legend(axis)
    return Figure(name, title, drawing, rows, "The first seed of each experiment." + note)


def rates(cells, value_of):
    return course(cells, value_of, "lr", "rate_course", "Learning rate along the runs", "learning rate", True)


def batches(cells, value_of):
    return course(
        cells, value_of, "global_batch", "batch_course", "Batch along the runs", "global batch (samples)", False
    )


# ---- Noise ---------------------------------------------------------------------------------------------------------


def noise(cells, value_of, made):
    """Draws the noise scale with its interval, and B_crit of the fits."""
    title = "Gradient noise scale along the runs"
    measured = [c for c in cells if any("noise_scale" in run.steps for run in c.runs)]
    if not measured:
        return Missing(title, "no run measured it (noise.small_batch, and a batch in two passes or on two ranks)")
    shown, note = figures_losses.coloured(measured, value_of)
    drawing, (axis,) = style.panels()
    looks = noise_looks(shown)
    rows = [row for cell in measured for row in draw_noise(axis, cell, looks.get(id(cell)))]
    if not rows:
        return Missing(title, "no run has a noise scale above zero")
    others = len(measured) - len(shown)
    if others:
        axis.add_line(figures_losses.entry_of_others(others))
    words = draw_critical(axis, shown, looks, made)
    style.log_y(axis)
    axis.set_xlabel("epoch")
    axis.set_ylabel("noise scale (samples)")
    style.legend(axis)
    return Figure(
        "noise_scale",
        title,
        drawing,
        rows,
        "tr Sigma / |G|^2 of the averages over steps (McCandlish et al. 2018, appendix A.1), in samples; pale: 95 % "
        f"interval. Values that are not above zero are left out.{words}{note}",
    )


def noise_looks(shown):
    """Maps the id of each cell to the look of its line. Families have markers of their own if there are several."""
    families = list(grouping.families(shown))
    return {
        id(cell): {**look, "marker": style.MARKERS[(families.index(cell.family) if len(families) > 1 else index) % len(style.MARKERS)]}
        for index, (cell, look) in enumerate(zip(shown, figures_losses.looks(shown), strict=True))
    }


def draw_critical(axis, shown, looks, made):
    """Draws B_crit: a line and a band if there is one fit. Several would cover each other, so they stand side by side right
    of the axis, each with its interval and the marker of its family. Returns a sentence for the figure's note."""
    if len(made) == 1:
        ((family, found),) = made.items()
        axis.axhline(found.critical, color=style.GREY, linewidth=1.2, label=f"B_crit, {grouping.label(family)}")
        axis.axhspan(found.critical_interval.low, found.critical_interval.high, color="#000000", alpha=0.07)
        return " Grey: B_crit of the fit."
    own = {family: [looks[id(cell)] for cell in cells] for family, cells in grouping.families(shown).items() if family in made}
    for place, (family, lines) in enumerate(own.items()):
        found, colours = made[family], {str(line["color"]) for line in lines}
        axis.plot(
            [1.03 + 0.035 * place] * 3,
            [found.critical_interval.low, found.critical, found.critical_interval.high],
            transform=axis.get_yaxis_transform(),
            clip_on=False,
            color=lines[0]["color"] if len(colours) == 1 else style.GREY,
            marker=lines[0]["marker"],
            markevery=[1],
            linewidth=1.6,
        )
    if not own:
        return ""
    axis.plot([], [], color=style.GREY, marker="|", linestyle="", markersize=12, label="B_crit of each family, at the right")
    return " Right of the axis: B_crit of the fit of each family, with its 95 % interval and the family's marker."


def draw_noise(axis, cell, look):
    """Draws the line and the interval of a cell's first run, or a thin grey line if `look` is None. Returns its rows."""
    run = next(r for r in cell.runs if "noise_scale" in r.steps)
    empty = numpy.full(len(run.steps["step"]), math.nan)
    x, value = run.steps["epoch"], run.steps["noise_scale"]
    low, high = (run.steps.get(f"noise_scale_{end}", empty) for end in ("low", "high"))
    keep = numpy.flatnonzero(numpy.isfinite(value) & (value > 0))
    keep = keep[:: max(1, len(keep) // (POINTS if look else figures_losses.POINTS))]
    if not len(keep):
        return []
    if look is None:
        axis.plot(x[keep], value[keep], **figures_losses.OTHERS)
    else:
        every = marks(style.MARKERS.index(look["marker"]), len(keep))
        axis.plot(x[keep], value[keep], label=grouping.cell_label(cell), markevery=every, markersize=5, linewidth=1.2, zorder=3, **look)
        bounded = keep[numpy.isfinite(low[keep]) & numpy.isfinite(high[keep]) & (low[keep] > 0)]
        axis.fill_between(x[bounded], low[bounded], high[bounded], color=look["color"], alpha=0.12, linewidth=0)
    return [
        {
            "trial": run.name,
            "batch": cell.batch,
            "rate": cell.rate,
            "seed": run.seed,
            "epoch": x[i],
            "samples": run.steps["samples"][i],
            "noise_scale": value[i],
            "noise_scale_low": none_of(low[i]),
            "noise_scale_high": none_of(high[i]),
        }
        for i in keep
    ]


def none_of(value):
    return None if math.isnan(value) else value


def published_noise(courses, made, rows):
    """Draws table 1 of McCandlish et al. 2018, and our values above it. A line goes from the value at the start of
    training to the average over training. `courses` is made by noise_answers.courses()."""
    title = "Noise scale and B_crit, ours and published"
    ours = {grouping.label(family): course.values() for family, course in courses.items()}
    published = noise_answers.published(rows)
    for family, found in made.items():
        ours.setdefault(grouping.label(family), {})["critical_batch_average"] = found.critical
    if not ours or not published:
        return Missing(title, "neither a noise scale nor B_crit was measured")
    entries = [(f"ours: {name}", values) for name, values in ours.items()] + list(published.items())
    names = [style.wrapped(name, 34) for name, _ in entries]
    height = 0.32 * len(entries) * max(1, 0.6 * max(name.count("\n") + 1 for name in names)) + 1
    drawing, (axis,) = style.panels(height=height)
    for place, (name, values) in enumerate(entries):
        for key, look, shift in (("critical_batch", 0, -0.15), ("noise_scale", 1, 0.15)):
            ends = [values.get(f"{key}_{end}") for end in ("start", "average")]
            xs = [v for v in ends if v is not None]
            axis.plot(
                xs, [place + shift] * len(xs), color=style.COLOURS[look], linewidth=1, linestyle=style.LINES[look]
            )
            axis.plot(
                xs[-1:],
                [place + shift] * len(xs[-1:]),
                linestyle="",
                marker=style.MARKERS[look],
                color=style.COLOURS[look],
                label=("B_crit", "noise scale")[look] if place == len(entries) - 1 else None,
            )
    style.log_x(axis)
    axis.set_yticks(range(len(entries)), names, fontsize=9)
    axis.invert_yaxis()
    axis.set_xlabel("samples (Billion Word: tokens)")
    style.legend(axis, below=0.65)
    table = [
        {
            "what": name,
            **{
                k: values.get(k)
                for k in ("critical_batch_start", "critical_batch_average", "noise_scale_start", "noise_scale_average")
            },
        }
        for name, values in entries
    ]
    return Figure(
        "noise_published",
        title,
        drawing,
        table,
        "Published: McCandlish et al. 2018, table 1, a line from the start of training to the average over it (marker); "
        f"other models and data than ours. Ours: the medians over the first {100 * noise_answers.START:.0f} % of the samples of a run and "
        "along all of it, as geometric means over the runs, and the fit.",
    )
