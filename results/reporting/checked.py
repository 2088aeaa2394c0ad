"""Checks the types of what a run's files hold, once, when they are read. The other files compute with it unchecked.
experiments.py does so for an experiment.yaml."""

from .records import is_finite


class Maybe:
    """A value that may also be null."""

    def __init__(self, kind):
        self.kind = kind


class Each:
    """An object with any keys, whose values have one kind."""

    def __init__(self, kind):
        self.kind = kind


NUMBER, TEXT, WORD = "a number", "a text", "a number or a text"

PLAIN = {
    NUMBER: is_finite,
    TEXT: lambda value: isinstance(value, str),
    WORD: lambda value: isinstance(value, str) or is_finite(value),
}
DATA = {"path": TEXT, "samples": NUMBER}
RUNGS = [{"samples": NUMBER, "trials": NUMBER}]

# The kinds of the values that the scripts compute with. A value may be absent. Other values are ignored.
START = {
    "started": TEXT,
    "commit": TEXT,
    "cpu": TEXT,
    "backend": TEXT,
    "precision": TEXT,
    "ranks": NUMBER,
    "hosts": {},
    "versions": {},
    "batch": {"global": NUMBER},
    "train": DATA,
    "validation": DATA,
    "memory_bytes_per_rank": Each(NUMBER),
    "steps_per_epoch": NUMBER,
    "total_steps": Maybe(NUMBER),
    "resumed_from_step": NUMBER,
    "final_step": NUMBER,
    "elapsed_seconds": Maybe(NUMBER),
    "rank_seconds": [Each(NUMBER)],
    "rank_bytes": [{"sent": NUMBER, "shared": NUMBER}],
    "branch": {"step": NUMBER, "samples": NUMBER, "epoch": NUMBER, "batch_factor": NUMBER, "run": TEXT, "from": TEXT},
}
RECORD = {"outcome": TEXT, "elapsed_seconds": Maybe(NUMBER), "staleness": Each(NUMBER), "starts": [START]}
TRIAL = {
    "state": TEXT,
    "ranks": NUMBER,
    "seed": NUMBER,
    "also": [TEXT],
    "rung": Maybe(NUMBER),
    "rung_losses": Maybe([Maybe(NUMBER)]),
}
STUDY = {
    "trials": [{"name": TEXT}],
    "search": Maybe({"kind": WORD, "value": WORD, "factor": NUMBER, "rungs": RUNGS, "searches": [{"names": [TEXT], "rungs": RUNGS}]}),
}


def problem(value, kind, name=""):
    """Returns what is wrong with the first value that has another kind, or ""."""
    if isinstance(kind, Maybe):
        return "" if value is None else problem(value, kind.kind, name)
    if isinstance(kind, str):
        return "" if PLAIN[kind](value) else f"'{name}' is not {kind}"
    if isinstance(kind, list):
        if not isinstance(value, list):
            return f"'{name}' is not a list"
        found = (problem(item, kind[0], f"{name}[{number}]") for number, item in enumerate(value))
    else:
        if not isinstance(value, dict):
            return f"'{name}' is not an object"
        kinds = dict.fromkeys(value, kind.kind) if isinstance(kind, Each) else kind
        found = (problem(value[key], own, f"{name}.{key}" if name else key) for key, own in kinds.items() if key in value)
    return next(filter(None, found), "")
