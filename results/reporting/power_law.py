"""Fits value = factor * x^power, with an interval of the power, and draws it."""

import math
from dataclasses import dataclass

import numpy
from scipy.optimize import brentq
from scipy.stats import t as student

from .fit import DRAWS, Interval

LEAST = 1e-30  # an interval down to 0 counts as one down to this share of its high end


@dataclass(frozen=True)
class PowerLaw:
    """value = factor * x^power, with the 95 % interval of the power."""

    factor: float
    power: float
    interval: Interval

    def at(self, x):
        return self.factor * numpy.asarray(x, float) ** self.power


def scatter(x, y, errors):
    """Returns the standard deviation around a straight line that the errors leave unexplained: with it, the squared
    residuals, each divided by its variance, add up to the degrees of freedom (Paule and Mandel 1982). 0 if the errors
    explain all of them. A value that is hardly known tells nothing about the scatter of the others."""

    def excess(variance):
        weights = 1 / (errors**2 + variance)
        (x_mean, y_mean), total = (weights @ numpy.column_stack([x, y]), weights.sum())
        x_own, y_own = x - x_mean / total, y - y_mean / total
        residuals = y_own - x_own * ((weights * x_own) @ y_own) / ((weights * x_own) @ x_own)
        return weights @ residuals**2 - (len(x) - 2)

    if excess(0.0) <= 0:
        return 0.0
    high = float(((y - y.mean()) ** 2).sum())  # more than any residuals have
    return math.sqrt(brentq(excess, 0.0, high))


def power_law(x, values, intervals):
    """Returns the PowerLaw by least squares in log space, or None with fewer than three different x. The interval of the
    power allows for the intervals of the values, and for scatter around the law that they do not explain."""
    if len(set(x)) < 3:
        return None
    x, y = numpy.log(x), numpy.log(values)
    errors = numpy.array([max(math.log(i.high / max(i.low, LEAST * i.high)) / (2 * 1.96), 1e-9) for i in intervals])
    power, start = numpy.polyfit(x, y, 1)
    widened = numpy.hypot(errors, scatter(x, y, errors) * student.ppf(0.975, len(x) - 2) / 1.96)
    random = numpy.random.default_rng(1)
    drawn = [numpy.polyfit(x, y + widened * random.standard_normal(len(x)), 1)[0] for _ in range(DRAWS)]
    low, high = numpy.percentile(drawn, [2.5, 97.5])
    return PowerLaw(float(math.exp(start)), float(power), Interval(float(low), float(high)))


def draw(panel, x, values, intervals, law, name, words, look):
    """Draws the values with their intervals, and the law if there is one. `words` begins the law's name in the legend."""
    ends = numpy.array([(i.low, i.high) for i in intervals], float).reshape(-1, 2).T
    panel.errorbar(x, values, yerr=numpy.abs(ends - numpy.array(values)), capsize=3, label=name, **look)
    if law:
        label = f"{words}^{law.power:.2f} ({law.interval.low:.2f} to {law.interval.high:.2f})"
        along = numpy.geomspace(min(x), max(x), 30)
        panel.plot(along, law.at(along), color=look["color"], linewidth=1.2, label=label)


def columns(law):
    """Returns the columns of the law in a figure's table. They are empty without a law."""
    return {
        "power": law.power if law else None,
        "power_low": law.interval.low if law else None,
        "power_high": law.interval.high if law else None,
    }
