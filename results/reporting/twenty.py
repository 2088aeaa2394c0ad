"""The critical batch by the 20 % criterion, from the measured points alone.

Zhang et al. 2024, "How Does Critical Batch Size Scale in Pre-training?" (arXiv:2410.21676): the batch at which the target
takes 20 % more steps than perfect scaling from the small batches. Perfect scaling takes the same samples at every batch.
If steps and samples are on McCandlish's hyperbola (fit.py), samples / Emin = 1 + B / B_crit, so this batch is
0.2 B_crit.

The criterion takes it that samples do not fall as the batch grows. Where measured samples fall, it uses their common
mean. Otherwise a single batch below the limit would outweigh smaller ones far above it."""

import math
from dataclasses import dataclass

import numpy
from scipy.stats import t as student

from . import fit as fitting

EXTRA = 0.2
BRANCH = 1.5  # the small-batch branch: from the smallest batch on, as long as samples are below this times the fewest


@dataclass(frozen=True)
class Twenty:
    """`batch` is 0 if the smallest batch already takes 20 % more steps, and infinite if no batch does. `interval` is a
    95 % bootstrap interval over the seeds and the places between evaluations. `samples` is what perfect scaling takes,
    and `branch` the number of batches that say so."""

    batch: float
    interval: fitting.Interval
    samples: float
    branch: int


def branch_length(samples):
    above = numpy.flatnonzero(samples > BRANCH * samples.min())
    return int(above[0]) if len(above) else len(samples)


def perfect(batches, samples):
    """Returns the samples of perfect scaling: the limit at small batches of a line, samples = a + b B with b >= 0, by
    least squares of the relative errors."""
    ones = numpy.column_stack([1 / samples, batches / samples])
    (start, slope), *_ = numpy.linalg.lstsq(ones, numpy.ones(len(samples)), rcond=None)
    if slope > 0 and start > 0:
        return float(start)
    return float((1 / samples).sum() / (1 / samples**2).sum())


def rising(values):
    """Returns the values that are closest by least squares and never fall: isotonic regression, by its max-min formula
    (Robertson, Wright and Dykstra 1988, "Order Restricted Statistical Inference")."""
    ends = range(len(values))
    return numpy.array([max(min(values[j : k + 1].mean() for k in ends[i:]) for j in ends[: i + 1]) for i in ends])


def crossing(batches, samples, length):
    """Returns (batch of the criterion, samples of perfect scaling). Between two batches, samples lie on a line."""
    start = perfect(batches[:length], samples[:length])
    limit = (1 + EXTRA) * start
    below = numpy.flatnonzero(samples <= limit)
    if not len(below):
        return 0.0, start
    last = below[-1]
    if last + 1 == len(samples):
        return math.inf, start
    share = (limit - samples[last]) / (samples[last + 1] - samples[last])
    return float(batches[last] + share * (batches[last + 1] - batches[last])), start


def logs_of(values, between):
    """Returns log S of the seeds of each batch, in the middle between their evaluations."""
    return [fitting.logs_at(0.5, numpy.asarray(v, float), numpy.asarray(b, float)) for v, b in zip(values, between, strict=True)]


def log_samples(batches, logs):
    return numpy.array([v.mean() for v in logs]) + numpy.log(batches)


def why_none(batches, values, between):
    """Says why find() returns None for these batches, which are two or more."""
    samples = numpy.exp(log_samples(batches, logs_of(values, between)))
    first = branch_length(samples)
    return (
        f"batch {batches[first]:,.0f} takes {samples[first] / samples.min():.2g} x the fewest samples, so fewer than two small "
        "batches say what perfect scaling takes"
    )


def find(batches, values, between):
    """Returns the Twenty. Returns None if the small-batch branch has fewer than two batches, so that it is not known what
    perfect scaling takes. The arguments are those of fit.fit()."""
    batches = numpy.asarray(batches, float)
    evaluations = [(numpy.asarray(v, float), numpy.asarray(b, float)) for v, b in zip(values, between, strict=True)]
    logs = logs_of(values, between)
    means = log_samples(batches, logs)
    length = branch_length(numpy.exp(means)) if len(batches) else 0
    if length < 2:
        return None
    means = rising(means)
    free = sum(len(v) - 1 for v in logs)
    error = fitting.spread_of_seeds(logs) * (student.ppf(0.975, free) / 1.96 if free else 1.0)
    random = numpy.random.default_rng(1)
    moved = error * random.standard_normal((fitting.DRAWS, len(batches)))
    moved += numpy.column_stack([fitting.places(*pair, random) for pair in evaluations])
    drawn = [crossing(batches, numpy.exp(means + move), length)[0] for move in moved]
    low, high = numpy.percentile(drawn, [2.5, 97.5], method="nearest")
    found, start = crossing(batches, numpy.exp(means), length)
    return Twenty(found, fitting.Interval(float(low), float(high)), start, length)


def disagree(twenty, fit, batches):
    """Returns whether the intervals of the criterion and of EXTRA times the fit's B_crit have no batch in common. A batch
    below all `batches` that ran is 0 for the criterion, and one above them is infinite, so the fit's count as such, too."""

    def place(value):
        return 0.0 if value < min(batches) else math.inf if value > max(batches) else value

    low, high = (place(EXTRA * end) for end in (fit.critical_interval.low, fit.critical_interval.high))
    return twenty.interval.high < low or high < twenty.interval.low


def words(twenty, batches):
    """Returns the batch and its interval as text. `batches` are those that ran."""

    def text(value):
        if value == 0:
            return f"below {min(batches):,.0f}"
        return f"above {max(batches):,.0f}" if math.isinf(value) else f"{value:,.0f}"

    low, high = text(twenty.interval.low), text(twenty.interval.high)
    return text(twenty.batch) + ("" if low == high else f" ({low} to {high})")
