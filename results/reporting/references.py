"""Reads published numbers (results/reference/*.csv), and compares the recipe of a run with theirs."""

import csv
from dataclasses import dataclass
from functools import lru_cache

from . import keys, runs
from .errors import ReportError

FOLDER = keys.ROOT / "results" / "reference"
COLUMNS = [
    "work",
    "table",
    "row",
    "batch",
    "config",
    "overrides",
    "metric",
    "value",
    "spread",
    "spread_kind",
    "n",
    "unit",
    "source",
    "evidence",
    "note",
]
# A difference in these keys is noted next to a verdict. It does not prevent the verdict.
NOTED = {"precision", "communication.gradient_type"}
# Data sets are compared by their numbers of samples in the run's record, because paths differ from user to user.
DATA_KEYS = {"data.train_samples": "train", "data.validation_samples": "validation"}


@dataclass(frozen=True)
class Reference:
    """A row of the CSV. Without a value, `batch` and `n` are 0 and `spread` is None. `config` and `overrides` are the
    recipe as an experiment of this program."""

    work: str
    table: str
    row: str
    batch: int
    config: str
    overrides: str
    metric: str
    value: float
    spread: float
    n: int
    unit: str
    source: str
    evidence: str
    note: str

    @property
    def is_checked(self):
        return self.evidence != "memory"

    @property
    def name(self):
        return f"{self.work}: {self.table}, {self.row}"


def number(row, column, kind, path, line):
    text = row[column].strip()
    if not text:
        return None
    try:
        return kind(text)
    except ValueError as error:
        raise ReportError(f"{path}, line {line}: {column} is '{text}', a number was expected") from error


def read_file(path):
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise ReportError(
                f"{path} has the columns {', '.join(reader.fieldnames or [])}; expected {', '.join(COLUMNS)}"
            )
        found = []
        for line, row in enumerate(reader, 2):
            if None in row or None in row.values():
                raise ReportError(f"{path}, line {line}: {len(COLUMNS)} values were expected")
            value = number(row, "value", float, path, line)
            if value is None:
                raise ReportError(f"{path}, line {line}: value is empty")
            found.append(
                Reference(
                    row["work"],
                    row["table"],
                    row["row"],
                    number(row, "batch", int, path, line) or 0,
                    row["config"],
                    row["overrides"],
                    row["metric"],
                    value,
                    number(row, "spread", float, path, line),
                    number(row, "n", int, path, line) or 0,
                    row["unit"],
                    row["source"],
                    row["evidence"],
                    row["note"],
                )
            )
    return found


@lru_cache
def read(folder=FOLDER):
    """Returns all rows of all files in the folder."""
    return tuple(row for path in sorted(folder.glob("*.csv")) for row in read_file(path))


@lru_cache
def config_of(path):
    file = keys.ROOT / path
    return runs.read_yaml(file) if file.is_file() else None


@lru_cache
def all_defaults():
    return keys.defaults()


def recipe(reference):
    """Returns key -> value, as `ringtrain plan CONFIG OVERRIDES` resolves them, or None if there is no such config."""
    config = config_of(reference.config) if reference.config else None
    if config is None:
        return None
    return {**all_defaults(), **config, **dict(keys.parse_override(word) for word in reference.overrides.split())}


def same(a, b):
    if (
        isinstance(a, (int, float))
        and isinstance(b, (int, float))
        and not isinstance(a, bool)
        and not isinstance(b, bool)
    ):
        return abs(a - b) <= 1e-9 * max(abs(a), abs(b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def differences(run, reference):
    """Returns (differences that prevent a verdict, differences that are only noted). A difference is a text
    "key ours (published theirs)". Returns None without a recipe."""
    expected = recipe(reference)
    if expected is None:
        return None
    decisive, noted = [], []
    for key, theirs in expected.items():
        if not keys.decides(key) or key in keys.PLACES_OF_DATA:
            continue
        ours = run.config.get(key, all_defaults().get(key))
        if not same(ours, theirs):
            (noted if key in NOTED else decisive).append(f"{key} {keys.text(ours)} (published {keys.text(theirs)})")
    decisive += differences_of_data(run, expected)
    return decisive, noted


def differences_of_data(run, expected):
    found = []
    for key, part in DATA_KEYS.items():
        theirs, ours = expected.get(key, 0), run.of_start(part, {}).get("samples", 0)
        if theirs and ours != theirs:
            found.append(f"{part} samples {ours or 'not recorded'} (published {theirs})")
    return found


def nearest(run, candidates):
    """Returns the candidate with the fewest differences that prevent a verdict, as (reference,
    these differences, noted differences)."""
    rated = [(r, differences(run, r)) for r in candidates]
    rated = [(r, d) for r, d in rated if d is not None]
    if not rated:
        return None
    reference, (decisive, noted) = min(rated, key=lambda pair: (len(pair[1][0]), abs(pair[0].batch - run.batch)))
    return reference, decisive, noted
