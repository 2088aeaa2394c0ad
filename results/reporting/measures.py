"""The numbers by which runs are compared: the final error or loss, and the cost to reach a target."""

import math
from dataclasses import dataclass

import numpy

from .errors import ReportError
from .records import is_number

TARGETS = ("validation_loss", "validation_accuracy")


@dataclass(frozen=True)
class Measure:
    """A final value of a run. `key` is a key of the evaluations, or "loss" for the training loss of the updates."""

    key: str
    title: str
    unit: str

    @property
    def axis(self):
        return f"{self.title.split(',')[0]} ({self.unit})"

    def of(self, run):
        """Returns the run's final value. Returns None if the run did not finish or has no such value."""
        if run.state != "finished":
            return None
        if self.key == "loss":
            losses = run.column("loss")
            losses = losses[numpy.isfinite(losses)]
            return float(losses[-max(1, len(losses) // 20) :].mean()) if len(losses) else None
        values = [e[self.key] for e in run.evaluations if is_number(e.get(self.key))]
        if not values:
            return None
        # The error is the median of the last five evaluations, as in section 5 of Goyal et al. 2017.
        return 100 * (1 - float(numpy.median(values[-5:]))) if self.key == "validation_accuracy" else float(values[-1])


ERROR = Measure("validation_accuracy", "top-1 validation error, median of the last 5 evaluations", "%")
LOSS = Measure("validation_loss", "validation loss, last evaluation", "nats")
TRAINING_LOSS = Measure("loss", "training loss, mean of the last 5 % of steps", "nats")


def measure_for(runs):
    """Returns the error for images and the validation loss for text. Without evaluations, returns the training loss."""
    if not any(run.evaluations for run in runs):
        return TRAINING_LOSS
    return ERROR if all(run.is_image for run in runs) else LOSS


REACHED_BY_ALL = "the best value that every batch reaches with its best rate"  # see target_of()


@dataclass(frozen=True)
class Target:
    metric: str
    value: float
    chosen: str = "stop.target_value of the runs"

    def reached(self, evaluation):
        value = evaluation.get(self.metric)
        if not is_number(value):
            return False
        return value <= self.value if self.metric == "validation_loss" else value >= self.value

    def __str__(self):
        if self.metric == "validation_loss":
            return f"validation loss at or below {self.value:.4g} nats"
        return f"validation accuracy at or above {100 * self.value:.4g} %"


@dataclass(frozen=True)
class Cost:
    """The cost of a run up to its first evaluation that reached the target. `resolution` is the number of steps since
    the evaluation before. `seconds` includes evaluations, and `training_seconds` does not."""

    steps: int
    samples: int
    epochs: float
    seconds: float
    training_seconds: float
    resolution: int


def parse_target(words):
    metric, value = words
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if metric not in TARGETS or not 0 < number < math.inf:
        raise ReportError(
            f"--target {metric} {value}: expected {' or '.join(TARGETS)} and a number above 0, "
            "such as --target validation_loss 1.9 or --target validation_accuracy 0.75"
        )
    return Target(metric, number, "--target")


def best_value(run, metric):
    values = [e[metric] for e in run.evaluations if is_number(e.get(metric))]
    if not values:
        return None
    return min(values) if metric == "validation_loss" else max(values)


def cost_to(run, target):
    """Returns the Cost. Returns None if the target was not reached, or if the run diverged later, because such a recipe
    should not be recommended."""
    before, spent = 0, 0.0
    if run.state == "diverged":
        return None
    for evaluation in run.evaluations:
        own = evaluation.get("evaluation_seconds", 0.0)
        if target.reached(evaluation):
            begin = elapsed_at(run, evaluation["step"])
            return Cost(
                evaluation["step"],
                evaluation.get("samples", 0),
                evaluation.get("epoch", math.nan),
                begin + own,
                begin - spent,
                evaluation["step"] - before,
            )
        before, spent = evaluation["step"], spent + own
    return None


def elapsed_at(run, step):
    """Returns the run's elapsed seconds after this step."""
    steps = run.column("step")
    if not len(steps) or "elapsed_seconds" not in run.steps:
        return math.nan
    return float(run.steps["elapsed_seconds"][min(numpy.searchsorted(steps, step), len(steps) - 1)])


def target_of(cells):
    """Returns the runs' own target if all have the same one. Otherwise returns the best value that every batch reaches
    with all seeds at its best rate, in the families with the most batches. Returns None without evaluations."""
    runs = [run for cell in cells for run in cell.runs]
    stated = {(run.config.get("stop.target_metric"), run.config.get("stop.target_value")) for run in runs}
    if len(stated) == 1 and next(iter(stated))[0] in TARGETS:
        return Target(*next(iter(stated)))
    metric = "validation_accuracy" if runs and all(run.is_image for run in runs) else "validation_loss"
    worse, better = (max, min) if metric == "validation_loss" else (min, max)
    of_batches = {}
    for cell in cells:
        values = [v for v in (best_value(run, metric) for run in cell.runs) if v is not None]
        if values and cell.all_finished:
            place = (cell.family, cell.batch)
            of_batches[place] = better(of_batches.get(place, worse(values)), worse(values))
    if not of_batches:
        return None
    counts = [family for family, _ in of_batches]
    most = max(map(counts.count, counts))
    value = worse(v for (family, _), v in of_batches.items() if counts.count(family) == most)
    digits = 3 if metric == "validation_loss" else 4
    step = 10.0**-digits
    rounded = math.ceil(value / step) * step if metric == "validation_loss" else math.floor(value / step) * step
    return Target(metric, round(rounded, digits), REACHED_BY_ALL)
