"""Figures over the batch: the final error or loss, and the best learning rate."""

import numpy

from . import cells as grouping
from . import measures, rate_rules, style
from .style import Figure, Missing

PUBLISHED_ERRORS = [
    ("goyal.csv", "error against batch", "Goyal 2017, SGD"),
    ("lars.csv", "ResNet-50 with LARS, maximum augmentation", "You 2017, LARS"),
    ("adascale.csv", "AdaScale", "Johnson 2020, AdaScale"),
]


def columns_of(point):
    own = {"family": grouping.label(point.cell.family), "batch": point.batch, "rate": point.cell.rate}
    return {**own, **grouping.tuned_columns(point.cell)}


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


def outcome_points(cells, measure):
    return {family: grouping.best_points(own, measure.of) for family, own in grouping.families(cells).items()}


def outcome(cells, measure, lines, rows):
    """Draws the final value at the best rate of each batch, and the values of all other rates in pale colour. For
    images, a second panel below has published errors. `lines` comes from outcome_points()."""
    title = f"{measure.title[0].upper()}{measure.title[1:]}, against the batch"
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
    warnings = left_out(cells, lines, "finished") + tuning_warnings(lines, "finished")
    return Figure("outcome_vs_batch", title, drawing, table, note, warnings)


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


def left_out(cells, lines, did):
    """Returns a warning for each family with batches that have no point, and one for the families without any."""
    found, empty = [], []
    for family, own in grouping.families(cells).items():
        known = {p.batch for p in lines.get(family, ())}
        rest = sorted({cell.batch for cell in own} - known)
        if not known:
            empty.append(grouping.label(family))
        elif rest:
            found.append(f"{grouping.label(family)}: no run {did} at batch {', '.join(f'{batch:,}' for batch in rest)}")
    return found + ([f"no run {did} in {'; '.join(empty)}"] if empty else [])


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


def seeds_best(cells, value_of):
    """Returns the best rate of each seed of a batch's cells."""
    values = [(cell.rate, cell.by_seed(value_of)) for cell in cells]
    seeds = sorted({seed for _, own in values for seed in own})
    return [min((own[seed], rate) for rate, own in values if seed in own)[1] for seed in seeds]


def rates_beside(cells):
    """Returns the rates that were tried. If other keys are tuned as well, the points fill a space of several dimensions:
    they are as far apart in the rate as those of a grid with as many points."""
    rates = sorted({cell.rate for cell in cells})
    if not cells[0].tuned:
        return rates
    return numpy.geomspace(rates[0], rates[-1], max(2, round(len(rates) ** (1 / (1 + len(cells[0].tuned))))))


def rules_of(cells, points, value_of):
    """Returns rate_rules.fit_rules() of the batches whose best rate is not at the edge of the rates that were tried."""
    tried, inner = grouping.by_batch(cells), [p for p in points if p.rates > 2 and not p.edge]
    errors = [
        rate_rules.error_of(rates_beside(tried[p.batch]), p.cell.rate, seeds_best(tried[p.batch], value_of)) for p in inner
    ]
    return rate_rules.fit_rules([p.batch for p in inner], [p.cell.rate for p in inner], errors)


def rates_found(cells, value_of):
    """Maps each family that ran two batches or more to (points, rules). None of them is left if every batch ran at one
    rate only."""
    found = {f: (grouping.best_points(own, value_of), own) for f, own in grouping.families(cells).items()}
    return {f: (points, rules_of(own, points, value_of)) for f, (points, own) in found.items() if len(points) > 1}


def best_rates(cells, found, by):
    """Draws the best peak rate of each batch, and the rules that were fitted to them. `found` comes from
    rates_found()."""
    title = "Best peak learning rate, against the batch"
    if not found:
        return Missing(title, "no family of runs has two batches")
    if all(p.rates < 2 for points, _ in found.values() for p in points):
        return Missing(title, "every batch ran at one rate only, so none is the best of several")
    drawing, (axis,) = style.panels()
    for index, (family, (points, rules)) in enumerate(found.items()):
        look = style.line(index, len(found), linestyle="")
        for cell in grouping.families(cells)[family]:
            axis.plot(cell.batch, cell.rate, linestyle="", marker="_", color=style.GREY, alpha=0.6)
        axis.plot([p.batch for p in points], [p.cell.rate for p in points], label=grouping.label(family), **look)
        for p in points:
            if p.edge:
                axis.plot(p.batch, p.cell.rate, marker="o", markersize=13, markerfacecolor="none", color=style.GREY)
        draw_rules(axis, points, rules, look["color"], "" if len(found) == 1 else f", {grouping.label(family)}")
    rates = [cell.rate for cell in cells]
    axis.set_ylim(min(rates) / 1.6, max(rates) * 1.6)
    style.log_y(axis)
    axis.set_ylabel("peak learning rate")
    style.batch_axis(axis, [p.batch for points, _ in found.values() for p in points])
    style.legend(axis)
    rows = [
        {**columns_of(p), "rates_tried": p.rates, "edge": p.edge, **rule_columns(rules, p.batch)}
        for points, rules in found.values()
        for p in points
    ]
    return Figure(
        "best_rate_vs_batch",
        title,
        drawing,
        rows,
        f"Best by {by}. Short lines: all rates that were tried; a ring: the best one is the edge of what was tried, and no "
        "rule is fitted to it. Surge: 2 rate_max / (sqrt(B_noise / B) + sqrt(B / B_noise)) (Li et al. 2024, "
        "arXiv:2405.14578).",
    )


def draw_rules(axis, points, rules, colour, end):
    """Draws the rules. The one that fits best has a broad line."""
    x = numpy.geomspace(points[0].batch, points[-1].batch, 60)
    best, _ = rate_rules.best_of(rules)
    for rule, dash in zip(rules.values(), ("-.", ":", "--", "-")):
        words = f", maximum at {rule.values[1]:,.0f}" if rule.name == "surge" and rule.values[1] < x[-1] else ""
        width = 2 if best is rule else 1
        axis.plot(x, rule.at(x), color=colour, linestyle=dash, linewidth=width, label=f"{rule.name}{words}{end}")


def rule_columns(rules, batch):
    return {
        key: value
        for name, rule in rules.items()
        for key, value in (
            (name.replace(" ", "_"), float(rule.at(batch))),
            (f"{name.replace(' ', '_')}_misfit", rule.misfit),
        )
    }
