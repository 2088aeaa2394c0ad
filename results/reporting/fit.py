"""Fits (S / Smin - 1) (E / Emin - 1) = 1, where S is the number of steps and E the number of samples to a target.

This is equation 2.11 of McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv:1812.06162). With
the batch B = E / S and the critical batch B_crit = Emin / Smin, it says S = Smin (1 + B_crit / B).

A run reaches the target somewhere between the first evaluation that sees it and the evaluation before. The fit takes
the middle, and the intervals allow for every place between the two."""

from dataclasses import dataclass

import numpy
from scipy.optimize import least_squares
from scipy.stats import t as student

DRAWS = 500
FAR = 100  # B_crit is not known if its interval goes further than this beyond the batches that ran


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def __contains__(self, value):
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Fit:
    """Smin (`steps`) and Emin (`samples`) with their 95 % bootstrap intervals. `deviation` is the standard deviation of
    log S around the curve, and `points` the number of batches."""

    steps: float
    samples: float
    steps_interval: Interval
    samples_interval: Interval
    critical_interval: Interval
    deviation: float
    points: int

    @property
    def critical(self):
        return self.samples / self.steps

    def knows_critical(self, batches):
        """Says whether the interval of B_crit ends within FAR times the batches that ran."""
        return min(batches) / FAR <= self.critical_interval.low and self.critical_interval.high <= FAR * max(batches)

    def steps_at(self, batch):
        return self.steps + self.samples / numpy.asarray(batch, float)

    def samples_at(self, batch):
        return self.samples + self.steps * numpy.asarray(batch, float)


def minima(batches, log_steps, near=None):
    """Returns (Smin, Emin) by least squares in log S. Since E = S B, log E has the same residuals. `near` is the
    starting point of the search."""
    shift = numpy.log(batches)

    def residuals(logs):
        return numpy.logaddexp(logs[0], logs[1] - shift) - log_steps

    def slopes(logs):
        share = numpy.exp(logs[0] - numpy.logaddexp(logs[0], logs[1] - shift))
        return numpy.column_stack([share, 1 - share])

    highest = numpy.array([log_steps.min(), (log_steps + shift).min()])
    begin = highest - numpy.log(2) if near is None else numpy.log(near)
    found = least_squares(residuals, begin, slopes, method="lm").x
    # If all batches lie on one side of B_crit, one of the minima goes to zero. The limits keep the numbers finite.
    return numpy.exp(numpy.clip(found, highest - 15, highest + 5))


def curve(batches, found):
    return numpy.log(found[0] + found[1] / batches)


def logs_at(share, steps, between):
    """Returns log S of each seed, if it reached the target after this share of the steps between its two evaluations.
    `steps` is the step of the second evaluation, and `between` the number of steps since the first."""
    return numpy.log(steps - (1 - share) * between)


def spread_of_seeds(logs):
    """Returns the standard error of a batch's mean over its seeds, pooled over the batches. 0 if every batch has one
    seed."""
    free = sum(len(v) - 1 for v in logs)
    if free == 0:
        return 0.0
    variance = sum(((v - v.mean()) ** 2).sum() for v in logs) / free
    return float(numpy.sqrt(variance * numpy.mean([1 / len(v) for v in logs])))


def places(steps, between, random):
    """Returns, for DRAWS places between the two evaluations, how far the mean of log S there is from that in the middle.
    All seeds of a batch have the same place, because seeds with the same curve reach the target at the same place."""
    drawn = [logs_at(share, steps, between).mean() for share in random.random(DRAWS)]
    return numpy.array(drawn) - logs_at(0.5, steps, between).mean()


def bootstrap(batches, found, residuals, deviation, evaluations):
    """Returns the minima of DRAWS sets of points. A point is on the curve plus a residual, which is drawn from all of
    them with a random sign. The residuals are first scaled up to `deviation`, and then by the ratio of Student's t to
    the normal distribution, because a few points show less scatter than there is. Then each point moves to a random
    place between its evaluations, which are pairs for logs_at()."""
    free = len(batches) - 2
    size = numpy.sqrt(numpy.mean(residuals**2))
    widened = residuals * (deviation / size if size > 0 else 0.0) * student.ppf(0.975, free) / 1.96
    random = numpy.random.default_rng(1)
    draws = random.choice(widened, size=(DRAWS, len(batches))) * random.choice([-1.0, 1.0], size=(DRAWS, len(batches)))
    draws += numpy.column_stack([places(*pair, random) for pair in evaluations])
    return numpy.array([minima(batches, curve(batches, found) + draw, found) for draw in draws])


def fit(batches, values, between):
    """Returns the Fit, or None with fewer than three batches. `values` has a list for each batch, with the step of each
    seed's first evaluation that reached the target. `between` has the numbers of steps since the evaluations before,
    which are smaller than the steps. The curve goes through the means of log S over the seeds as well as possible."""
    if len(batches) < 3:
        return None
    batches = numpy.asarray(batches, float)
    evaluations = [(numpy.asarray(v, float), numpy.asarray(b, float)) for v, b in zip(values, between, strict=True)]
    logs = [logs_at(0.5, *pair) for pair in evaluations]
    means = numpy.array([v.mean() for v in logs])
    found = minima(batches, means)
    residuals = means - curve(batches, found)
    deviation = max(float(numpy.sqrt((residuals**2).sum() / (len(batches) - 2))), spread_of_seeds(logs))
    drawn = bootstrap(batches, found, residuals, deviation, evaluations)
    low, high = numpy.percentile(drawn, [2.5, 97.5], axis=0)
    of_critical = numpy.percentile(drawn[:, 1] / drawn[:, 0], [2.5, 97.5])
    return Fit(
        *map(float, found),
        Interval(low[0], high[0]),
        Interval(low[1], high[1]),
        Interval(*of_critical),
        deviation,
        len(batches)
    )
