"""Reads run folders, which results/README.md describes, into plain objects."""

import fcntl
import json
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import yaml

from . import checked, experiments, keys
from .errors import BadRun, ReportError
from .following import NOT_ENDED, is_evaluation, read_text, shown
from .records import is_finite, is_number, read_records

LOST = "the folder has no experiment.yaml, so it is not known what ran"
WANTED = "give a study's folder (results/<study>) or run folders"
FILES = ("metrics.jsonl", "run.json", "experiment.yaml")
IMAGE_KINDS = ("resnet", "alexnet", "cnn", "mlp")
TARGET_REACHED = "target reached"  # `end` in run.json
NOT_FINITE = re.compile(r"\b(nan|inf|infinite|infinity|not finite|diverged?)\b", re.IGNORECASE)


@dataclass
class Run:
    """One run folder. `config` maps the keys of the resolved experiment to values. `record` is run.json. `steps` maps
    columns to arrays, with NaN where a record lacks the value. `evaluations` has the records of evaluations in order.
    `trial` is the run's entry in study.json, or its trial.json. `search` is the search in study.json, and `drawn` has the
    keys that the study drew. `is_resolved` is false for a trial without an experiment.yaml. Its `config` has only the
    study's overrides.
    """

    path: Path
    name: str
    study: str
    config: dict
    record: dict
    steps: dict = field(default_factory=dict)
    evaluations: list = field(default_factory=list)
    trial: dict = field(default_factory=dict)
    search: dict = field(default_factory=dict)
    is_resolved: bool = True
    drawn: frozenset = frozenset()

    @property
    def starts(self):
        return self.record.get("starts", [])

    def of_start(self, key, default=None):
        """Returns the value of the newest start in run.json that has this key."""
        return next((s[key] for s in reversed(self.starts) if key in s), default)

    @property
    def batch(self):
        """The global batch. A branch has its own batch, which is a multiple of the parent's."""
        own = self.of_start("batch", {}).get("global") if self.branch else None
        return own or self.config.get("batch.global", 0)

    @property
    def branch(self):
        """The place in the parent at which a branch begins. {} for a run that is no branch."""
        place = self.of_start("branch", {})
        return place if isinstance(place, dict) and isinstance(place.get("step"), int) else {}

    @property
    def seed(self):
        return self.config.get("seed", self.trial.get("seed", 1))

    @property
    def ranks(self):
        return self.of_start("ranks") or self.trial.get("ranks") or 1

    @property
    def nodes(self):
        return max(1, len(self.of_start("hosts", {})))

    @property
    def is_image(self):
        return self.config.get("model.kind") in IMAGE_KINDS

    @property
    def outcome(self):
        if self.ran_away and self.record.get("outcome") == "finished":
            return "finished, with a training loss above that of its first step"
        told = str(self.record.get("outcome", ""))
        if told in ("", NOT_ENDED, "killed") and self.trial.get("error"):
            return str(self.trial["error"])
        return "killed" if self.is_dead else told

    @property
    def is_dead(self):
        """Whether the run was killed: run.json says that the run has not ended, but no process holds a lock of its folder.
        For a trial that was killed before it had a run.json, trial.json says so. A trial's study has a lock, too."""
        goes_on = self.record.get("outcome") == NOT_ENDED if self.record else self.trial.get("state") == "running"
        locks = [self.path / ".lock", *self.path.glob(".trial.lock")]
        return goes_on and not any(map(may_be_locked, locks))

    @property
    def reached_target(self):
        """Whether the run ended because it reached its target. For a trial without a run.json, trial.json says so."""
        outcome = self.record or self.trial.get("outcome")
        return isinstance(outcome, dict) and outcome.get("end") == TARGET_REACHED

    @property
    def ran_away(self):
        """Whether the mean loss of the last twentieth of the steps is above the loss of the first step. With fewer than
        20 steps, or when the first step is not step 1 (a branch), it must be above twice that loss. It must also be
        above the loss of a model that guesses. The rule is the same as ends_diverged() in src/run/run_end.cpp. A run
        that reached its target has not run away: it stops at once, so the last steps may be a single noisy one."""
        losses = self.column("loss")
        if len(losses) < 2 or self.reached_target:
            return False
        bound = losses[0] * (2 if len(losses) < 20 or self.column("step")[0] > 1 else 1)
        guessing = self.of_start("guessing_loss")
        bound = max(bound, guessing) if is_number(guessing) else bound
        return not numpy.mean(losses[-max(1, len(losses) // 20) :]) <= bound

    @property
    def state(self):
        """One of waiting, running, finished, stopped, killed, failed and diverged. The run's own record decides if
        there is one. A run that finished with a loss above that of its first step (ran_away) has diverged. A trial that
        a search did not continue was stopped. The state in study.json counts if the run was killed, or if only the study
        knows that the run diverged."""
        told = self.trial.get("state", "")
        told = "finished" if told == "diverged" and self.reached_target else told
        if not self.record:
            return "killed" if self.is_dead else told or ("failed" if self.steps else "waiting")
        state = "killed" if self.is_dead else state_of(str(self.record.get("outcome", "")))
        if (state == "running" or self.is_dead) and told in ("failed", "diverged", "waiting"):
            return "stopped" if told == "waiting" else told
        if state == "failed" and told == "diverged" or state == "finished" and self.ran_away:
            return "diverged"
        return "stopped" if state == "finished" and self.left_by_search else state

    @property
    def left_by_search(self):
        """Whether a search ended this trial before the last rung."""
        if self.is_dead or self.trial.get("error") or self.reached_target:
            return False
        return 0 < (self.trial.get("rung") or 0) < len(self.search.get("rungs", []))

    @property
    def peak_rate(self):
        return keys.peak_rate(self.config)

    def column(self, key):
        return self.steps.get(key, numpy.array([]))


def may_be_locked(lock):
    """Returns whether a process may hold the lock of a run's folder. Returns True if this cannot be found out."""
    try:
        with open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except OSError:
        return True


def state_of(outcome):
    if outcome == "finished" or outcome.startswith("target"):
        return "finished"
    if outcome == NOT_ENDED:
        return "running"
    if outcome.startswith(("stopped by", "paused after")):
        return "stopped"
    if outcome.startswith("error") and NOT_FINITE.search(outcome):
        return "diverged"
    return "failed"


def warn(message):
    print(f"warning: {message}", file=sys.stderr)


def read_yaml(path):
    try:
        tree = yaml.load(read_text(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return checked_config(path, tree)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise BadRun(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error


def checked_config(path, tree):
    """Returns key -> value of an experiment.yaml, with values of the types that the keys have."""
    expected = "an experiment.yaml as `ringtrain train` writes it was expected"
    if not isinstance(tree, dict):
        raise BadRun(f"{path} holds no keys; {expected}")
    try:
        config = experiments.checked(keys.flatten(tree))
    except ValueError as error:
        raise BadRun(f"{path}: {error}") from error
    if lacking := experiments.lacking(config):
        raise BadRun(f"{path} has no {lacking}; {expected}")
    return config


def read_json(path, expected, kind):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadRun(f"{path} cannot be read as JSON: {error}; {expected} was expected") from error
    if not isinstance(value, dict):
        raise BadRun(f"{path} is no JSON object; {expected} was expected")
    problem = checked.problem(value, kind)
    if problem:
        raise BadRun(f"{path}: {problem}; {expected} was expected")
    return value


def read_metrics(path):
    """Returns (columns of the updates, evaluations)."""
    updates, evaluations = [], []
    for record in read_records(path, warn, ("step", "epoch", "samples")):
        (evaluations if is_evaluation(record) else updates).append(record)
    return columns(updates), evaluations


def columns(records):
    names = {name for record in records for name, value in record.items() if is_number(value)}
    return {
        name: numpy.array([r[name] if is_finite(r.get(name)) else math.nan for r in records], float) for name in names
    }


def read_run(path, name, study="", trial=None):
    experiment, record, metrics = path / "experiment.yaml", path / "run.json", path / "metrics.jsonl"
    if trial is None and (path / "trial.json").is_file():
        trial = read_json(path / "trial.json", "a trial's state", {})
    if not experiment.is_file():
        if trial is not None or study:
            return unresolved(path, name, study, trial or {"state": "failed", "error": LOST})
        raise BadRun(
            f"{path} has no experiment.yaml, so it is not known what ran; "
            "give the folders that `ringtrain train` wrote"
        )
    check_trial(path, trial or {})
    try:
        steps, evaluations = read_metrics(metrics) if metrics.is_file() else ({}, [])
    except OSError as error:
        raise BadRun(f"{metrics}: {error.strerror}") from error
    return Run(
        path,
        name,
        study,
        read_yaml(experiment),
        read_json(record, "a run's record", checked.RECORD) if record.is_file() else {},
        steps,
        evaluations,
        trial or {},
    )


def unresolved(path, name, study, trial):
    """Returns the Run of a trial without an experiment.yaml."""
    check_trial(path, trial)
    known = trial["overrides"] if isinstance(trial.get("overrides"), dict) else {}
    try:
        known = experiments.checked(keys.flatten(known))
    except ValueError as error:
        raise BadRun(f"{path}: in the overrides of its trial, {error}") from error
    return Run(path, name, study, known, {}, trial=trial, is_resolved=False)


def check_trial(path, trial):
    problem = checked.problem(trial, checked.TRIAL)
    if problem:
        raise BadRun(f"{path}: in trial.json or study.json, {problem}")


def is_run(path):
    try:
        return path.is_dir() and any((path / name).is_file() for name in FILES)
    except OSError:  # nobody may look into the folder: read_run() says so
        return True


def search_of(search, name):
    """Returns the search in which the trial was compared. A study with budget.within has several."""
    for part in search.get("searches", []):
        if name in part.get("names", []):
            return {**search, **part}
    return search


def drawn_keys(text):
    """Returns the keys that the text of a study file draws (uniform, log_uniform)."""
    try:
        tree = yaml.safe_load(text) if isinstance(text, str) else None
    except (ValueError, RecursionError, yaml.YAMLError):
        return frozenset()
    vary = tree.get("vary") if isinstance(tree, dict) else None
    ways = {"uniform", "log_uniform"}
    return frozenset(str(k) for k, v in vary.items() if isinstance(v, dict) and ways & set(v)) if isinstance(vary, dict) else frozenset()


def read_study(path, left_out):
    """Returns all runs in a folder. If there is a study.json, trials that have not begun are added from it. Calls
    left_out(BadRun) for what cannot be read."""
    listed, search, drawn = {}, {}, frozenset()
    if (path / "study.json").is_file():
        try:
            told = read_json(path / "study.json", "a study's list of trials", checked.STUDY)
        except BadRun as problem:
            left_out(problem)
            told = {}
        search, drawn = told.get("search") or {}, drawn_keys(told.get("text"))
        listed = {t["name"]: t for t in told.get("trials", []) if "name" in t}
    folders = sorted(p for p in path.iterdir() if is_run(p) and not p.is_symlink())
    study = shown(path.resolve().name)
    begun = [(read_run, p, shown(p.name), study, listed.pop(p.name, None)) for p in folders]
    waiting = [(unresolved, path / name, name, study, trial) for name, trial in listed.items()]
    runs = []
    for read, *words in (*begun, *waiting):
        try:
            runs.append(read(*words))
        except BadRun as problem:
            left_out(problem)
        except OSError as error:
            left_out(BadRun(f"{error.filename}: {error.strerror}"))
    for run in runs:
        run.search, run.drawn = search_of(search, run.name), drawn
    if not begun and not waiting:
        raise ReportError(f"{path} holds no run folders; {WANTED}")
    return runs


def read_all(paths):
    """Returns the runs of all paths. A path is a run folder, its metrics.jsonl, or a folder of run folders. Each run is
    listed once. What cannot be read is left out with a warning. It is an error if nothing is left."""
    runs, seen, problems = [], set(), []
    for given in map(Path, paths):
        try:
            found = read_path(given, problems.append)
        except ReportError as problem:
            problems.append(problem)
            continue
        for run in found:
            if run.path.resolve() not in seen:
                seen.add(run.path.resolve())
                runs.append(run)
    if not runs:
        raise problems[0]
    for problem in dict.fromkeys(map(str, problems)):
        warn(f"{problem}; left out")
    unite_names(runs)
    return runs


def read_path(given, left_out):
    path = given.parent if given.name in FILES and given.is_file() else given
    if not path.is_dir():
        raise ReportError(f"{given} {'is no folder' if given.exists() else 'does not exist'}; {WANTED}")
    try:
        return [read_run(path, shown(path.resolve().name))] if is_run(path) else read_study(path, left_out)
    except OSError as error:
        raise ReportError(f"{error.filename or path}: {error.strerror}") from error


def unite_names(runs):
    """Puts the folder in front of names that several runs share."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = shown(f"{run.path.resolve().parent.name}/{run.path.resolve().name}")
