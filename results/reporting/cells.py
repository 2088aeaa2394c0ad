"""Runs put together: a cell is one experiment with its seeds, a family is what a line of a figure stands for."""

import math
from dataclasses import dataclass, field

import numpy

from . import keys

RATE_KEYS = ("learning_rate.base", "learning_rate.base_batch")
NOT_FOLLOWING = ("model.", "data.", "loss.", "precision")


@dataclass
class Cell:
    """Runs that differ in seed and machine only. `family`: (key, value) pairs; `rate`: the peak."""

    family: tuple
    batch: int
    rate: float
    key: tuple
    runs: list = field(default_factory=list)

    @property
    def all_finished(self):
        return all(run.state == "finished" for run in self.runs)

    @property
    def seeds(self):
        return sorted({run.seed for run in self.runs})

    def by_seed(self, value_of):
        """seed -> mean over its runs, which repeat each other on other machines; seeds without a value are left out."""
        found = {}
        for run in self.runs:
            value = value_of(run)
            if value is not None and math.isfinite(value):
                found.setdefault(run.seed, []).append(value)
        return {seed: float(numpy.mean(values)) for seed, values in sorted(found.items())}


def value_of(run, key):
    """A folder that is older than the key has its default."""
    return run.config.get(key, keys.defaults().get(key))


def varied_keys(runs):
    """Keys that decide and differ among the runs, sorted as the experiments list them."""
    names = list(dict.fromkeys(key for run in runs for key in run.config))
    return [key for key in names if keys.decides(key) and len({value_of(run, key) for run in runs}) > 1]


def follows_batch(key, runs):
    """Whether a number is set by the batch: one value at each batch, as worker groups, warm-up and length often are."""
    if key.startswith(NOT_FOLLOWING) or not all(is_number(value_of(run, key)) for run in runs):
        return False
    values = {}
    for run in runs:
        values.setdefault(run.batch, set()).add(value_of(run, key))
    return all(len(v) == 1 for v in values.values())


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Family(tuple):
    """(key, value) pairs that tell a family from the others; `words`: how a legend names it."""

    words = ""


def telling_keys(runs, names):
    """As few of the keys as tell the families apart: what always changes together with them says nothing more."""
    rows = list(dict.fromkeys(tuple(value_of(run, key) for key in names) for run in runs))
    chosen = []

    def parts(places):
        return len({tuple(row[i] for i in places) for row in rows})

    while parts(chosen) < len(rows):
        chosen.append(max((i for i in range(len(names)) if i not in chosen), key=lambda i: parts([*chosen, i])))
    for place in chosen[:-1]:
        if parts([i for i in chosen if i != place]) == len(rows):
            chosen.remove(place)
    return [names[i] for i in sorted(chosen)]


def named(families):
    """The families with their words: values that are the key's default are left out where the rest is clear."""
    short = keys.short_names([key for key, _ in families[0]]) if families else {}
    defaults = keys.defaults()

    def words(pairs):
        return ", ".join(f"{short[key]} {keys.text(value)}" for key, value in pairs)

    brief = [words([(k, v) for k, v in family if v != defaults.get(k)]) or words(family) for family in families]
    for family, text in zip(families, brief):
        family.words = text if len(set(brief)) == len(brief) else words(family)
    return {tuple(family): family for family in families}


def family_keys(runs):
    """The keys that make families: not batch and rate, which are axes, nor what follows the batch."""
    return [k for k in varied_keys(runs) if k != "batch.global" and k not in RATE_KEYS and not follows_batch(k, runs)]


def make_cells(runs):
    """All cells, by family, batch and rate."""
    varied, telling = varied_keys(runs), telling_keys(runs, family_keys(runs))
    known = named(list({pairs: Family(pairs) for pairs in (pairs_of(run, telling) for run in runs)}.values()))
    cells = {}
    for run in runs:
        family = known[pairs_of(run, telling)]
        key = tuple(value_of(run, key) for key in varied)
        cells.setdefault(key, Cell(family, run.batch, run.peak_rate, key)).runs.append(run)
    return sorted(cells.values(), key=lambda c: (keys.text(tuple(v for _, v in c.family)), c.batch, c.rate))


def pairs_of(run, names):
    return tuple((key, value_of(run, key)) for key in names)


def families(cells):
    """family -> its cells, in order."""
    found = {}
    for cell in cells:
        found.setdefault(cell.family, []).append(cell)
    return found


def label(family):
    """Of a line in a legend."""
    if getattr(family, "words", ""):
        return family.words
    short = keys.short_names([key for key, _ in family])
    return ", ".join(f"{short[key]} {keys.text(value)}" for key, value in family) or "this study"


def cell_label(cell):
    """Of a cell among others: batch and rate, then its family."""
    rest = label(cell.family)
    return f"batch {cell.batch}, rate {cell.rate:.4g}" + (f", {rest}" if cell.family else "")


def by_batch(cells):
    found = {}
    for cell in cells:
        found.setdefault(cell.batch, []).append(cell)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Point:
    """One batch of a family at its best rate. `values`: seed -> value; `edge`: low, high or "", where the best rate is
    the first or last one that was tried; `rates`: how many were."""

    cell: Cell
    values: dict
    edge: str
    rates: int

    @property
    def batch(self):
        return self.cell.batch

    @property
    def missing(self):
        """Seeds that ran and have no value."""
        return len(self.cell.seeds) - len(self.values)

    @property
    def mean(self):
        return float(numpy.mean(list(self.values.values())))

    @property
    def deviation(self):
        """Of a sample; None of fewer than two seeds."""
        return float(numpy.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else None


def best_points(cells, value_of):
    """For each batch the cell with the smallest mean, among those where most seeds have a value: a rate at which half
    the seeds fail is no good rate. Batches without any are left out."""
    points = []
    for batch, tried in by_batch(cells).items():
        rated = [(cell, cell.by_seed(value_of)) for cell in tried]
        good = [(c, v) for c, v in rated if v and len(v) * 2 > len(c.seeds)] or [(c, v) for c, v in rated if v]
        if not good:
            continue
        cell, values = min(good, key=lambda pair: numpy.mean(list(pair[1].values())))
        rates = sorted({c.rate for c in tried})
        edge = "" if len(rates) < 2 else "low" if cell.rate == rates[0] else "high" if cell.rate == rates[-1] else ""
        points.append(Point(cell, values, edge, len(rates)))
    return points
