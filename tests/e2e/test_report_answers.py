"""Tests what results/report.py concludes: critical batches by two criteria, rules for the rate, and the sentences and
verdicts with which a page begins."""

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import yaml

import made_runs
from conftest import ROOT

sys.path.insert(0, str(ROOT / "results"))
from reporting import answers, cells, compare, errors, figures_batch, figures_best_batch, figures_share, figures_target, fit, goals  # noqa: E402
from reporting import measures, noise_answers, power_law, rate_rules, references, runs, sections, style, twenty, verdict  # noqa: E402
from test_report_verdicts import goyal_run  # noqa: E402

BATCHES = [2**i for i in range(3, 13)]
TARGET = measures.Target("validation_accuracy", made_runs.TARGET)


def hyperbola(batch):
    return 120 + 50000 / batch  # B_crit 416.7


def knee(batch):
    return max(50000 / batch, 50000 / 256)  # perfect scaling up to 256, and then nothing


def both(steps):
    """Returns the Twenty and the Fit, from evaluations that are 2 % of the steps apart."""
    words = BATCHES, [[steps(b) * 1.01] for b in BATCHES], [[steps(b) * 0.02] for b in BATCHES]
    return twenty.find(*words), fit.fit(*words)


# ---- The 20 % criterion --------------------------------------------------------------------------------------------


def test_on_the_hyperbola_the_20_percent_criterion_is_a_fifth_of_the_critical_batch():
    found, fitted = both(hyperbola)
    assert found.batch == pytest.approx(0.2 * 50000 / 120, rel=0.01) and found.samples == pytest.approx(50000, rel=0.01)
    assert not twenty.disagree(found, fitted, BATCHES)


def test_at_a_sharp_knee_the_criteria_disagree():
    found, fitted = both(knee)
    assert found.batch == pytest.approx(1.2 * 256) and found.samples == pytest.approx(50000)
    assert twenty.disagree(found, fitted, BATCHES)


@pytest.mark.parametrize("batches, where", [(BATCHES[4:], 0), (BATCHES[:4], numpy.inf)])
def test_the_criteria_agree_where_both_lie_outside_of_the_batches_on_the_same_side(batches, where):
    """0.2 B_crit is 83: below 128, and above 64."""
    words = batches, [[hyperbola(b) * 1.01] for b in batches], [[hyperbola(b) * 0.02] for b in batches]
    found, fitted = twenty.find(*words), fit.fit(*words)
    assert found.batch == found.interval.low == found.interval.high == where
    assert not twenty.disagree(found, fitted, batches)
    there = numpy.inf if where == 0 else 0.0
    assert twenty.disagree(dataclasses.replace(found, interval=fit.Interval(there, there)), fitted, batches)


def test_the_criterion_needs_a_small_batch_branch_and_may_lie_outside_of_the_batches():
    def find(batches, steps):
        return twenty.find(batches, [[steps(b)] for b in batches], [[0]] * len(batches))

    assert find([1000, 4000, 16000], hyperbola) is None
    assert find([8, 16, 32, 64], lambda b: 50000 / b).batch == numpy.inf
    assert twenty.words(find([8, 16, 32, 64], lambda b: 50000 / b), [8, 64]) == "above 64"


def test_values_that_fall_are_replaced_by_their_mean():
    assert list(twenty.rising(numpy.array([1.0, 3.0, 2.0, 2.0, 5.0]))) == [1, pytest.approx(7 / 3)] + [pytest.approx(7 / 3)] * 2 + [5]
    assert list(twenty.rising(numpy.array([4.0, 3.0, 2.0]))) == [3, 3, 3] and list(twenty.rising(numpy.array([1.0, 2.0]))) == [1, 2]


@pytest.mark.parametrize("last", [1190, 1210])
def test_one_batch_near_the_limit_does_not_outweigh_a_smaller_one_far_above_it(last):
    """1,199 is the limit. Batch 64 takes 60 % more, so the criterion is below 64 on both sides of it."""
    batches, samples = [8, 16, 32, 64, 128], [1000, 1000, 1000, 1600, last]
    found = twenty.find(batches, [[s / b] for s, b in zip(samples, batches)], [[0.001 * s / b] for s, b in zip(samples, batches)])
    assert 32 < found.interval.low <= found.batch <= found.interval.high < 64, found
    assert found.samples == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(
    "samples, words",
    [
        ([1600, 1000, 1000, 1100, 2000], "batch 2 takes 1.6 x the fewest samples"),
        ([1000, 1900, 3000, 6000, 9000], "batch 8 takes 1.9 x the fewest samples"),
        ([1000, 1000, 1000, 1100, 2000], ""),
    ],
)
def test_a_figure_says_why_it_has_no_20_percent_criterion(tmp_path, monkeypatch, samples, words):
    for batch, needed in zip((2, 8, 32, 128, 512), samples):
        need = 100 * needed / batch
        made_runs.write(tmp_path / "s" / str(batch), batch, need=need, every=max(1, round(need / 50)))
    lines, made, found = fitted(tmp_path / "s", monkeypatch)
    warned = [w for w in figures_target.to_target(TARGET, lines, made, found, []).warnings if "there is no 20 % criterion" in w]
    assert len(warned) == (1 if words else 0) and all(words in w for w in warned) and bool(found) != bool(words)


def test_the_interval_of_the_criterion_covers_the_truth(monkeypatch):
    monkeypatch.setattr(fit, "DRAWS", 100)
    random, covered, width = numpy.random.default_rng(5), 0, []
    for _ in range(40):
        steps = [hyperbola(b) * numpy.exp(0.03 * random.standard_normal(3)) for b in BATCHES]
        found = twenty.find(BATCHES, steps, [numpy.zeros(3)] * len(BATCHES))
        covered += 250 / 3 in found.interval
        width.append(found.interval.high / found.interval.low)
    assert covered >= 34  # 38 are expected; the chance of fewer than 34 is 0.3 %
    assert numpy.median(width) < 2.5


@pytest.mark.parametrize("steps, disagree", [(hyperbola, False), (knee, True)])
def test_a_figure_warns_where_the_criteria_disagree(tmp_path, monkeypatch, steps, disagree):
    for batch in (16, 32, 64, 128, 256, 1024):
        need = steps(batch)
        made_runs.write(tmp_path / "s" / str(batch), batch, need=need, every=max(1, round(need / 50)))
    lines, made, found = fitted(tmp_path / "s", monkeypatch)
    figure = figures_target.to_target(TARGET, lines, made, found, [])
    assert any("the two criteria disagree" in w for w in figure.warnings) == disagree
    (row,) = figures_target.fit_rows(made, found)
    assert row["B_20_percent"] == pytest.approx(307 if disagree else 83, rel=0.25)


def fitted(folder, monkeypatch):
    """Returns the points of the study in this folder, their fits, and the 20 % criterion."""
    monkeypatch.setattr(fit, "DRAWS", 60)
    lines = figures_target.steps_points(cells.make_cells(runs.read_all([folder])), TARGET)
    return lines, figures_target.fits(lines, TARGET), figures_target.twenties(lines, TARGET)


# ---- B_crit against the share of the data --------------------------------------------------------------------------


def test_a_power_law_is_recovered_and_needs_three_shares():
    shares, values = [0.125, 0.25, 0.5, 1.0], [400 * s**0.5 for s in (0.125, 0.25, 0.5, 1.0)]
    spread = [fit.Interval(v / 1.1, v * 1.1) for v in values]
    law = power_law.power_law(shares, values, spread)
    assert (law.factor, law.power) == pytest.approx((400, 0.5)) and 0.5 in law.interval
    assert 0.1 < law.interval.high - law.interval.low < 0.3
    scattered = power_law.power_law(shares, [v * f for v, f in zip(values, (2, 0.5, 2, 0.5))], spread)
    assert scattered.interval.high - scattered.interval.low > 2
    assert power_law.power_law(shares[:2], values[:2], spread[:2]) is None
    unknown = power_law.power_law(shares, values, [fit.Interval(0, values[0]), *spread[1:]])
    assert unknown.power == pytest.approx(0.5) and unknown.interval.high - unknown.interval.low > 5


def test_a_value_that_is_hardly_known_does_not_widen_what_the_others_say():
    """The middle value is off the law by its own error, so the ends alone decide: 100 to 300, both known to 5 %."""
    known, unknown = fit.Interval(95, 105), fit.Interval(50, 450)
    law = power_law.power_law([0.25, 0.5, 1.0], [100, 150, 300], [known, unknown, fit.Interval(285, 315)])
    assert 0.6 < law.interval.low < numpy.log(3) / numpy.log(4) < law.interval.high < 1, law
    x, y = numpy.log([1, 2, 4, 8, 16]), numpy.array([0.5, -0.5, 0.5, -0.5, 0.5])
    apart = power_law.scatter(x, y, numpy.full(5, 0.1))
    assert apart == pytest.approx(numpy.sqrt((y - y.mean()) @ (y - y.mean()) / 3 - 0.1**2))  # its slope is 0
    assert power_law.scatter(x, y, numpy.full(5, 1.0)) == 0
    assert power_law.scatter(x, y, numpy.array([0.1, 0.1, 9, 0.1, 0.1])) > 0.3


def test_drawn_keys_are_tuned_at_each_batch_as_the_rate_is(tmp_path, monkeypatch):
    """Shallue et al. tune rate and momentum at each batch. A family for each drawn momentum would have no best one."""
    draws = [(0.03, 0.2), (0.1, 0.8), (0.3, 0.5), (0.05, 0.9)]
    study = {"name": "s", "vary": {key: {"log_uniform": [0.01, 1]} for key in ("learning_rate.base", "optimizer.momentum")}}
    for batch in (32, 128, 512, 2048):
        for number, (rate, momentum) in enumerate(draws):
            need = made_runs.steps_needed(batch) * (1 if (number == 1) == (batch < 500) else 1.5)
            changes = {"optimizer": {"momentum": momentum}}
            made_runs.write(tmp_path / "s" / f"{batch}-{number}", batch, rate, need=need, every=need // 40, **changes)
    without = cells.make_cells(runs.read_all([tmp_path / "s"]))
    assert len(cells.families(without)) == len(draws) and not without[0].tuned
    (tmp_path / "s" / "study.json").write_text(json.dumps({"trials": [], "text": yaml.safe_dump(study)}))
    own = cells.make_cells(runs.read_all([tmp_path / "s"]))
    assert len(own) == len(draws) * 4 and len(cells.families(own)) == 1
    lines, made, _ = fitted(tmp_path / "s", monkeypatch)
    (points,) = lines.values()
    assert [(p.cell.rate, dict(p.cell.tuned)["optimizer.momentum"]) for p in points][:3] == [(0.1, 0.8)] * 2 + [(0.03, 0.2)]
    assert len(made) == 1 and cells.cell_label(points[0].cell) == "batch 32, rate 0.1, momentum 0.8"
    assert figures_target.target_rows(lines, TARGET)[0]["momentum"] == 0.8
    assert figures_best_batch.lines_of(own, lambda run: 1.0, figures_best_batch.RATE) == {}
    assert runs.drawn_keys("vary: [") == runs.drawn_keys("3") == runs.drawn_keys(None) == frozenset()
    assert runs.drawn_keys("vary: {batch.global: [1], a: {log_grid: [1, 2], points: 2}, b: {uniform: [0, 1]}}") == {"b"}


@pytest.mark.parametrize(
    "name, value",
    [
        ("stop.steps", lambda batch, share: -(-20000 * share // batch)),
        ("optimizer.half_life.beta2", lambda batch, share: 4000 * share * (1 + batch // 100)),
        ("stop.epochs", lambda batch, share: 8 / share),
        ("batch.worker", lambda batch, share: batch // 2),
    ],
)
def test_a_key_that_follows_the_batch_together_with_the_share_tells_no_families_apart(name, value):
    def run(batch, share, rate):
        config = {"data.share": share, "batch.global": batch, "learning_rate.base": rate, name: value(batch, share)}
        return runs.Run(Path("none"), "run", "s", config, {})

    made = [run(batch, share, rate) for batch in (32, 64, 128) for share in (0.25, 0.5, 1.0) for rate in (0.1, 0.2)]
    families = cells.families(cells.make_cells(made))
    assert [cells.label(family) for family in families] == ["share 0.25", "share 0.5", "share 1"]
    assert all(len(own) == 6 for own in families.values())


def test_keys_that_do_not_follow_the_batch_still_tell_families_apart():
    def run(batch, momentum, warmup, decay):
        known = {"batch.global": batch, "optimizer.momentum": momentum, "optimizer.weight_decay": decay}
        return runs.Run(Path("none"), "run", "s", {**known, "learning_rate.warmup_steps": warmup}, {})

    pairs = [(batch, m) for batch in (32, 64) for m in (0.9, 0.95)]
    following = [run(batch, m, round(64 / batch / (1 - m)), 0) for batch, m in pairs]
    paired = [run(batch, m, 0, 1 - m) for batch, m in pairs]
    crossed = [run(batch, m, 0, d) for batch, m in pairs for d in (0, 0.1)]
    for made, expected in ((following, 2), (paired, 2), (crossed, 4)):
        families = cells.families(cells.make_cells(made))
        assert len(families) == expected and all("momentum" in cells.label(family) for family in list(families)[1:])


@pytest.mark.parametrize("power, expected", [(1, "grows with the data"), (0, "open: no change seen")])
def test_a_study_of_the_share_says_how_the_critical_batch_follows_it(tmp_path, monkeypatch, power, expected):
    for share in (0.25, 0.5, 1.0):
        for batch in (32, 128, 512, 2048):
            need = 100 + 40000 * share**power / batch
            changes = {"data": {"share": share}, "stop": {"epochs": 8 / share}}  # a key that follows the share
            made_runs.write(tmp_path / "s" / f"{share}-{batch}", batch, need=need, every=max(1, round(need / 100)), **changes)
    _, made, _ = fitted(tmp_path / "s", monkeypatch)
    own = cells.make_cells(runs.read_all([tmp_path / "s"]))
    figure = figures_share.against_share(own, made)
    assert [r["share"] for r in figure.rows] == [0.25, 0.5, 1.0]
    assert figure.rows[0]["power"] == pytest.approx(power, abs=0.1)
    assert [a.verdict for a in answers.of_share(figure, figures_share.laws_of(own, made))] == [expected]


# ---- The best batch against the rate and the share -------------------------------------------------------------------


def bowl(batch, best, seed):
    """A loss that is lowest at the best batch, and a small difference between seeds."""
    return 0.5 + 0.01 * numpy.log2(batch / best) ** 2 + 0.002 * (seed - 2)


def test_the_minimum_of_a_parabola_is_the_best_batch():
    batches = [2**i for i in range(2, 10)]
    for best in (11.3, 32, 100):
        found = figures_best_batch.best_of({b: [bowl(b, best, seed) for seed in (1, 2, 3)] for b in batches})
        assert found.batch == pytest.approx(best, rel=1e-6) and best in found.interval and found.edge == "", found
    assert figures_best_batch.best_of({b: [bowl(b, 2, seed) for seed in (1, 2, 3)] for b in batches}).edge == "low"
    assert figures_best_batch.best_of({b: [bowl(b, 4000, seed) for seed in (1, 2, 3)] for b in batches}).edge == "high"
    assert figures_best_batch.best_of({b: [bowl(b, 32, 1)] for b in batches}) is None, "one seed has no spread"
    nearly_unstable = {16: [17.0, 11.9, 13.0], 32: [8.9, 9.2, 9.5], 64: [9.8, 9.7, 9.8], 128: [10.2, 10.4, 10.1]}
    found = figures_best_batch.best_of(nearly_unstable)
    assert 32 < found.batch < 48 and found.edge == "" and found.interval.high < 64, "the wide spread at 16 is that of 16 alone"
    assert figures_best_batch.best_of({b: [bowl(b, 32, seed) for seed in (1, 2)] for b in batches[:3]}) is None


def test_the_interval_of_the_best_batch_covers_the_truth():
    batches, random, covered = [2**i for i in range(2, 10)], numpy.random.default_rng(6), 0
    for _ in range(100):
        noisy = {b: bowl(b, 45, 2) + 0.005 * random.standard_normal(3) for b in batches}
        covered += 45 in figures_best_batch.best_of(noisy).interval
    assert covered >= 88  # 95 are expected; the chance of fewer than 88 is 0.2 %


@pytest.mark.parametrize("axis", ["rate", "share"])
@pytest.mark.parametrize("power, expected", [(1, "proportional, as"), (0.5, "grows, but"), (0, "open"), (-1, "falls")])
def test_a_study_says_how_the_best_batch_follows_rate_and_share(tmp_path, axis, power, expected):
    for x in (0.25, 0.5, 1.0):
        changes = {"learning_rate": {"base": x}} if axis == "rate" else {"data": {"share": x}}
        for batch in (4, 8, 16, 32, 64, 128, 256):
            for seed in (1, 2, 3):
                tree = made_runs.experiment(batch, 0.1, seed)
                tree = {**tree, **{section: {**tree[section], **keys} for section, keys in changes.items()}}
                end = {**made_runs.evaluation(100, batch, 50), "validation_accuracy": 1 - bowl(batch, 40 * x**power, seed)}
                lines = [made_runs.update(100, batch, 1, 0.1, 50), end]
                made_runs.write_files(tmp_path / "s" / f"{x}-{batch}-{seed}", tree, made_runs.start(batch, 1, 9.0, "finished"), lines)
    own = cells.make_cells(runs.read_all([tmp_path / "s"]))
    measure = measures.measure_for([run for cell in own for run in cell.runs])
    lines = figures_best_batch.lines_of(own, measure.of, axis)
    laws = figures_best_batch.laws_of(lines)
    figure = figures_best_batch.best_batch(lines, laws, axis, measure.title)
    assert [row[axis] for row in figure.rows] == [0.25, 0.5, 1.0]
    assert figure.rows[0]["power"] == pytest.approx(power, abs=0.02)
    (answer,) = answers.of_best_batch(figure, axis, laws)
    assert answer.verdict.startswith(expected) and f"{axis}^{power:.2f}" in answer.text.replace("-0.00", "0.00"), answer
    other = "share" if axis == "rate" else "rate"
    assert figures_best_batch.best_batch(figures_best_batch.lines_of(own, measure.of, other), {}, other, "") is None


@pytest.mark.parametrize(
    "power, low, high, expected",
    [
        (0.5, 0.02, 3.1, "open: it grows, but the data cannot tell proportional and square root apart"),
        (0.55, 0.4, 1.05, "open: it grows, but the data cannot tell proportional and square root apart"),
        (0.9, 0.51, 1.3, "proportional, as Smith and Le 2018 found"),
        (0.55, 0.4, 0.99, "grows, but not in proportion"),
        (1.6, 1.01, 2.2, "grows, but not in proportion"),
        (0.5, -0.02, 3.1, "open: no change seen"),
    ],
)
def test_a_best_batch_is_proportional_only_if_the_square_root_is_not_possible(power, low, high, expected):
    laws = {"this study": power_law.PowerLaw(1.0, power, fit.Interval(low, high))}
    assert [answer.verdict for answer in answers.of_best_batch(None, "rate", laws)] == [expected]


# ---- Rules for the rate --------------------------------------------------------------------------------------------

RATES = {
    "constant": lambda b: 0.01,
    "linear": lambda b: 1e-4 * b,
    "square root": lambda b: 1e-3 * b**0.5,
    "surge": lambda b: 0.02 * 2 / ((300 / b) ** 0.5 + (b / 300) ** 0.5),
}


@pytest.mark.parametrize("name", RATES)
def test_the_rule_that_made_the_rates_is_found(name):
    best, why = rate_rules.best_of(rate_rules.fit_rules(BATCHES, [RATES[name](b) for b in BATCHES], [0.2] * len(BATCHES)))
    assert (best.name, why) == (name, None) and best.misfit == pytest.approx(0, abs=1e-6)
    if name == "surge":
        assert best.values == pytest.approx((0.02, 300), rel=1e-4)


def test_a_flat_top_is_no_surge():
    """The best of rates that are a factor of sqrt(2) apart is the same at all batches but the largest."""
    rules = rate_rules.fit_rules(BATCHES[2:9], [0.08] * 6 + [0.0566], [0.1] * 7)
    assert rate_rules.best_of(rules) == (None, "the data cannot tell constant and surge apart")


def test_rules_that_the_data_cannot_tell_apart_are_named():
    few = [64, 128, 256, 512]
    best, why = rate_rules.best_of(rate_rules.fit_rules(few, [RATES["linear"](b) for b in few], [0.35] * 4))
    assert best is None and why == "the data cannot tell linear and square root apart"
    rates = [RATES["linear"](b) * (1 + 9 * (i % 2)) for i, b in enumerate(BATCHES)]
    assert rate_rules.best_of(rate_rules.fit_rules(BATCHES, rates, [0.1] * len(BATCHES))) == (None, "no rule fits")
    assert rate_rules.best_of({})[0] is None


def test_the_error_of_a_best_rate_is_that_of_the_grid_and_of_the_seeds():
    assert rate_rules.error_of([1, 2, 4], 2, [2, 2]) == pytest.approx(numpy.log(2) / 12**0.5)
    seeds = numpy.var(numpy.log([2, 4]), ddof=1) / 2
    assert rate_rules.error_of([1, 2, 4], 2, [2, 4]) == pytest.approx((numpy.log(2) ** 2 / 12 + seeds) ** 0.5)


# ---- Sentences -----------------------------------------------------------------------------------------------------


def points(batches, steps, noise=0.0):
    random = numpy.random.default_rng(2)
    made = []
    for b in batches:
        values = steps(b) * numpy.exp(noise * random.standard_normal(3))
        made.append(SimpleNamespace(batch=b, mean=float(values.mean()), values=dict(enumerate(values))))
    return made


@pytest.mark.parametrize(
    "batches, text, expected",
    [
        ([64, 256, 1024, 4096], "Above 420 samples a step costs more than it brings", "larger batches pay up to B_crit = 420"),
        ([4, 8, 16, 32], "Up to 32 samples, the largest batch that reached the target, a larger batch pays", "larger batches pay"),
        ([2048, 4096, 8192], "Even at 2,048 samples, the smallest batch that reached the target", "larger batches do not pay"),
    ],
)
def test_a_sentence_says_up_to_which_batch_steps_are_saved(batches, text, expected):
    made = points(batches, hyperbola)
    fitted = fit.fit(batches, [list(p.values.values()) for p in made], [[0] * 3] * len(batches))
    said, word = answers.pays(made, fitted)
    assert said.startswith(text) and word.startswith(expected)
    factor = (hyperbola(4096) / hyperbola(1024)) ** 0.5 if batches[0] == 64 else answers.doubling(made)
    assert f"twice the batch needs {factor:.2f} x the steps" in said
    assert answers.pays(made, None)[1] == "open"


def test_a_critical_batch_that_may_lie_outside_is_open():
    made = points([64, 128, 256, 512], hyperbola)
    wide = fit.Fit(120, 50000, None, None, fit.Interval(200, 900), 0.1, 4)
    said, word = answers.pays(made, wide)
    assert word == "open" and said.endswith("; B_crit, 420 (200 to 900), may lie outside of these batches")
    unknown = fit.Fit(120, 50000, None, None, fit.Interval(8.8e-6, 3.3e10), 0.1, 4)
    said, word = answers.pays(made, unknown)
    assert word == "open" and said.endswith("; B_crit may lie outside of these batches")
    assert figures_target.fit_words(wide, made) == "B_crit 417 (200 to 900)"
    assert figures_target.fit_words(unknown, made) == "B_crit is not known"
    assert figures_target.fit_warnings("s", made, {}, unknown) == [
        "s: B_crit is not known, as its interval goes far beyond the batches that ran"
    ]


def test_batches_at_which_no_run_reached_the_target_or_finished_are_named(tmp_path, monkeypatch):
    for batch in (32, 64, 128):
        made_runs.write(tmp_path / "s" / str(batch), batch, need=4000 / batch)
    for batch in (1024, 2048):
        made_runs.write(tmp_path / "s" / str(batch), batch, need=100, outcome="error: the loss is NaN")
    made_runs.write(tmp_path / "s" / "other", 64, need=100, outcome="error: the loss is NaN", optimizer={"momentum": 0.5})
    own = cells.make_cells(runs.read_all([tmp_path / "s"]))
    lines, made, found = fitted(tmp_path / "s", monkeypatch)
    steps = figures_target.to_target(TARGET, lines, made, found, own)
    outcome = figures_batch.outcome(own, measures.ERROR, figures_batch.outcome_points(own, measures.ERROR), [])
    for figure, did in ((steps, "reached the target"), (outcome, "finished")):
        assert figure.warnings[:2] == [f"momentum 0.9: no run {did} at batch 1,024, 2,048", f"no run {did} in momentum 0.5"]


@pytest.mark.parametrize("shift, word", [(0.0, "no difference seen"), (0.5, "worse"), (-0.5, "better")])
def test_the_largest_batch_is_judged_beside_the_smallest(shift, word):
    def point(batch, values):
        return SimpleNamespace(batch=batch, mean=float(numpy.mean(values)), values=dict(enumerate(values)))

    lines = {(): [point(64, [1.0, 1.02, 0.98]), point(1024, [1.0 + shift, 1.03 + shift, 0.98 + shift])]}
    (answer,) = answers.of_outcome(None, lines, measures.LOSS)
    assert answer.verdict == word and answer.text.startswith("The largest batch that finished, 1,024, ends at ")
    lone = {(): [point(64, [1.0]), point(1024, [1.5])]}
    assert answers.of_outcome(None, lone, measures.LOSS)[0].verdict == "open: one seed each"


# ---- Two studies in the same axes ----------------------------------------------------------------------------------


def two_studies(folder, times):
    """The second study needs `times` the fewest steps of the first."""
    for name, s_min in (("a", 100), ("b", 100 * times)):
        for batch in (64, 256, 1024):
            for seed in (1, 2):
                need = made_runs.steps_needed(batch, s_min) * (0.99 + 0.01 * seed)
                made_runs.write(folder / name / f"{batch}-{seed}", batch, seed=seed, need=need, every=round(need / 40))
    return [folder / "a", folder / "b"]


@pytest.mark.parametrize("times, word", [(0.5, "fewer"), (2, "more"), (1, "no difference seen")])
def test_two_studies_are_compared_at_the_batches_of_both(tmp_path, monkeypatch, times, word):
    monkeypatch.setattr(fit, "DRAWS", 60)
    title, (section,) = compare.make(two_studies(tmp_path, times), TARGET)
    steps, losses, table, _ = section.items
    assert title == "a and b" and [r["batch"] for r in table.rows] == [64, 256, 1024]
    assert table.rows[-1]["ratio"] == pytest.approx((100 * times + 39) / 139, abs=0.03)
    assert section.answers[0].verdict == table.rows[-1]["verdict"] == word
    assert section.answers[0].text.startswith("At batch 1,024, b needs ")
    assert section.answers[0].more[-1].endswith("no difference seen." if times == 1 else "they differ.")
    for figure in (steps, losses):
        assert {r["family"] for r in figure.rows} == {"a", "b"}


@pytest.mark.parametrize(
    "seeds, later, word",
    [((2, 2), 1, "no difference seen"), ((2, 2), 6, "more"), ((2, 1), 1, "no difference seen"), ((3, 3), 1, "more")],
)
def test_seeds_that_reach_the_target_at_one_evaluation_may_differ_between_it_and_the_one_before(tmp_path, seeds, later, word):
    for name, count, more in zip("ab", seeds, (0, later)):
        for seed in range(count):
            made_runs.write(tmp_path / name / f"{seed}", 64, seed=seed, need=100 + 10 * more, every=10)
    _, (section,) = compare.make([tmp_path / "a", tmp_path / "b"], TARGET)
    (row,) = section.items[2].rows
    assert (row["steps, a"], row["steps, b"], row["verdict"]) == (100, 100 + 10 * later, word)


@pytest.mark.parametrize(
    "others, words",
    [
        (lambda d: [d / "a", d / "a"], "the same study"),
        (lambda d: [d / "a", d / "text"], "no target in common"),
        (lambda d: [d / "a", d / "nowhere"], "does not exist"),
    ],
)
def test_studies_that_cannot_be_compared_are_an_error(tmp_path, others, words):
    made_runs.write(tmp_path / "a" / "run", 64, need=30)
    made_runs.write(tmp_path / "text" / "run", 64, need=30, image=False)
    with pytest.raises(errors.ReportError, match=words):
        compare.make(others(tmp_path))


@pytest.mark.parametrize("name", ["a$b^{$<b>&x", "$x$"])
def test_a_name_is_no_formula(tmp_path, name):
    made_runs.write(tmp_path / "a" / "run", 64, need=30)
    made_runs.write(tmp_path / name / "run", 64, need=30)
    _, (section,) = compare.make([tmp_path / "a", tmp_path / name], TARGET)
    steps = section.items[0]
    assert "DejaVuSans-24" in style.svg_of(steps.drawing), "the $ itself (hexadecimal 24) is drawn"
    assert name in [text.get_text() for text in steps.drawing.axes[1].get_legend().get_texts()]


def test_a_name_that_begins_with_an_underscore_is_in_the_legend(tmp_path):
    _, (section,) = compare.make([folder.rename(tmp_path / f"_{folder.name}") for folder in two_studies(tmp_path, 2)], TARGET)
    for figure in section.items[:2]:
        texts = [text.get_text() for text in figure.drawing.axes[1].get_legend().get_texts()]
        for name in ("_a", "_b"):
            assert sum(name in text for text in texts) == (1 if figure is section.items[0] else 3), texts


def test_no_axis_has_a_formula_for_a_number(tmp_path):
    """Matplotlib writes 10^2 as a formula, and figures draw formulas as they are."""
    made_runs.grid(tmp_path / "s", seeds=(1,), rates=(0.1,))
    made_runs.write(tmp_path / "s" / "short", 8, need=20)
    for item in sections.make(runs.read_all([tmp_path / "s"]))[0].items:
        if isinstance(item, style.Figure):
            assert "mathdefault" not in style.svg_of(item.drawing), item.name


# ---- Ranks, noise, published numbers, branches ---------------------------------------------------------------------


@pytest.mark.parametrize("efficiency, word", [(0.9, "scales well, efficiency 90%"), (0.5, "scales badly, efficiency 50%")])
def test_ranks_scale_well_or_badly(efficiency, word):
    rows = [
        {"line": "strong, batch 512", "ranks": n, "samples_per_second": s, "efficiency": e}
        for n, s, e in ((1, 100.0, 1.0), (4, 400.0 * efficiency, efficiency))
    ]
    (answer,) = answers.of_ranks(SimpleNamespace(rows=rows))
    assert answer.text.startswith(f"4 ranks compute {4 * efficiency:.2f} x as many samples") and answer.verdict == word


def noisy(scale, batch=64, rate=0.1, path="a"):
    """A run of 2,000 samples with this noise scale after each number of samples."""
    samples = numpy.arange(1, 201) * 10
    steps = {"samples": samples, "noise_scale": numpy.array([scale(s) for s in samples])}
    return SimpleNamespace(batch=batch, rate=rate, family=(), runs=[SimpleNamespace(steps=steps, state="finished", path=path)])


def test_the_noise_scale_has_a_start_and_an_average():
    def values(*cells):
        return [course.values() for course in noise_answers.courses(cells).values()]

    grows = noisy(lambda samples: samples)  # the first 5 % end at 100 of 2,000 samples
    assert values(grows) == [pytest.approx({"noise_scale_start": 55.0, "noise_scale_average": 1005.0})]
    late = noisy(lambda samples: numpy.nan if samples <= 100 else 7.0)  # nothing was measured at the start
    assert values(late) == [pytest.approx({"noise_scale_average": 7.0})]
    assert values(noisy(lambda samples: -1.0)) == []


@pytest.mark.parametrize("scale, word", [(700, "it predicts B_crit"), (41, "it does not predict B_crit")])
def test_the_noise_scale_is_judged_beside_the_critical_batch(scale, word):
    cells = [noisy(lambda samples: scale)]
    made = {(): SimpleNamespace(critical=416.7)}
    assert noise_answers.of_noise(None, cells, noise_answers.courses(cells), made)[0].verdict == word


@pytest.mark.parametrize("power, word", [(1, "rises, as McCandlish et al. 2018 found"), (-1, "falls"), (0, "open: no change seen")])
def test_the_course_of_the_noise_scale_has_a_verdict_if_several_runs_agree(power, word):
    cells = [noisy(lambda samples, k=k: 55 * (samples / 55) ** power * k) for k in (0.9, 1.1)]
    cells[1].runs[0].steps["noise_scale"][:10] *= 1.01  # the factors of the two runs differ a little
    (answer,) = noise_answers.of_noise(None, cells, noise_answers.courses(cells), {})
    assert answer.verdict == word and (power or answer.text.startswith("The noise scale goes from 55 samples"))
    (lone,) = noise_answers.of_noise(None, cells[:1], noise_answers.courses(cells[:1]), {})
    assert lone.verdict == "open: one run"


@pytest.mark.parametrize("times, word", [(1, "no difference seen"), (3, "they differ")])
def test_batches_of_one_rate_are_compared_in_what_they_measure(times, word):
    cells = [noisy(lambda samples, k=k: k * (times if b == 1024 else 1), b) for b in (64, 1024) for k in (95, 100, 105)]
    (answer,) = noise_answers.of_noise(None, cells, noise_answers.courses(cells), {})
    assert answer.more[-1].endswith(f"batch 1,024 one of {100 * times}: {word}.")
    cells[0].rate = 0.2  # the noise scale depends on the rate, too
    assert "Batch 64" not in noise_answers.of_noise(None, cells, noise_answers.courses(cells), {})[0].more


@pytest.mark.parametrize("scale, critical, word", [
    (400, 150, "the same order of magnitude"),
    (200, 150, "another order of magnitude: on average"),
    (200, 20, "another order of magnitude: on average, B_crit"),
])
def test_the_noise_scale_is_compared_with_the_published_row_of_a_task_like_it(scale, critical, word):
    cells, made = [noisy(lambda samples: scale if samples > 100 else 40)], {(): SimpleNamespace(critical=critical)}
    found, rows = noise_answers.courses(cells), references.read()
    (answer,) = noise_answers.of_published(None, "fashion", found, made, rows)
    assert answer.verdict == word and f"on average {scale} (900), B_crit {critical} (200)" in answer.text
    assert noise_answers.of_published(None, "names", found, made, rows) == []


@pytest.mark.parametrize("late, word", [(256, "grows"), (128, "does not grow")])
def test_branches_say_whether_the_batch_may_grow(late, word):
    at = [SimpleNamespace(epoch=e, largest=b, batch_of=lambda k: k) for e, b in ((32.0, 128), (96.0, late))]
    (answer,) = answers.of_branches(None, at)
    assert (answer.verdict, f"goes from 128 at epoch 32 to {late} at epoch 96" in answer.text) == (word, True)


@pytest.mark.parametrize("error, word", [(23.74, "inside"), (25.0, "worse"), (22.0, "better")])
def test_a_published_row_of_the_same_recipe_has_a_verdict_and_all_others_one_sentence(error, word):
    made = [goyal_run(f"r{i}", i, error + 0.02 * i) for i in range(-2, 3)]
    own, rows = cells.make_cells(made), references.read()
    compared, count = verdict.compare_all(own, rows), verdict.count_of_candidates(own, rows)
    (answer,) = answers.of_published(None, compared, count)
    (goyal,) = [text for text in (f"{answer.text}: {answer.verdict}.", *answer.more) if "kn 8192" in text]
    assert goyal.endswith(f": {word}.")
    good = {c.reference for c in compared if c.verdict.word != "not comparable"}
    assert f"{count - len(good)} published rows differ in model, data or recipe: not comparable." == answer.more[-1]


# ---- Goals of published studies ----------------------------------------------------------------------------------------


def shallue_run(batch, accuracies, **more):
    row = next(r for r in references.read() if r.metric == goals.METRIC and r.batch == 128)
    config = {**references.recipe(row), "batch.global": batch, "learning_rate.base": 0.06, **more}
    record = {"outcome": "finished", "starts": [{"ranks": 1, "train": {"samples": 55000}, "validation": {"samples": 5000}}]}
    evaluations = [
        {"step": s, "samples": s * batch, "validation_loss": 0.3, "validation_accuracy": a} for s, a in enumerate(accuracies, 1)
    ]
    return runs.Run(Path(f"b{batch}"), f"b{batch}", "", config, record, {"step": numpy.array([5.0])}, evaluations)


@pytest.mark.parametrize(
    "made, expected",
    [
        ([shallue_run, 64, [0.89, 0.9]], "as published"),
        ([shallue_run, 64, [0.89, 0.8999]], "not reached at 64"),
    ],
    ids=["reached", "missed"],
)
def test_a_goal_is_compared_with_the_published_one_both_ways(made, expected):
    make, batch, accuracies = made
    own = cells.make_cells([shallue_run(128, [0.5, 0.91]), make(batch, accuracies)])
    ((text, word),) = goals.of_goal(own, measures.Target("validation_accuracy", 0.9))
    assert word == expected
    reached = 2 if expected == "as published" else 1
    assert f"at 9 batches from 2 to 55,000. Here {reached} of 2 reach it: 64, 128" in text


def test_a_batch_that_has_not_ended_or_was_never_published_is_not_judged():
    target = measures.Target("validation_accuracy", 0.9)
    unfinished = shallue_run(64, [0.5])
    unfinished.record["outcome"] = "not ended"
    own = [shallue_run(128, [0.91]), shallue_run(1, [0.2])]
    ((text, word),) = goals.of_goal(cells.make_cells([*own, unfinished]), target)
    assert word == "open: 64 has not ended" and "1 of 2 reach it: 64, 128" in text
    for outcome, state, expected in (
        ("stopped by SIGUSR1", "waiting", "open: 64 has not ended"),
        ("stopped by SIGUSR1", "", "open: 64 has not ended"),
        ("paused after 2000 samples", "waiting", "open: 64 has not ended"),
        ("paused after 2000 samples", "finished", "not reached at 64"),  # the search has left it behind
    ):
        unfinished.record["outcome"], unfinished.trial = outcome, {"state": state}
        ((_, word),) = goals.of_goal(cells.make_cells([*own, unfinished]), target)
        assert word == expected
    ((_, word),) = goals.of_goal(cells.make_cells(own), target)
    assert word == "as published"
    remembered = [dataclasses.replace(row, evidence="memory") for row in references.read()]
    assert not goals.of_goal(cells.make_cells(own), target, remembered)


def test_a_study_that_reached_a_published_goal_at_no_batch_says_so():
    stop = {"stop.target_metric": "validation_accuracy", "stop.target_value": 0.9}
    missed = [shallue_run(batch, [0.5, 0.8], **stop) for batch in (64, 128)]
    section = sections.task_section(("s", "cnn", "fashion"), missed, False, None, references.read())
    (answer,) = (a for a in section.answers if "is published as reached" in a.text)
    assert answer.verdict == "not reached at 64, 128" and "Here 0 of 2 reach it" in answer.text and not answer.items


def test_a_published_goal_comes_first_and_has_the_figure_of_the_steps():
    stop = {"stop.target_metric": "validation_accuracy", "stop.target_value": 0.9}
    runs = [shallue_run(batch, [0.5, 0.91], **stop) for batch in (64, 128)]
    section = sections.task_section(("s", "cnn", "fashion"), runs, False, None, references.read())
    first = section.answers[0]
    assert first.verdict == "as published" and len(first.items) == 1 and first.more[0].startswith("From 64 to 128 samples")
    assert all(first.items[0] not in answer.items for answer in section.answers[1:])


def test_another_task_or_goal_is_not_compared():
    target = measures.Target("validation_accuracy", 0.9)
    for other in ({"model.widths": (512,)}, {"data.share": 0.5}, {"optimizer.kind": "adam"}):
        assert not goals.of_goal(cells.make_cells([shallue_run(128, [0.91], **other)]), target)
    own = cells.make_cells([shallue_run(128, [0.91])])
    assert not goals.of_goal(own, measures.Target("validation_accuracy", 0.91))
    assert goals.of_goal(own, target)
