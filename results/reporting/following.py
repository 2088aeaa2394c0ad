"""Reads run folders while runs write to them: their new records, and whether they have ended.

Of the report's packages this file needs only PyYAML, because a machine with TensorBoard may have no SciPy."""

import calendar
import json
import os
import time
from pathlib import Path

from . import checked
from .errors import BadRun, ReportError
from .records import parse

FILES = ("run.json", "metrics.jsonl")
NOT_ENDED = "not ended"  # the outcome in run.json of a run that goes on
ENDED = ("finished", "failed", "diverged")  # states of a trial in study.json


def shown(path):
    """Returns a path or name as text that can be written as UTF-8. Other bytes become \\xe9 and the like."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_text(path):
    """Returns the text of a file. Bytes that are not UTF-8 are escaped."""
    return path.read_bytes().decode("utf-8", "backslashreplace")


def read_json(path):
    """Returns the JSON object in a file, or {} if the file is missing or cannot be read yet."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def is_run(path):
    return path.is_dir() and any((path / name).is_file() for name in FILES)


def is_evaluation(record):
    return "validation_loss" in record


class RunFolder:
    """One run folder, and the position up to which its metrics.jsonl has been read."""

    def __init__(self, path, study=""):
        self.path, self.name, self.study = path, shown(path.resolve().name), shown(study)
        self.start_again()

    def start_again(self):
        self.position, self.file_id, self.before = 0, None, b""

    def record(self):
        """Returns what run.json holds. Throws BadRun if its values have other types than `ringtrain train` writes."""
        path = self.path / "run.json"
        record = read_json(path)
        problem = checked.problem(record, checked.RECORD)
        if problem:
            raise BadRun(f"{path}: {problem}")
        return record

    def starts(self):
        return self.record().get("starts", [])

    def outcome(self):
        """Returns how the run ended. Returns "" while it runs and when there is no run.json."""
        outcome = str(self.record().get("outcome", ""))
        return "" if outcome == NOT_ENDED else outcome

    def identity(self):
        """Returns the path and the time of the first start. With the time, a later run in the same folder counts as
        another."""
        starts = self.starts()
        return f"{shown(self.path.resolve())} {starts[0].get('started', '') if starts else ''}".strip()

    def config(self):
        """Returns key -> value of experiment.yaml, with defaults for keys that it lacks. Returns {} without the
        file."""
        path = self.path / "experiment.yaml"
        if not path.is_file():
            return {}
        try:
            import yaml

            from . import experiments, keys
        except ImportError as error:
            raise ReportError("this Python has no yaml: pip install pyyaml, or Debian's python3-yaml") from error
        try:
            tree = yaml.safe_load(read_text(path))
            config = experiments.checked(keys.flatten(tree)) if isinstance(tree, dict) else {}
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise BadRun(f"{path} cannot be used: {' '.join(str(error).split())}") from error
        if lacking := experiments.lacking(config):
            raise BadRun(f"{path} has no {lacking}")
        return {**keys.defaults(), **config}

    def new_records(self):
        """Returns (again, records). Usually `again` is false and the records are those since the last call. The first
        call, and a call after the file was replaced or cut back (as a resumed run does), reads all records; `again` is
        then true. A line counts only when it is complete."""
        try:
            file = open(self.path / "metrics.jsonl", "rb")
        except FileNotFoundError:
            return False, []
        except OSError as error:
            raise BadRun(f"{error.filename}: {error.strerror}") from error
        with file:
            found = os.fstat(file.fileno())
            file.seek(self.position - len(self.before))
            grown_only = found.st_ino == self.file_id and file.read(len(self.before)) == self.before
            if not grown_only:
                self.start_again()
                self.file_id = found.st_ino
                file.seek(0)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.position += len(whole)
        self.before = (self.before + whole)[-256:]
        return not grown_only, [r for r, _ in map(parse, whole.splitlines()) if r]


class Clock:
    """Computes when a record was written. run.json has the time of every start, metrics.jsonl the seconds of the
    run."""

    def __init__(self):
        self.start, self.base, self.elapsed = -1, 0.0, 0.0

    def time_of(self, record, starts):
        """Returns seconds since 1970, or the present time if no start is known. Records must be given in their
        order."""
        begun = [i for i, s in enumerate(starts) if s.get("resumed_from_step", 0) < record["step"]]
        start = begun[-1] if begun else 0
        if start != self.start:
            self.start, self.base = start, self.elapsed if start else 0.0
        self.elapsed = record.get("elapsed_seconds", self.elapsed + record.get("evaluation_seconds", 0.0))
        began = seconds_of(starts[start].get("started")) if starts else None
        return time.time() if began is None else began + max(0.0, self.elapsed - self.base)


def seconds_of(text):
    """Converts a time such as "2026-11-21T10:30:59Z" to seconds since 1970. Returns None for any other value."""
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
    except (TypeError, ValueError):
        return None


class Source:
    """The paths that the user gave: run folders, and folders in which runs appear one after another."""

    def __init__(self, paths):
        self.paths = [p.parent if p.name in FILES and p.is_file() else p for p in map(Path, paths)]
        for path in self.paths:
            if not path.is_dir():
                raise ReportError(f"{path} does not exist; give a run's folder, or a study's (results/<study>)")

    @property
    def is_one_run(self):
        return len(self.paths) == 1 and is_run(self.paths[0])

    def runs(self):
        """Returns the run folders of all runs that have begun."""
        found = {}
        for path in self.paths:
            if is_run(path):
                found.setdefault(path.resolve(), RunFolder(path))
                continue
            for child in sorted(path.iterdir()):
                if is_run(child) and not child.is_symlink():
                    found.setdefault(child.resolve(), RunFolder(child, path.resolve().name))
        return list(found.values())

    def has_ended(self, followed, quiet):
        """Returns whether no more records can come. `followed` maps paths to Followed objects. `quiet` says that no run
        has begun or gone on for a while."""
        if not all(one.ended for one in followed.values()):
            return False
        for path in self.paths:
            trials = read_json(path / "study.json").get("trials")
            if isinstance(trials, list):
                if not all(isinstance(t, dict) and t.get("state") in ENDED for t in trials):
                    return False
            elif not is_run(path) and not (followed and quiet):
                return False
        return True
