"""What follow.py hands a run's records to, and the steps that went there already."""

import importlib
import math
import sys
from pathlib import Path

from . import following
from .errors import ReportError

ROOT = Path(__file__).resolve().parents[2]
# What .ci/trackers.sh and .ci/mlperf_logging.sh install.
FOLDERS = (
    ROOT / "build/trackers/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages",
    ROOT / "build/mlperf-logging",
)


def load(option, package, *modules):
    """The modules of a package that only this option needs."""
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
    """What was asked for, as functions that make a run's writer; a missing package is an error before anything runs."""
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
    """name -> number, in order; what is nested gets its name in front: noise_groups/weight/scale."""
    found = {}
    for key, value in record.items():
        if isinstance(value, dict):
            found.update(numbers(value, f"{prefix}{key}/"))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[prefix + key] = value
    return found


def mark_of(record):
    """The number that tells two computations of a step apart."""
    value = record.get("validation_loss" if following.is_evaluation(record) else "loss")
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def same(a, b):
    """As far as 32 bits can tell."""
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6))


class Written:
    """The steps that a tracker has: step -> mark, of updates and of evaluations."""

    def __init__(self, updates=None, evaluations=None):
        self.marks = {False: updates or {}, True: evaluations or {}}

    def add(self, record):
        self.marks[following.is_evaluation(record)][record["step"]] = mark_of(record)

    def has(self, record):
        return record["step"] in self.marks[following.is_evaluation(record)]

    def differs(self, record):
        """Whether the step went there with other numbers: it was computed again after a resume."""
        marks = self.marks[following.is_evaluation(record)]
        return record["step"] in marks and not same(marks[record["step"]], mark_of(record))

    def last(self, evaluations=False):
        return max(self.marks[evaluations], default=0)

    def forget_from(self, step):
        for kind, marks in self.marks.items():
            self.marks[kind] = {s: mark for s, mark in marks.items() if s < step}


class Followed:
    """A run with a writer for each sink. A writer has take([(record, time)], again), end(outcome), flush(), close(),
    words() and advice()."""

    def __init__(self, run, sinks):
        self.run, self.sinks = run, sinks
        self.writers, self.clock, self.ended = [], following.Clock(), False

    def look(self, once=False):
        """Hands on what is new. The outcome is read first: whatever comes before it is then in the file."""
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
