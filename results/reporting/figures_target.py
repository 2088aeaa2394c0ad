"""Figures of the cost to reach a target, over the batch: steps, samples, epochs, and the fit of the critical batch."""

import math

import numpy

from . import cells as grouping
from . import fit as fitting
from . import measures, style
from . import twenty as criterion
from .figures_batch import columns_of, draw_points, left_out, spread_row, tuning_warnings
from .style import Figure, Missing

# The number of steps between two evaluations, as a share of the steps to the target. Above the first share, the steps to
# the target are known too roughly for a fit. Above the second one, the page warns.
TOO_COARSE, COARSE = 1 / 3, 0.1


def steps_points(cells, target):
    def steps(run):
        cost = measures.cost_to(run, target)
        return cost.steps if cost else None

    return {family: grouping.best_points(own, steps) for family, own in grouping.families(cells).items()}


def costs_of(point, target):
    return [c for c in (measures.cost_to(run, target) for run in point.cell.runs) if c]


def coarseness(point, target):
    """Returns the largest share of the steps to the target that lies between two evaluations. It is 1 if the first
    evaluation of a run reached the target."""
    return max(c.resolution / c.steps for c in costs_of(point, target))


def mean_batch(point, target):
    """Returns samples / steps up to the target. This is the batch, or its mean if it changed during the run."""
    costs = costs_of(point, target)
    return sum(c.samples for c in costs) / sum(c.steps for c in costs)


def measured(points, target):
    """Returns the arguments of fit.fit() and twenty.find(): batches, steps of the seeds, and steps between evaluations."""

    def between(run):
        cost = measures.cost_to(run, target)
        return cost.resolution if cost else None

    return (
        [mean_batch(p, target) for p in points],
        [list(p.values.values()) for p in points],
        [list(p.cell.by_seed(between).values()) for p in points],
    )


def of_families(lines, target, find):
    """Maps each family to what `find` returns for its batches, each at its best rate. Leaves out families whose
    evaluations are too far apart, and those for which it returns None."""
    found = {}
    for family, points in lines.items():
        if points and all(coarseness(p, target) <= TOO_COARSE for p in points):
            found[family] = find(*measured(points, target))
    return {family: made for family, made in found.items() if made}


def fits(lines, target):
    """Maps families to the Fit."""
    return of_families(lines, target, fitting.fit)


def twenties(lines, target):
    """Maps families to the Twenty."""
    return of_families(lines, target, criterion.find)


def target_rows(lines, target):
    table = []
    for points in lines.values():
        for p in points:
            costs = costs_of(p, target)
            table.append(
                {
                    **columns_of(p),
                    "steps_mean": p.mean,
                    "steps_deviation": p.deviation,
                    "samples_mean": float(numpy.mean([c.samples for c in costs])),
                    "seeds": len(p.values),
                    "not_reached": p.missing,
                    "steps_between_evaluations": max(c.resolution for c in costs),
                    "rates_tried": p.rates,
                    "edge": p.edge,
                }
            )
    return table


def to_target(target, lines, made, twenty, cells):
    """Draws steps and samples to the target at the best rate of each batch, perfect scaling, and the fits. If there is
    only one fit, its regimes are shaded. `lines` comes from steps_points() of the cells, `made` from fits(), `twenty`
    from twenties()."""
    title = "Steps and samples to the target, against the batch"
    if target is None:
        return Missing(title, "nothing was evaluated, so there is no target")
    if not any(lines.values()):
        return Missing(title, f"no run reached the target, {target}")
    # A target that nobody asked for is of no use if the first evaluation reaches it, as in runs that are evaluated once.
    chosen = target.chosen == measures.REACHED_BY_ALL
    if chosen and all(coarseness(point, target) == 1 for points in lines.values() for point in points):
        return Missing(title, f"the first evaluation of every run had reached the target, {target}")
    drawing, axes = style.panels(2, shared=True)
    batches = [p.batch for points in lines.values() for p in points]
    for index, (family, points) in enumerate(lines.items()):
        draw_target(axes, (index, len(lines)), family, points, (made.get(family), twenty.get(family)), target)
        if family in twenty:
            words = "" if len(lines) > 1 else twenty_words(twenty[family], points)
            draw_twenty(axes[1], style.colour(index, len(lines)), twenty[family], words)
    axes[0].set_ylabel("steps to the target")
    axes[1].set_ylabel("samples to the target")
    for axis in axes:
        style.log_y(axis)
    style.batch_axis(axes[1], batches)
    if len(made) == 1:
        shade_regimes(axes, next(iter(made.values())).critical)
    style.legend(axes[1])
    return Figure(
        "to_target_vs_batch",
        title,
        drawing,
        target_rows(lines, target),
        target_note(target, made),
        [
            *left_out(cells, lines, "reached the target"),
            *warnings(lines, made, target),
            *disagreements(lines, made, twenty, target),
            *without_twenty(lines, twenty, target),
        ],
    )


def draw_twenty(axis, colour, found, label):
    """Marks the 20 % criterion on the samples: perfect scaling, and 20 % more."""
    if not 0 < found.batch < math.inf:
        axis.plot([], [], marker="*", linestyle="", color=colour, label=label)
        return
    level = (1 + criterion.EXTRA) * found.samples
    axis.plot([found.batch] * 2, [found.samples, level], color=colour, linewidth=1, zorder=4)
    axis.plot(found.batch, level, marker="*", markersize=12, linestyle="", color=colour, zorder=4, label=label)


def fit_words(made, points):
    if not made.knows_critical([p.batch for p in points]):
        return "B_crit is not known"
    low, high = made.critical_interval.low, made.critical_interval.high
    return f"B_crit {made.critical:,.0f} ({low:,.0f} to {high:,.0f})"


def twenty_words(found, points):
    return f"20 % criterion, {criterion.words(found, [p.batch for p in points])}"


def disagreements(lines, made, twenty, target):
    """Returns a warning for each family in which the two criteria of the critical batch do not agree."""
    return [
        f"{grouping.label(family)}: the two criteria disagree: 20 % more steps than perfect scaling are needed at batch "
        f"{criterion.words(found, [p.batch for p in lines[family]])}, but 0.2 B_crit of the fit is "
        f"{criterion.EXTRA * made[family].critical:,.0f} ({criterion.EXTRA * made[family].critical_interval.low:,.0f} to "
        f"{criterion.EXTRA * made[family].critical_interval.high:,.0f}); the points do not follow the hyperbola"
        for family, found in twenty.items()
        if family in made and criterion.disagree(found, made[family], [mean_batch(p, target) for p in lines[family]])
    ]


def without_twenty(lines, twenty, target):
    """Returns a warning for each family whose points do not have a 20 % criterion. coarse_warnings() has the families
    whose evaluations are too far apart."""
    return [
        f"{grouping.label(family)}: there is no 20 % criterion: {criterion.why_none(*measured(points, target))}"
        for family, points in lines.items()
        if family not in twenty and len(points) > 1 and all(coarseness(p, target) <= TOO_COARSE for p in points)
    ]


def draw_target(axes, place, family, points, found, target):
    """Draws one line. `place` holds the number of this line and the number of lines, `found` its Fit and its Twenty."""
    (index, count), (made, twenty) = place, found
    if not points:
        return
    x, label = numpy.array([p.batch for p in points]), grouping.label(family)
    if count > 1:  # one entry of the legend for each family
        label += f": {fit_words(made, points)}" if made else ""
        label += f"; {twenty_words(twenty, points)}" if twenty else ""
    means = numpy.array([mean_batch(p, target) for p in points])
    for axis, factor in zip(axes, (numpy.ones(len(x)), means)):
        spread = (
            numpy.array([[p.mean - min(p.values.values()), max(p.values.values()) - p.mean] for p in points]).T * factor
        )
        axis.errorbar(
            x,
            [p.mean for p in points] * factor,
            yerr=spread,
            capsize=3,
            label=label,
            **style.line(index, count, linestyle="" if made else "-"),
        )
    ideal = numpy.geomspace(x[0], x[-1], 50)
    samples = twenty.samples if twenty else points[0].mean * means[0]
    axes[0].plot(ideal, samples / ideal, color=style.GREY, linewidth=1, linestyle=":")
    axes[1].plot(
        ideal,
        numpy.full(50, samples),
        color=style.GREY,
        linewidth=1,
        linestyle=":",
        label="perfect scaling" if index == 0 else None,
    )
    if made:
        colour = style.colour(index, count)
        axes[0].plot(ideal, made.steps_at(ideal), color=colour, linewidth=1.2)
        axes[1].plot(
            ideal,
            made.samples_at(ideal),
            color=colour,
            linewidth=1.2,
            label=f"fit, {fit_words(made, points)}" if count == 1 else None,
        )


def shade_regimes(axes, critical):
    """Shades the batches from critical / 4 to 4 critical. Below them the slope of log steps over log batch is steeper
    than -0.8, close to perfect scaling. Above them it is flatter than -0.2. The regimes have the names of Shallue et
    al. 2019."""
    low, high = axes[0].get_xlim()
    for axis in axes:
        axis.axvspan(
            max(low, min(critical / 4, high)), max(low, min(4 * critical, high)), color="#000000", alpha=0.06, zorder=0
        )
        axis.axvline(critical, color=style.GREY, linewidth=1)
        axis.set_xlim(low, high)
    places = [
        ("perfect\nscaling", low, critical / 4),
        ("diminishing\nreturns", critical / 4, 4 * critical),
        ("maximal data\nparallelism", 4 * critical, high),
    ]
    for text, begin, end in places:
        begin, end = max(low, begin), min(high, end)
        if end > begin * 1.8:
            axes[0].text(
                (begin * end) ** 0.5,
                1.01,
                text,
                transform=axes[0].get_xaxis_transform(),
                fontsize=8,
                ha="center",
                va="bottom",
                color=style.GREY,
            )


def target_note(target, made):
    note = (
        f"Target: {target} ({target.chosen}), by the first evaluation that reached it, at the rate that took the fewest "
        "steps; bars are the smallest and largest of the seeds. Dotted: perfect scaling from the small batches. "
    )
    if made:
        note += (
            "Curve: (S / Smin - 1) (E / Emin - 1) = 1 in log space (McCandlish et al. 2018, equation 2.11), through the "
            "middle between that evaluation and the one before, 95 % bootstrap interval. Star: the batch that takes 20 % more "
            "steps than perfect scaling from the small batches, read off the points (Zhang et al. 2024, arXiv:2410.21676), or off "
            "their mean where samples fall as the batch grows; on the hyperbola it is 0.2 B_crit. Grey: from B_crit / 4 to 4 B_crit, where the curve's slope lies between -0.8 and -0.2."
        )
    return note


def fit_rows(made, twenty):
    return [
        {
            "family": grouping.label(family),
            "S_min": f.steps,
            "S_min_low": f.steps_interval.low,
            "S_min_high": f.steps_interval.high,
            "E_min": f.samples,
            "E_min_low": f.samples_interval.low,
            "E_min_high": f.samples_interval.high,
            "B_crit": f.critical,
            "B_crit_low": f.critical_interval.low,
            "B_crit_high": f.critical_interval.high,
            **twenty_columns(twenty.get(family)),
            "deviation_of_log_S": f.deviation,
            "batches": f.points,
            "unit": "steps and samples",
        }
        for family, f in made.items()
    ]


def twenty_columns(found):
    """A batch outside of those that ran, or an end of the interval there, is left empty."""
    values = (found.batch, found.interval.low, found.interval.high) if found else (0, 0, 0)
    names = ("B_20_percent", "B_20_percent_low", "B_20_percent_high")
    return {name: value if 0 < value < math.inf else None for name, value in zip(names, values)}


def warnings(lines, made, target):
    """Returns warnings about the best rates, about seeds that did not reach the target, about evaluations that are far
    apart, and about the fit."""
    found = tuning_warnings(lines, "reached the target")
    for family, points in lines.items():
        name = grouping.label(family)
        for p in points:
            if p.missing:
                found.append(
                    f"{name}, batch {p.batch}: {p.missing} of {len(p.cell.seeds)} seeds did not reach the target; the mean "
                    "is of the others"
                )
        shares = {p.batch: coarseness(p, target) for p in points}
        found += coarse_warnings(name, shares) + fit_warnings(name, points, shares, made.get(family))
    return found


def coarse_warnings(name, shares):
    """Returns a warning if evaluations are far apart. `shares` maps batches to coarseness()."""

    def listed(least):
        return ", ".join(str(batch) for batch, share in shares.items() if share >= least)

    worst = max(shares.values(), default=0)
    if worst <= COARSE:
        return []
    if worst == 1:
        text = f"at batch {listed(1)} the first evaluation already reached the target, so the steps are only an upper bound"
    else:
        text = f"at batch {listed(COARSE)} the evaluations are up to {worst:.0%} of the steps to the target apart"
    advice = "evaluate more often (evaluate.every_epochs, evaluate.every_steps), or choose a target that is reached later"
    return [f"{name}: {text}; {'there is no fit; ' if worst > TOO_COARSE else ''}{advice}"]


def fit_warnings(name, points, shares, made):
    if made is None and any(share > TOO_COARSE for share in shares.values()):
        return []
    if made is None:
        return [f"{name}: two batches are too few for the fit; it needs three"] if len(points) == 2 else []
    batches = [p.batch for p in points]
    if not made.knows_critical(batches):
        return [f"{name}: B_crit is not known, as its interval goes far beyond the batches that ran"]
    if not min(batches) <= made.critical <= max(batches):
        return [
            f"{name}: B_crit = {made.critical:.3g} lies outside of the batches {min(batches)} to {max(batches)} that ran, "
            "so it is extrapolated"
        ]
    return []


def epochs_to_759(cells, target, rows):
    """Draws the epochs to an accuracy on images, and below them the published convergence points of MLPerf."""
    title = "Epochs to the target, against the batch, beside MLPerf's convergence points"
    own = sorted((r for r in rows if r.metric == "epochs_to_759" and r.is_checked), key=lambda r: r.batch)
    if target is None or target.metric != "validation_accuracy" or not own:
        return Missing(title, "it needs runs on images with an accuracy to reach")

    def epochs(run):
        cost = measures.cost_to(run, target)
        return cost.epochs if cost else None

    lines = {f: grouping.best_points(c, epochs) for f, c in grouping.families(cells).items()}
    if not any(lines.values()):
        return Missing(title, f"no run reached the target, {target}")
    drawing, axes = style.panels(2, shared=False)
    for index, (family, points) in enumerate(lines.items()):
        draw_points(axes[0], index, grouping.label(family), points)
    axes[0].set_ylabel("epochs to the target")
    style.batch_axis(axes[0], [p.batch for points in lines.values() for p in points])
    axes[1].errorbar(
        [r.batch for r in own],
        [r.value for r in own],
        yerr=[r.spread or 0 for r in own],
        capsize=3,
        label="MLPerf v4.0, ResNet-50",
        **style.line(0, markerfacecolor="white"),
    )
    axes[1].set_ylabel("epochs to 75.9 %,\npublished: ImageNet")
    style.batch_axis(axes[1], [r.batch for r in own])
    for axis in axes:
        style.legend(axis)
    return Figure(
        "epochs_to_target_vs_batch",
        title,
        drawing,
        [spread_row(p) for points in lines.values() for p in points],
        f"Target: {target}. Below: reference convergence points, mean and standard deviation of 10 to 28 runs.",
    )
