"""Says what the noise scale did along the runs, and how it lies beside table 1 of McCandlish et al. 2018."""

import math
from dataclasses import dataclass

import numpy
from scipy.stats import t as student

from . import cells as grouping
from . import verdict
from .answers import about, between, joined, several
from .fit import Interval

START = 0.05  # the share of the samples of a run that counts as its start
NEAR = 2  # the noise scale is near B_crit if their ratio is at most this
SAME_ORDER = math.sqrt(10)  # two values are of one order of magnitude if their ratio is at most this
# The row of the table with a task like ours: ten classes of pictures of 28 x 28 pixels.
LIKE = {"mnist": "MNIST", "mnist_4000": "MNIST", "fashion": "MNIST"}  # by the name of the training data
NAMES = {
    "noise_scale_start": "noise scale at the start",
    "noise_scale_average": "on average",
    "critical_batch_average": "B_crit",
}


@dataclass(frozen=True)
class Course:
    """The noise scale of a family's runs: its median at the start of a run (None if no run measured it there), its median
    along a run, and `factor`, the second over the first. Each is the geometric mean over the runs. The factor has a 95 %
    interval (None for one run). `of_batch` has the averages of the runs of each batch."""

    start: float | None
    average: float
    factor: float | None
    interval: Interval | None
    of_batch: dict

    def values(self):
        """Returns start and average by the names of the published columns."""
        own = {"noise_scale_start": self.start, "noise_scale_average": self.average}
        return {name: value for name, value in own.items() if value is not None}


def published(rows):
    """Maps the rows of the table to their values. Values from memory are left out."""
    found = {}
    for r in rows:
        if r.work.startswith("McCandlish") and r.is_checked:
            found.setdefault(r.row, {})[r.metric] = r.value
    return found


def median_scale(values):
    values = values[numpy.isfinite(values) & (values > 0)]
    return float(numpy.median(values)) if len(values) else None


def start_and_average(run):
    """Returns the medians over the first START of the run's samples, but at least one step, and over all of them."""
    samples, scale = run.steps["samples"], run.steps["noise_scale"]
    if not len(samples):
        return None, None
    beginning = max(1, int(numpy.searchsorted(samples, START * samples[-1], side="right")))
    return median_scale(scale[:beginning]), median_scale(scale)


def geometric_mean(values):
    return math.exp(numpy.mean(numpy.log(values)))


def course_of(cells):
    """Returns the Course of the cells' runs, or None if no run measured the noise scale."""
    starts, averages, factors, of_batch = [], [], [], {}
    for batch, run in ((cell.batch, run) for cell in cells for run in cell.runs):
        if "noise_scale" not in run.steps or run.state == "diverged":
            continue
        start, average = start_and_average(run)
        if average is None:
            continue
        averages.append(average)
        of_batch.setdefault(batch, []).append(average)
        if start is not None:
            starts.append(start)
            factors.append(math.log(average / start))
    if not averages:
        return None
    interval = None
    if len(factors) > 1:
        half = student.ppf(0.975, len(factors) - 1) * numpy.std(factors, ddof=1) / math.sqrt(len(factors))
        interval = Interval(*(math.exp(numpy.mean(factors) + side * half) for side in (-1, 1)))
    return Course(
        geometric_mean(starts) if starts else None,
        geometric_mean(averages),
        math.exp(numpy.mean(factors)) if factors else None,
        interval,
        of_batch,
    )


def courses(cells):
    """Maps each family that measured the noise scale to its Course."""
    found = {family: course_of(own) for family, own in grouping.families(cells).items()}
    return {family: course for family, course in found.items() if course}


def of_noise(figure, cells, found, made):
    """Says whether the noise scale predicts B_crit, whether it rises along the runs, and whether it depends on the batch."""
    return joined([*beside_critical(found, made), *growth(found), *between_batches(cells, found)], [figure])


def beside_critical(found, made):
    for family, fit in made.items():
        if family in found:
            scale = found[family].average
            ratio = scale / fit.critical
            text = f"The noise scale, {about(scale)} samples, is {ratio:.2g} x B_crit, {about(fit.critical)}"
            near = 1 / NEAR <= ratio <= NEAR
            yield several(made, family, text), "it predicts B_crit" if near else "it does not predict B_crit"


def growth(found):
    for family, course in found.items():
        if course.factor is None:
            continue
        text = f"The noise scale goes from {about(course.start)} samples at the start to {about(course.average)} on average"
        word = "open: one run"
        if course.interval:
            text += f", {about(course.factor)} x ({between(course.interval)})"
            low, high = course.interval.low, course.interval.high
            word = "rises, as McCandlish et al. 2018 found" if low > 1 else "falls" if high < 1 else "open: no change seen"
        yield several(found, family, text), word


def between_batches(cells, found):
    """Compares the averages of the smallest and of the largest batch, in log space, for families with one rate: the noise
    scale depends on the rate as well."""
    for family, own in grouping.families(cells).items():
        of_batch = found[family].of_batch if family in found else {}
        if len(of_batch) < 2 or len({cell.rate for cell in own}) > 1:
            continue
        low, high = min(of_batch), max(of_batch)
        small, large = (verdict.Sample.of(numpy.log(of_batch[batch])) for batch in (low, high))
        text = (
            f"Batch {low:,} measures a noise scale of {about(math.exp(small.mean))} on average, and batch {high:,} one of "
            f"{about(math.exp(large.mean))}"
        )
        words = {"inside": "no difference seen", "no spread": "open: one run each"}
        yield several(found, family, text), words.get(verdict.judge(large, small).word, "they differ")


def of_published(figure, data, found, made, rows):
    """Compares the start and the average of the noise scale, and B_crit, with the row of the table whose task is like
    ours. `data` is the name of the training data. The networks differ, so only orders of magnitude are compared."""
    row = LIKE.get(data)
    theirs, told = published(rows).get(row, {}), []
    for family, course in found.items():
        ours = course.values() | ({"critical_batch_average": made[family].critical} if family in made else {})
        pairs = {name: (ours[key], theirs[key]) for key, name in NAMES.items() if key in ours and key in theirs}
        if not pairs:
            continue
        parts = [f"{name} {about(own)} ({about(value)})" for name, (own, value) in pairs.items()]
        far = [name for name, (own, value) in pairs.items() if not 1 / SAME_ORDER <= own / value <= SAME_ORDER]
        text = f"Ours, and in brackets {row} with another network (McCandlish et al. 2018, table 1): {', '.join(parts)}"
        word = f"another order of magnitude: {', '.join(far)}" if far else "the same order of magnitude"
        told.append((several(found, family, text), word))
    return joined(told, [figure])
