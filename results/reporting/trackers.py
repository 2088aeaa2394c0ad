"""Gives a run's records to the trackers of follow.py, and knows which steps each tracker already has."""

import importlib
import math
import sys
from pathlib import Path

from . import following
from .errors import ReportError

ROOT = Path(__file__).resolve().parents[2]
# .ci/trackers.sh and .ci/mlperf_logging.sh install packages into these folders.
FOLDERS = (
    ROOT / "build/trackers/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages",
    ROOT / "build/mlperf-logging",
)


def load(option, package, *modules):
    """Returns modules of a package that only this option of follow.py needs."""
    for folder in FOLDERS:
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return [importlib.import_module(module) for module in modules]
    except ImportError as error:
        script = ".ci/mlperf_logging.sh" if package == "mlperf-logging" else ".ci/trackers.sh"
        raise ReportError(
            f"{option} needs the Python package {package}, which {sys.executable} cannot import ({error}); "
            f"install it: {sys.executable} -m pip install {package}; or run {script}, which puts it into build/"
        ) from error


def make(arguments, source):
    """Returns an object for each tracker that the user asked for. Its writer(run) makes the writer of a run. A missing
    package is reported here, before any run is followed."""
    sinks = []
    if arguments.tensorboard:
        from .to_tensorboard import TensorBoard

        sinks.append(TensorBoard(arguments.tensorboard))
    if arguments.wandb:
        from .to_wandb import Wandb

        sinks.append(Wandb(arguments.wandb, arguments.wandb_dir))
    if arguments.mllog:
        from .to_mllog import MLLog

        sinks.append(MLLog(arguments.mllog, source.is_one_run, arguments.mllog_org))
    return sinks


def numbers(record, prefix=""):
    """Maps names to the numbers of a record, in order. Names of nested numbers are joined:
    noise_groups/weight/scale."""
    found = {}
    for key, value in record.items():
        if isinstance(value, dict):
            found.update(numbers(value, f"{prefix}{key}/"))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[prefix + key] = value
    return found


def mark_of(record):
    """Returns the loss of a record. If a step is computed twice with another result, the two losses differ."""
    value = record.get("validation_loss" if following.is_evaluation(record) else "loss")
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def same(a, b):
    """Returns whether two numbers are equal up to the rounding of 32-bit floats."""
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6))


class Written:
    """The steps that a tracker already has: a map step -> loss (mark_of) for updates, and another for evaluations."""

    def __init__(self, updates=None, evaluations=None):
        self.marks = {False: updates or {}, True: evaluations or {}}

    def add(self, record):
        self.marks[following.is_evaluation(record)][record["step"]] = mark_of(record)

    def has(self, record):
        return record["step"] in self.marks[following.is_evaluation(record)]

    def differs(self, record):
        """Returns whether the tracker has this step with another loss. The step was then computed again after a
        resume."""
        marks = self.marks[following.is_evaluation(record)]
        return record["step"] in marks and not same(marks[record["step"]], mark_of(record))

    def last(self, evaluations=False):
        return max(self.marks[evaluations], default=0)

    def forget_from(self, step):
        for kind, marks in self.marks.items():
            self.marks[kind] = {s: mark for s, mark in marks.items() if s < step}


class Followed:
    """A run with a writer for each tracker (sink). A writer has the functions take([(record, time)], again),
    end(outcome), flush(), close(), words() and advice()."""

    def __init__(self, run, sinks):
        self.run, self.sinks = run, sinks
        self.writers, self.clock, self.ended = [], following.Clock(), False

    def look(self, once=False):
        """Gives new records to the writers. The outcome is read before the records. When there is an outcome, the
        records are then complete."""
        outcome, starts = self.run.outcome(), self.run.starts()
        again, records = self.run.new_records()
        if self.ended and outcome and not records:
            return
        if not self.writers:
            if not (records or outcome or once):
                return
            self.writers = [sink.writer(self.run) for sink in self.sinks]
        if again:
            self.clock = following.Clock()
        stamped = [(record, self.clock.time_of(record, starts)) for record in records]
        for writer in self.writers:
            writer.take(stamped, again)
            if outcome:
                writer.end(outcome)
            writer.flush()
        self.ended = bool(outcome)

    def close(self):
        for writer in self.writers:
            writer.close()

    def words(self):
        return "; ".join(writer.words() for writer in self.writers) or "nothing yet"

    def advice(self):
        return [sentence for writer in self.writers for sentence in writer.advice()]
