"""The best batch, against the learning rate and against the share of the data.

Smith and Le 2018, "A Bayesian perspective on generalization and stochastic gradient descent" (arXiv:1710.06451), found
that the batch with the best test accuracy is proportional to the rate and to the number of training samples."""

from dataclasses import dataclass

import numpy
from scipy.stats import chi2
from scipy.stats import t as student

from . import cells as grouping
from . import figures_share, power_law, style
from .fit import DRAWS, Interval
from .style import Figure, Missing

RATE, SHARE = "rate", "share"
TITLES = {RATE: "Best batch, against the learning rate", SHARE: "Best batch, against the share of the data"}
AXES = {RATE: "learning rate", SHARE: "share of the training data"}
FEWEST_BATCHES = 4
AT_EDGE = 0.1  # a best batch is inside if at most this share of the draws puts it at the smallest or largest batch


@dataclass(frozen=True)
class Best:
    """The best batch with its 95 % interval. `edge` is "low" or "high" if it may lie outside of the batches that ran."""

    batch: float
    interval: Interval
    edge: str = ""


def lowest(batches, values):
    """Returns the batch at the minimum of a parabola in log2 of the batch, through the smallest value and its neighbours.
    Values further away would pull it: training is nearly unstable at small batches, so the values rise steeply there and
    slowly on the other side."""
    at = int(numpy.argmin(values))
    if at in (0, len(batches) - 1):
        return float(batches[at])
    near = slice(at - 1, at + 2)
    x = numpy.log2(batches)
    square, linear, _ = numpy.polyfit(x[near], values[near], 2)
    if square <= 0:
        return float(batches[at])
    return float(2 ** numpy.clip(-linear / (2 * square), x[at - 1], x[at + 1]))


def median_share(freedoms):
    """Returns the median of a sample variance with these degrees of freedom, as a share of the variance."""
    return chi2.ppf(0.5, freedoms) / freedoms


def best_of(points):
    """Returns the Best. `points` maps batches to the values of their seeds; lower values are better. Returns None with
    fewer than four batches, or if every batch has one seed. The means are drawn again from normal distributions with the
    spread of the seeds; Student's t allows for few seeds. A batch that is nearly unstable has a far larger spread than the
    others, so variances are not pooled: each batch has its own, or the typical one if that is larger."""
    free = sum(len(own) - 1 for own in points.values())
    if len(points) < FEWEST_BATCHES or free < 1:
        return None
    batches = numpy.array(sorted(points), float)
    seeds = [numpy.asarray(points[batch], float) for batch in batches]
    means = numpy.array([own.mean() for own in seeds])
    typical = numpy.median([own.var(ddof=1) / median_share(len(own) - 1) for own in seeds if len(own) > 1])
    variances = numpy.array([max(own.var(ddof=1) if len(own) > 1 else 0.0, typical) / len(own) for own in seeds])
    errors = numpy.sqrt(variances) * student.ppf(0.975, free) / 1.96
    random = numpy.random.default_rng(1)
    drawn = numpy.array([lowest(batches, means + errors * random.standard_normal(len(means))) for _ in range(DRAWS)])
    low, high = (float((drawn == batches[end]).mean()) for end in (0, -1))
    edge = "low" if low > max(AT_EDGE, high) else "high" if high > AT_EDGE else ""
    return Best(lowest(batches, means), Interval(*map(float, numpy.percentile(drawn, [2.5, 97.5]))), edge)


def lines_of(cells, value_of, axis):
    """Maps each line's name to {rate or share: Best}. Only rates that do not follow the batch are compared, and only
    cells of which every seed has a value. A line has three rates or shares, or more."""
    found = {}
    for cell in cells:
        share, values = figures_share.share_of([cell]), cell.by_seed(value_of)
        follows = {grouping.value_of(run, "learning_rate.scaling") for run in cell.runs} != {"none"}
        if follows or not cell.all_finished or len(values) < len(cell.seeds) or share is None:
            continue
        rest = tuple(pair for pair in cell.family if pair[0] != figures_share.KEY)
        if axis == RATE:
            line, x = grouping.label((*cell.family, *cell.tuned) if cell.tuned else cell.family), cell.rate
        else:
            line, x = grouping.rate_label(cell) + (f", {grouping.label(rest)}" if rest else ""), share
        found.setdefault(line, {}).setdefault(x, {})[cell.batch] = list(values.values())
    lines = {
        line: {x: best for x, points in sorted(of_x.items()) if (best := best_of(points))}
        for line, of_x in found.items()
        if len(of_x) > 2
    }
    return {line: own for line, own in lines.items() if len(own) > 2}


def law_of(line):
    """Returns the power law of those best batches that lie inside of the batches that ran, or None."""
    inner = {x: best for x, best in line.items() if not best.edge}
    return power_law.power_law(list(inner), [b.batch for b in inner.values()], [b.interval for b in inner.values()])


def laws_of(lines):
    return {name: law for name, line in lines.items() if (law := law_of(line))}


def draw_published(panel, x, batches):
    """Draws the law that Smith and Le published, a best batch in proportion to x, through the middle of ours."""
    factor = numpy.exp(numpy.mean(numpy.log(numpy.array(batches) / numpy.array(x))))
    ends = numpy.array([min(x), max(x)])
    panel.plot(ends, factor * ends, color=style.GREY, linestyle="--", linewidth=1.5, label="published: in proportion")


def best_batch(lines, laws, axis, by):
    """Draws the best batches of the lines, and their power laws (laws_of()). Returns None if no line has three rates or
    shares."""
    if not lines:
        return None
    if not laws:
        return Missing(TITLES[axis], "fewer than three best batches lie inside of the batches that ran")
    drawing, (panel,) = style.panels()
    rows = []
    for index, (name, line) in enumerate(lines.items()):
        inner = {x: best for x, best in line.items() if not best.edge}
        values, intervals = [best.batch for best in inner.values()], [best.interval for best in inner.values()]
        law, look = laws.get(name), style.line(index, len(lines), linestyle="")
        power_law.draw(panel, list(inner), values, intervals, law, name, axis, look)
        if law is not None and len(lines) == 1:
            draw_published(panel, list(inner), values)
        for x, best in line.items():
            if best.edge:
                panel.plot(x, best.batch, marker="o", markersize=13, markerfacecolor="none", color=style.GREY)
        rows += [
            {
                "line": name,
                axis: x,
                "best_batch": best.batch,
                "best_batch_low": best.interval.low,
                "best_batch_high": best.interval.high,
                "edge": best.edge,
                **power_law.columns(law),
            }
            for x, best in line.items()
        ]
    style.powers(panel, [x for line in lines.values() for x in line])
    style.log_y(panel)
    panel.set_xlabel(AXES[axis])
    panel.set_ylabel("best batch (samples)")
    style.legend(panel)
    note = (
        f"The batch with the best {by}: the minimum of a parabola through the lowest mean over the seeds and its neighbours, with its 95 % interval. A "
        "ring: it may lie outside of the batches that ran, and counts in no power law. Smith and Le 2018 (arXiv:1710.06451) "
        f"found it proportional to the {AXES[axis] if axis == RATE else 'number of training samples'}."
    )
    return Figure(f"best_batch_vs_{axis}", TITLES[axis], drawing, rows, note)
