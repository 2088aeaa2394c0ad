"""Gives a run's records to the trackers of follow.py, and knows which steps each tracker already has."""

import errno
import fcntl
import hashlib
import importlib
import math
import os
import socket
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


def is_compared(name, evaluation):
    """Returns whether this number tells two computations of a step apart. Times differ each time. TensorBoard's reader
    does not say which of a step's two records a number belongs to, so the names of the other kind are left out."""
    is_time = name.endswith("seconds") or name in ("samples_per_second", "share_of_bound")
    of_evaluation = name.startswith(("validation", "evaluation"))
    is_trackers_own = name.startswith("_")  # wandb's _step, _timestamp and _runtime
    return of_evaluation == evaluation and not is_time and not is_trackers_own and name not in ("step", "epoch", "samples", "targets")


def mark_of(record):
    """Returns the numbers of a record that are the same whenever the step is computed again with the same settings."""
    evaluation = following.is_evaluation(record)
    return {k: v for k, v in numbers(record).items() if is_compared(k, evaluation) and math.isfinite(v)}


def same(a, b):
    """Returns whether two marks are equal up to the rounding of 32-bit floats."""
    return a.keys() == b.keys() and all(math.isclose(a[k], b[k], rel_tol=1e-6, abs_tol=1e-44) for k in a)


class Written:
    """The steps that a tracker already has: a map step -> mark_of() for updates, and another for evaluations."""

    def __init__(self, updates=None, evaluations=None):
        self.marks = {False: updates or {}, True: evaluations or {}}

    def add(self, record):
        self.marks[following.is_evaluation(record)][record["step"]] = mark_of(record)

    def has(self, record):
        return record["step"] in self.marks[following.is_evaluation(record)]

    def differs(self, record):
        """Returns whether the tracker has this step with another number, such as its learning rate. The step was then computed again after a
        resume."""
        marks = self.marks[following.is_evaluation(record)]
        return record["step"] in marks and not same(marks[record["step"]], mark_of(record))

    def last(self, evaluations=False):
        return max(self.marks[evaluations], default=0)

    def forget_from(self, step):
        for kind, marks in self.marks.items():
            self.marks[kind] = {s: mark for s, mark in marks.items() if s < step}


class Claim:
    """The right to give a run to a tracker's place, which one process has at a time. The operating system takes it back
    when the process ends or is killed. The lock is a file in the run's folder, or in `folder` if the run's folder is
    read-only."""

    def __init__(self, run, place, folder):
        name = f".follow-{hashlib.sha256(os.fsencode(place)).hexdigest()[:12]}.lock"
        self.file = None
        for where in (run.path, folder):
            try:
                self.file = open(where / name, "a+", encoding="utf-8")
                break
            except OSError:
                continue
        if self.file is None:
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):  # this file system has no locks
                print(f"warning: {run.path} cannot be locked ({error.strerror}); let no second follow.py follow it", file=sys.stderr)
                return
            self.file.seek(0)
            owner = self.file.read().strip() or "another process"
            self.file.close()
            raise ReportError(
                f"{run.path} is already followed into {following.shown(place)} by {owner}; every step would be written twice. "
                "End that follow.py first, or give another place"
            ) from None
        self.file.truncate(0)
        self.file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self.file.flush()

    def release(self):
        if self.file is not None:
            self.file.close()
            self.file = None


class Followed:
    """A run with a writer for each tracker (sink). A writer has the functions take([(record, time)], again),
    end(outcome), flush(), close(), words() and advice()."""

    def __init__(self, run, sinks):
        self.run, self.sinks = run, sinks
        self.writers, self.claims, self.clock, self.ended = [], [], following.Clock(), False
        self.is_left_out = False

    def look(self, once=False):
        """Gives new records to the writers. The outcome is read before the records. When there is an outcome, the
        records are then complete. Throws BadRun."""
        if self.is_left_out:
            return
        outcome, starts = self.run.outcome(), self.run.starts()
        again, records = self.run.new_records()
        if self.ended and outcome and not records:
            return
        if not self.writers:
            if not (records or outcome or once):
                return
            for sink in self.sinks:
                self.claims.append(Claim(self.run, *sink.place()))
                self.writers.append(sink.writer(self.run))
        if again:
            self.clock = following.Clock()
        stamped = [(record, self.clock.time_of(record, starts)) for record in records]
        for writer in self.writers:
            writer.take(stamped, again)
            if outcome:
                writer.end(outcome)
            writer.flush()
        self.ended = bool(outcome)

    def leave_out(self):
        """Looks at the run no more, because its files cannot be read. What has been written stays."""
        self.ended = self.is_left_out = True

    def close(self):
        for writer in self.writers:
            writer.close()
        for claim in self.claims:
            claim.release()

    def words(self):
        return "; ".join(writer.words() for writer in self.writers) or ("left out" if self.is_left_out else "nothing yet")

    def advice(self):
        return [sentence for writer in self.writers for sentence in writer.advice()]
