"""Rules for the best learning rate at a batch B, fitted to the best of the rates that were tried.

  constant:     rate = c
  linear:       rate = c B                                            (Goyal et al. 2017)
  square root:  rate = c sqrt(B)                                      (Krizhevsky 2014)
  surge:        rate = 2 rate_max / (sqrt(B_noise/B) + sqrt(B/B_noise))  (Li et al. 2024, arXiv:2405.14578, for Adam
                and other optimizers that follow the sign of the gradient): it rises, has a maximum at B_noise, and falls. Equation 2;
                far above B_noise, the rate of the paper tends to a constant

A rule fits best only if it is 20 times as likely as each other one (Akaike's criterion: a difference of 2 ln 20)."""

import math
from dataclasses import dataclass

import numpy
from scipy.optimize import least_squares
from scipy.stats import chi2

TELLS_APART = 2 * math.log(20)
POSSIBLE = 0.01  # a rule whose misfit is less likely than this does not fit
FAR = 10  # at a tenth of B_noise, the surge is 9 % below the square root
SLOPES = {"constant": 0.0, "linear": 1.0, "square root": 0.5}
RULES = (*SLOPES, "surge")


@dataclass(frozen=True)
class Rule:
    """A fitted rule. `misfit` is the sum of squares of (log rate - rule) / error. `criterion` is Akaike's: the misfit plus
    twice the number of fitted numbers. `values` are (c) or (rate_max, B_noise)."""

    name: str
    values: tuple
    misfit: float
    criterion: float
    is_possible: bool

    def at(self, batch):
        return numpy.exp(log_rate(self.name, numpy.log(self.values), numpy.log(numpy.asarray(batch, float))))


def log_rate(name, logs, log_batch):
    if name == "surge":
        half = (log_batch - logs[1]) / 2
        return logs[0] - numpy.log(numpy.cosh(half))
    return logs[0] + SLOPES[name] * log_batch


def error_of(rates, best, best_of_seeds):
    """Returns the standard error of the log of the best rate. The true best lies anywhere within half a step of the
    rates that were tried, which has the variance step^2 / 12. The seeds may have different best rates, too."""
    tried = numpy.log(sorted(rates))
    place = int(numpy.argmin(abs(tried - math.log(best))))
    step = numpy.diff(tried)[max(0, place - 1) : place + 1].mean()
    logs = numpy.log(best_of_seeds)
    seeds = numpy.var(logs, ddof=1) / len(logs) if len(logs) > 1 else 0.0
    return math.sqrt(step**2 / 12 + seeds)


def fit_rule(name, batches, rates, errors):
    log_batch, log_best = numpy.log(batches), numpy.log(rates)

    def residuals(logs):
        return (log_rate(name, logs, log_batch) - log_best) / errors

    if name == "surge":
        # The search starts at several places, because without a maximum among the batches B_noise is hardly known.
        begins = [(log_best.max(), start) for start in (*log_batch, log_batch[-1] + 3)]
        limits = ([-numpy.inf, log_batch[0] - 3], [numpy.inf, log_batch[-1] + 7])
        found = min((least_squares(residuals, b, bounds=limits) for b in begins), key=lambda made: made.cost)
    else:
        found = least_squares(residuals, [0.0])
    misfit, numbers = float(2 * found.cost), len(found.x)
    free = max(1, len(batches) - numbers)
    return Rule(name, tuple(numpy.exp(found.x)), misfit, misfit + 2 * numbers, bool(chi2.sf(misfit, free) >= POSSIBLE))


def fit_rules(batches, rates, errors):
    """Returns the rules as name -> Rule. The surge has two numbers, so it needs four batches; the others need three. A
    surge whose maximum is far above all batches is left out, because it is the square root."""
    batches, rates, errors = (numpy.asarray(v, float) for v in (batches, rates, errors))
    names = RULES if len(batches) > 3 else tuple(SLOPES) if len(batches) > 2 else ()
    rules = {name: fit_rule(name, batches, rates, errors) for name in names}
    if "surge" in rules and rules["surge"].values[1] > FAR * batches.max():
        del rules["surge"]
    return rules


def best_of(rules):
    """Returns (the rule that fits best, None), or (None, why none does)."""
    if not rules:
        return None, "fewer than three batches have a best rate within the rates that were tried"
    order = sorted(rules.values(), key=lambda rule: rule.criterion)
    if not order[0].is_possible:
        return None, "no rule fits"
    close = [r.name for r in order if r.criterion - order[0].criterion < TELLS_APART]
    if len(close) > 1:
        return None, f"the data cannot tell {' and '.join(close)} apart"
    return order[0], None
