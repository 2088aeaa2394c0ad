"""Groups runs. A cell has the runs of one experiment with different seeds. A family has the cells of one line of a
figure: they differ in batch and learning rate."""

import math
from dataclasses import dataclass, field

import numpy

from . import keys
from .records import is_number

RATE_KEYS = ("learning_rate.base", "learning_rate.base_batch")
NOT_FOLLOWING = ("model.", "data.", "loss.", "precision")


@dataclass
class Cell:
    """Runs that differ only in seed and machine. `family` has (key, value) pairs, and `tuned` those of tuned_keys(). `rate`
    is the peak learning rate."""

    family: tuple
    batch: int
    rate: float
    key: tuple
    runs: list = field(default_factory=list)
    tuned: tuple = ()

    @property
    def all_finished(self):
        return all(run.state == "finished" for run in self.runs)

    @property
    def seeds(self):
        return sorted({run.seed for run in self.runs})

    def by_seed(self, value_of):
        """Maps each seed to the mean over its runs. Several runs of a seed are repeats on other machines. Seeds without
        a value are left out."""
        found = {}
        for run in self.runs:
            value = value_of(run)
            if value is not None and math.isfinite(value):
                found.setdefault(run.seed, []).append(value)
        return {seed: float(numpy.mean(values)) for seed, values in sorted(found.items())}


def value_of(run, key):
    """Returns the value of a key. A run that was made before the key existed gets the key's default."""
    return run.config.get(key, keys.defaults().get(key))


def varied_keys(runs):
    """Returns the keys that are part of what is learned (keys.decides) and differ among the runs, in the experiments'
    order. Of a trial without an experiment.yaml, only the overrides count."""

    def values(key):
        return {value_of(run, key) for run in runs if run.is_resolved or key in run.config}

    names = list(dict.fromkeys(key for run in runs for key in run.config))
    return [key for key in names if keys.decides(key) and len(values(key)) > 1]


def may_follow(key, runs):
    """Returns whether the key is a number. Keys of the model, the data, the loss and the precision never count."""
    return not key.startswith(NOT_FOLLOWING) and all(is_number(value_of(run, key)) for run in runs)


def has_one_value(key, runs, place_of):
    """Returns whether the key has only one value at each place."""
    values = {}
    for run in runs:
        values.setdefault(place_of(run), set()).add(value_of(run, key))
    return all(len(v) == 1 for v in values.values())


def without_following(names, runs):
    """Returns the keys without those that follow the batch: numbers with one value at each batch. batch.worker,
    learning_rate.warmup_epochs and stop.epochs often are such keys. Then it leaves out keys that follow the batch together
    with other keys, as stop.steps does if a trial has 20000 * data.share samples. Keys that follow the others alone stay:
    telling_keys() chooses among them. Of two keys that follow each other, the one with fewer values stays."""
    names = [key for key in names if not (may_follow(key, runs) and has_one_value(key, runs, lambda run: run.batch))]
    count = {key: len({value_of(run, key) for run in runs}) for key in names}
    for key in sorted(reversed(names), key=count.get, reverse=True):
        others = [other for other in names if other != key]

        def alone(run):
            return tuple(value_of(run, other) for other in others)

        follows = may_follow(key, runs) and has_one_value(key, runs, lambda run: (run.batch, alone(run)))
        if follows and not has_one_value(key, runs, alone):
            names = others
    return names


class Family(tuple):
    """The (key, value) pairs in which a family differs from the others. `words` is its name in a legend."""

    words = ""


def telling_keys(runs, names):
    """Returns as few of the keys as possible, such that they still tell the families apart. A key that always changes
    together with others is not needed."""
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
    """Names the families. Values that are the key's default are left out when all names still differ. Returns a map
    from pairs to families."""
    short = keys.short_names([key for key, _ in families[0]]) if families else {}
    defaults = keys.defaults()

    def words(pairs):
        return ", ".join(f"{short[key]} {keys.text(value)}" for key, value in pairs)

    brief = [words([(k, v) for k, v in family if v != defaults.get(k)]) or words(family) for family in families]
    for family, text in zip(families, brief):
        family.words = text if len(set(brief)) == len(brief) else words(family)
    return {tuple(family): family for family in families}


def tuned_keys(runs):
    """Returns the keys that the study drew, apart from the rate, such as the momentum. They are tuned at each batch, as the
    rate is, and tell no families apart. Keys of the model, the data, the loss and the precision never count."""
    drawn = {key for run in runs for key in run.drawn if not key.startswith(NOT_FOLLOWING)}
    return [key for key in varied_keys(runs) if key in drawn and key not in ("batch.global", *RATE_KEYS)]


def family_keys(runs):
    """Returns the keys that tell families apart. Batch and rate are left out, because they are axes. Keys that follow
    the batch are left out, and keys that are tuned, too."""
    known = ("batch.global", *RATE_KEYS, *tuned_keys(runs))
    return without_following([key for key in varied_keys(runs) if key not in known], runs)


def make_cells(runs):
    """Returns all cells, sorted by family, batch and rate."""
    varied, telling, tuned = varied_keys(runs), telling_keys(runs, family_keys(runs)), tuned_keys(runs)
    known = named(list({pairs: Family(pairs) for pairs in (pairs_of(run, telling) for run in runs)}.values()))
    cells = {}
    for run in runs:
        family = known[pairs_of(run, telling)]
        key = tuple(value_of(run, key) for key in varied)
        own = Cell(family, run.batch, run.peak_rate, key, tuned=pairs_of(run, tuned))
        cells.setdefault(key, own).runs.append(run)
    return sorted(cells.values(), key=lambda c: (keys.text(tuple(v for _, v in c.family)), c.batch, c.rate))


def pairs_of(run, names):
    return tuple((key, value_of(run, key)) for key in names)


def families(cells):
    """Maps each family to its cells, in their order."""
    found = {}
    for cell in cells:
        found.setdefault(cell.family, []).append(cell)
    return found


def label(family):
    """Returns the family's name for a legend."""
    if getattr(family, "words", ""):
        return family.words
    short = keys.short_names([key for key, _ in family])
    return ", ".join(f"{short[key]} {keys.text(value)}" for key, value in family) or "this study"


def tuned_columns(cell):
    """Maps the short names of the tuned keys to the cell's values."""
    short = keys.short_names([key for key, _ in cell.tuned])
    return {short[key]: value for key, value in cell.tuned}


def rate_label(cell):
    """Names the rate and what else is tuned."""
    tuned = [f"{name} {keys.text(value)}" for name, value in tuned_columns(cell).items()]
    return ", ".join([f"rate {cell.rate:.4g}", *tuned])


def cell_label(cell):
    """Returns the cell's name: batch and rate, then its family."""
    return f"batch {cell.batch}, {rate_label(cell)}" + (f", {label(cell.family)}" if cell.family else "")


def by_batch(cells):
    found = {}
    for cell in cells:
        found.setdefault(cell.batch, []).append(cell)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Point:
    """One batch of a family at its best rate. `values` maps seeds to values. `edge` is "low" or "high" when the best
    rate is the lowest or the highest that was tried, else "". `rates` is the number of rates that were tried."""

    cell: Cell
    values: dict
    edge: str
    rates: int

    @property
    def batch(self):
        return self.cell.batch

    @property
    def missing(self):
        """The number of seeds that ran and have no value."""
        return len(self.cell.seeds) - len(self.values)

    @property
    def mean(self):
        return float(numpy.mean(list(self.values.values())))

    @property
    def deviation(self):
        """The standard deviation over the seeds (of a sample). None with fewer than two seeds."""
        return float(numpy.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else None


def best_points(cells, value_of):
    """Returns for each batch the cell with the smallest mean. Cells in which half of the seeds or more have no value
    count only when the batch has no other cell. Batches without any value are left out."""
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
