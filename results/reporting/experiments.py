"""Checks the values of an experiment.yaml once, when it is read. checked.py does so for the other files of a run."""

import re
from functools import lru_cache

from . import keys
from .records import is_finite

# Without these keys nothing can be said of a run. A run always writes them.
NEEDED = ("batch.global", "learning_rate.base")
ABOVE_0 = (*NEEDED, "batch.worker", "branch.batch_factor", "branch.rate_factor")
AT_LEAST_0 = ("learning_rate.base_batch",)


@lru_cache
def kinds():
    """Maps the keys of an experiment to the kinds of their values, as the generated page of all keys lists them."""
    page = keys.ROOT / "configs" / "README.md"
    if not page.is_file():
        return {}
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE))


def is_plain(value):
    return all(map(is_plain, value)) if isinstance(value, tuple) else isinstance(value, (str, int, float))


def checked_value(key, value):
    """Returns the value of a key in the type that the key has. Throws ValueError for a value of another type."""
    kind = kinds().get(key, "")
    if kind in ("number", "integer"):
        value = keys.parse(value) if isinstance(value, str) else value
        if not is_finite(value) or key in ABOVE_0 and not value > 0 or key in AT_LEAST_0 and not value >= 0:
            least = " above 0" if key in ABOVE_0 else " of at least 0" if key in AT_LEAST_0 else ""
            raise ValueError(f"{key} is {keys.text(value)}, expected a number{least}")
    elif kind in ("text", "word"):
        if isinstance(value, tuple):
            raise ValueError(f"{key} is a list, expected a text")
        value = keys.text(value) if isinstance(value, (bool, int, float)) else value
    elif kind.startswith("list") and not isinstance(value, tuple):
        raise ValueError(f"{key} is {keys.text(value)}, expected a list")
    if not is_plain(value):
        raise ValueError(f"{key} is {keys.text(value)}, expected a text, a number or a list")
    return value


def checked(flat):
    """Returns the keys of an experiment with checked values. A key without a value counts as absent."""
    return {key: checked_value(key, value) for key, value in flat.items() if value is not None}


def lacking(config):
    """Returns the first needed key that an experiment lacks, or ""."""
    return next((key for key in NEEDED if key not in config), "")
