"""Decides whether our runs lie inside, above or below a published result, and shows the arithmetic.

The two means are compared with Welch's t-test (Welch 1947), which does not need equal variances and is exact enough
with five seeds. If one side has only one run, or does not state its spread or its number of runs, its mean counts as
one run. It is compared with the prediction interval of the other side for one more run. If neither side has a spread,
there is no verdict."""

import math
from dataclasses import dataclass

import numpy
from scipy import stats

from . import cells as grouping
from . import measures, mlperf, references

ALPHA = 0.05
HIGHER_IS_BETTER = {"top1"}
VALUES = {
    "top1_error": measures.ERROR.of,
    "top1": lambda run: None if (error := measures.ERROR.of(run)) is None else 100 - error,
    "steps": lambda run: run.record.get("final_step") if run.state == "finished" else None,
    "epochs_to_759": lambda run: None if (cost := measures.cost_to(run, mlperf.TARGET)) is None else cost.epochs,
}


@dataclass(frozen=True)
class Sample:
    """Mean, standard deviation (of a sample) and number of runs. If the deviation is not known, it is None."""

    mean: float
    deviation: float
    n: int

    @classmethod
    def of(cls, values):
        values = list(values)
        return cls(
            float(numpy.mean(values)), float(numpy.std(values, ddof=1)) if len(values) > 1 else None, len(values)
        )

    def __str__(self):
        spread = "" if self.deviation is None else f" +- {self.deviation:.4g}"
        return f"{self.mean:.5g}{spread} (n = {self.n})" if self.n else f"{self.mean:.5g}{spread} (n not stated)"

    @property
    def has_spread(self):
        return self.deviation is not None and self.n > 1


@dataclass(frozen=True)
class Verdict:
    """`word` is one of: inside, above, below, no spread, not comparable."""

    word: str
    arithmetic: str


def by_position(difference):
    return "above" if difference > 0 else "below"


def judge(ours, published):
    """Compares two Samples. Returns a Verdict."""
    difference = ours.mean - published.mean
    text = f"ours {ours}, published {published}, difference {difference:+.4g}"
    if ours.has_spread and published.has_spread:
        return welch(ours, published, difference, text)
    if published.has_spread or ours.has_spread:
        known = published if published.has_spread else ours
        return one_more_run(known, difference, text, "published" if known is published else "our")
    return Verdict("no spread", f"{text}; neither side states a spread over several runs, so nothing can be tested")


def welch(ours, published, difference, text):
    a, b = ours.deviation**2 / ours.n, published.deviation**2 / published.n
    error = math.sqrt(a + b)
    if error == 0:
        return Verdict("inside" if difference == 0 else by_position(difference), f"{text}; no run differs from another")
    free = (a + b) ** 2 / (a**2 / (ours.n - 1) + b**2 / (published.n - 1))
    p = float(2 * stats.t.sf(abs(difference) / error, free))
    limit = float(stats.t.ppf(1 - ALPHA / 2, free)) * error
    text += (
        f"; Welch's t = {difference / error:.3f} with {free:.2f} degrees of freedom, p = {p:.3g}; "
        f"differences beyond +-{limit:.3g} would be seen (p < {ALPHA:g})"
    )
    return Verdict("inside" if p >= ALPHA else by_position(difference), text)


def one_more_run(known, difference, text, whose):
    half = float(stats.t.ppf(1 - ALPHA / 2, known.n - 1)) * known.deviation * math.sqrt(1 + 1 / known.n)
    text += f"; {1 - ALPHA:.0%} of single runs lie within +-{half:.3g} of the {whose} mean (t with {known.n - 1} degrees of freedom)"
    return Verdict("inside" if abs(difference) <= half else by_position(difference), text)


@dataclass(frozen=True)
class Comparison:
    cell: grouping.Cell
    reference: references.Reference
    verdict: Verdict
    noted: str = ""


def good_or_bad(verdict, metric):
    if verdict.word not in ("above", "below"):
        return ""
    return "better" if (verdict.word == "above") == (metric in HIGHER_IS_BETTER) else "worse"


def candidates_for(cell, rows):
    """Returns the published rows that have a recipe as an experiment of this program. If some are for this kind of
    model, returns only those. All rows are for images, so other runs get none."""
    if not cell.runs[0].is_image:
        return []
    recipes = [(r, made) for r in rows if r.metric in VALUES and (made := references.recipe(r))]
    kind = cell.runs[0].config.get("model.kind")
    return [r for r, made in recipes if made.get("model.kind") == kind] or [r for r, _ in recipes]


def count_of_candidates(cells, rows):
    """Returns the number of published rows that the cells could be compared with."""
    return len({reference for cell in cells for reference in candidates_for(cell, rows)})


def compare_cell(cell, rows):
    """Compares a cell with published rows, metric by metric. If rows have the cell's recipe, it is compared with all of
    them. Otherwise it is "not comparable", with the nearest recipe."""
    found, candidates = [], candidates_for(cell, rows)
    for metric in dict.fromkeys(r.metric for r in candidates):
        own = [r for r in candidates if r.metric == metric]
        exact = [r for r in own if references.differences(cell.runs[0], r)[0] == []]
        found += [compare_exact(cell, r) for r in exact] if exact else [not_comparable(cell, own)]
    return [c for c in found if c.verdict.word != "not comparable"] or nearest_of(found)


def nearest_of(comparisons):
    """Returns the one comparison with the shortest list of differences."""
    return sorted(comparisons, key=lambda c: c.verdict.arithmetic.count("(published"))[:1]


def compare_exact(cell, reference):
    noted = "; ".join(references.differences(cell.runs[0], reference)[1])
    values = cell.by_seed(VALUES[reference.metric])
    if not reference.is_checked:
        return Comparison(
            cell, reference, Verdict("not comparable", "the published number is recalled, not checked"), noted
        )
    if not values:
        return Comparison(cell, reference, Verdict("not comparable", "no run of ours has this value yet"), noted)
    verdict = judge(Sample.of(values.values()), Sample(reference.value, reference.spread, reference.n))
    return Comparison(cell, reference, verdict, noted)


def not_comparable(cell, rows):
    """Returns a "not comparable" with the differences from the nearest recipe. Those of model and data come first."""
    reference, decisive, noted = references.nearest(cell.runs[0], rows)
    decisive = sorted(decisive, key=lambda text: not text.startswith(("model.", "data.", "train ", "validation ")))
    return Comparison(cell, reference, Verdict("not comparable", "; ".join(decisive)), "; ".join(noted))


def compare_all(cells, rows):
    """Returns the comparisons of all families. If no cell of a family is comparable, the family has one entry, for the
    cell that is nearest to a published row."""
    found = []
    for own in grouping.families(cells).values():
        comparisons = [comparison for cell in own for comparison in compare_cell(cell, rows)]
        found += [c for c in comparisons if c.verdict.word != "not comparable"] or nearest_of(comparisons)
    return found
