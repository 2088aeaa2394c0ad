"""Says in one sentence what a study found. Each answer has its verdict, and the figure or table that shows why.

A verdict is given only where the intervals or a test allow it. Otherwise it is "open"."""

import math
from dataclasses import dataclass, field

import numpy

from . import cells as grouping
from . import rate_rules, style, verdict
from . import twenty as criterion

SCALES = 0.8  # an efficiency of this much is called good


@dataclass
class Answer:
    """`more` has further sentences. `items` are the Figures and Tables that show it."""

    text: str
    verdict: str
    items: list
    more: list = field(default_factory=list)


def about(value):
    """Returns a number with two digits, such as 520 or 13,000."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def between(interval):
    return f"{about(interval.low)} to {about(interval.high)}"


def ours_first(lines):
    """Returns the families, those with the most points first."""
    return sorted((f for f in lines if lines[f]), key=lambda f: -len(lines[f]))


def several(lines, family, text):
    """Puts the family's name in front if there are several."""
    return f"{grouping.label(family)}: {text[:1].lower()}{text[1:]}" if len(lines) > 1 else text


# ---- Steps to the target -------------------------------------------------------------------------------------------


def doubling(points):
    """Returns the factor of the steps when the batch doubles, on average from the first point to the last."""
    first, last = points[0], points[-1]
    return (last.mean / first.mean) ** (1 / math.log2(last.batch / first.batch))


def pays(points, made):
    """Returns (sentence, verdict) on whether larger batches pay. `made` is the Fit, or None."""
    low, high = points[0].batch, points[-1].batch
    whole = f"twice the batch needs {doubling(points):.2f} x the steps (0.5 x is perfect scaling)"
    if made is None:
        return f"From {low:,} to {high:,} samples, {whole}; there is no fit of B_crit", "open"
    inside = made.critical_interval
    if inside.low > high:
        return f"Up to {high:,} samples, the largest batch that reached the target, a larger batch pays: {whole}", "larger batches pay"
    if inside.high < low:
        return f"Even at {low:,} samples, the smallest batch that reached the target, a step costs more than it brings: {whole}", (
            "larger batches do not pay"
        )
    if inside.low < low or inside.high > high:
        of_fit = f", {about(made.critical)} ({between(inside)})," if made.knows_critical([low, high]) else ""
        return f"From {low:,} to {high:,} samples, {whole}; B_crit{of_fit} may lie outside of these batches", "open"
    above = [p for p in points if p.batch >= made.critical]
    above = above if len(above) > 1 else points[-2:]
    return (
        f"Above {about(made.critical)} samples a step costs more than it brings: twice the batch needs "
        f"{doubling(above):.2f} x the steps"
    ), f"larger batches pay up to B_crit = {about(made.critical)} ({between(inside)})"


def of_target(figure, lines, made, twenty, goals=()):
    """`goals` has what is to be said first of the same figure."""
    found = list(goals)
    for family in ours_first(lines):
        points = lines[family]
        if len(points) < 2:
            continue
        text, word = pays(points, made.get(family))
        found.append((several(lines, family, text), word))
        if family in twenty:
            batch = criterion.words(twenty[family], [p.batch for p in points])
            text = f"20 % more steps than perfect scaling are needed at batch {batch} (Zhang et al. 2024)"
            found.append((several(lines, family, text), ""))
    return joined(found, [figure])


def joined(found, items):
    """Makes an answer of (sentence, verdict) pairs. The first is the answer, the others follow."""
    if not found:
        return []
    (text, word), *others = found
    return [Answer(text, word, items, [f"{t}: {w}." if w else f"{t}." for t, w in others])]


# ---- Final values --------------------------------------------------------------------------------------------------


def difference(ours, theirs):
    """Returns (word, verdict) for two points; lower values are better."""
    judged = verdict.judge(*(verdict.Sample.of(p.values.values()) for p in (ours, theirs)))
    words = {"above": ("worse than", "worse"), "below": ("better than", "better"), "inside": ("as good as", "no difference seen")}
    return words.get(judged.word, ("beside", "open: one seed each"))


def of_outcome(figure, lines, measure):
    """Compares the largest batch with the smallest, and the families at the largest batch that several of them ran."""

    def value(point):
        return f"{point.mean:.4g} {measure.unit}"

    found = []
    for family in ours_first(lines):
        points = lines[family]
        if len(points) > 1:
            words, word = difference(points[-1], points[0])
            text = (
                f"The largest batch that finished, {points[-1].batch:,}, ends at {value(points[-1])}, {words} the smallest, "
                f"{points[0].batch:,}, at {value(points[0])}"
            )
            found.append((several(lines, family, text), word))
    at = {}
    for family, points in lines.items():
        for point in points:
            at.setdefault(point.batch, []).append((point, grouping.label(family)))
    common = [batch for batch, own in at.items() if len(own) > 1]
    if common:
        (best, name), (second, other), *_ = sorted(at[max(common)], key=lambda pair: pair[0].mean)
        words, word = difference(best, second)
        text = f"At batch {max(common):,}, {name} ends at {value(best)}, {words} {other} at {value(second)}"
        found.insert(0, (text, word))
    return joined(found, [figure])


# ---- Rates, share --------------------------------------------------------------------------------------------------

GROWTH = {
    "constant": "does not change with the batch",
    "linear": "grows linearly with the batch",
    "square root": "grows with the square root of the batch",
}


def of_rates(figure, found):
    answers = []
    for family, (points, rules) in found.items():
        best, why = rate_rules.best_of(rules)
        first, last = points[0], points[-1]
        if best is None:
            text = f"The best rate goes from {first.cell.rate:.2g} at batch {first.batch:,} to {last.cell.rate:.2g} at {last.batch:,}"
            answers.append((several(found, family, text), f"open: {why}"))
            continue
        words = GROWTH.get(best.name) or f"rises up to a batch of about {about(best.values[-1])} and then falls"
        answers.append((several(found, family, f"The best rate {words}"), f"{best.name} rule"))
    left = {p.batch for points, _ in found.values() for p in points if p.edge}
    if answers and left:
        listed = ", ".join(f"{batch:,}" for batch in sorted(left))
        answers.append((f"Left out, as the best rate is the edge of those that were tried: batch {listed}", ""))
    return joined(answers, [figure])


def of_share(figure, laws):
    found = []
    for law in laws:
        low, high = law.interval.low, law.interval.high
        word = "grows with the data" if low > 0 else "falls with the data" if high < 0 else "open: no change seen"
        found.append((f"B_crit follows the share of the data as share^{law.power:.2f} ({low:.2f} to {high:.2f})", word))
    return joined(found, [figure])


def of_best_batch(figure, axis, laws):
    """Says how the best batch follows the rate or the share. Smith and Le 2018 found it proportional to both. An interval
    that also has the square root decides nothing."""
    found = []
    for name, law in laws.items():
        low, high = law.interval.low, law.interval.high
        if low <= 0:
            word = "falls" if high < 0 else "open: no change seen"
        elif 1 not in law.interval:
            word = "grows, but not in proportion"
        elif 0.5 in law.interval:
            word = "open: it grows, but the data cannot tell proportional and square root apart"
        else:
            word = "proportional, as Smith and Le 2018 found"
        text = f"The best batch follows the {axis} as {axis}^{law.power:.2f} ({low:.2f} to {high:.2f})"
        found.append((f"{name}: {text[:1].lower()}{text[1:]}" if len(laws) > 1 else text, word))
    return joined(found, [figure])


# ---- Speed, published numbers, branches ----------------------------------------------------------------------------


def of_ranks(figure):
    found = []
    for line in dict.fromkeys(row["line"] for row in figure.rows):
        rows = sorted((row for row in figure.rows if row["line"] == line), key=lambda row: row["ranks"])
        first, last = rows[0], rows[-1]
        if last["ranks"] > first["ranks"] and last.get("efficiency"):
            times = last["samples_per_second"] / first["samples_per_second"]
            text = f"{last['ranks']} ranks compute {times:.2f} x as many samples a second as {first['ranks']} ({line})"
            word = f"{'scales well' if last['efficiency'] >= SCALES else 'scales badly'}, efficiency {last['efficiency']:.0%}"
            found.append((text, word))
    return joined(found, [figure])


def of_published(table, comparisons, candidates):
    """One sentence for each comparison with a verdict, and one for all published rows that are not comparable. Each
    sentence has the arithmetic or the differences in the table behind it."""
    found = []
    good = [c for c in comparisons if c.verdict.word != "not comparable"]
    for c in good:
        side = verdict.good_or_bad(c.verdict, c.reference.metric)
        text = f"{grouping.cell_label(c.cell)} lies {c.verdict.word} {c.reference.name}"
        found.append((text.replace("lies no spread", "stands beside"), side or c.verdict.word))
    left = candidates - len({c.reference for c in good})
    if left > 0:
        rows = f"{left} published {'row differs' if left == 1 else 'rows differ'} in model, data or recipe"
        found.append((rows, "not comparable"))
    return joined(found, [table])


def of_branches(figure, points):
    sizes = [(point.epoch, point.batch_of(point.largest)) for point in points if point.largest is not None]
    if len(sizes) < 2:
        return []
    (first, small), (last, large) = sizes[0], sizes[-1]
    text = f"The largest batch that wastes no samples goes from {small:,} at epoch {first:.3g} to {large:,} at epoch {last:.3g}"
    return [Answer(text, "grows" if large > small else "does not grow", [figure])]


def of_end(figure, cells, measure):
    """Says where the best experiment ended, for a study that has no other answer."""
    ended = [(float(numpy.mean(list(v.values()))), c) for c in cells if (v := c.by_seed(measure.of))]
    if not ended or not isinstance(figure, style.Figure):
        return []
    value, cell = min(ended, key=lambda pair: pair[0])
    best = "The best experiment" if len(cells) > 1 else "The run" if len(cell.runs) == 1 else "The experiment"
    return [Answer(f"{best} ({grouping.cell_label(cell)}) ended at {value:.4g} {measure.unit}", "finished", [figure])]
