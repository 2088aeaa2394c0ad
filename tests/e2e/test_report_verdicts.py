"""Tests the conclusions of results/report.py: the fit of critical batches, the verdicts, and the published numbers
that the verdicts compare with."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from conftest import HANG_SECONDS, ROOT

sys.path.insert(0, str(ROOT / "results"))
from reporting import cells, errors, fit, keys, mlperf, references, runs, tables, verdict  # noqa: E402

# ---- The fit -------------------------------------------------------------------------------------------------------


def test_the_fit_recovers_known_minima_exactly_without_noise():
    batches = [16, 64, 256, 1024, 4096]
    found = fit.fit(batches, [[120 + 50000 / b] for b in batches], [[0]] * 5)
    assert (found.steps, found.samples, found.critical) == pytest.approx((120, 50000, 50000 / 120), rel=1e-6)
    at = found.steps_at(300.0), found.samples_at(300.0)
    assert (at[0] / found.steps - 1) * (at[1] / found.samples - 1) == pytest.approx(1)


@pytest.mark.thorough
def test_the_intervals_cover_the_truth_and_not_much_more(monkeypatch):
    monkeypatch.setattr(fit, "DRAWS", 100)
    random, covered, width = numpy.random.default_rng(7), 0, []
    batches = [32, 64, 128, 256, 512, 1024, 2048]
    for _ in range(40):
        steps = [(500 + 200000 / b) * numpy.exp(0.1 * random.standard_normal(5)) for b in batches]
        made = fit.fit(batches, steps, [numpy.zeros(5)] * 7)
        covered += 400 in made.critical_interval
        width.append(made.critical_interval.high / made.critical_interval.low)
    assert covered >= 34  # 38 are expected; the chance of fewer than 34 is 0.3 %
    assert numpy.median(width) < 2


def test_the_intervals_cover_the_truth_when_evaluations_are_far_apart(monkeypatch):
    """Each run evaluates once per epoch. An epoch has up to 28 % of the samples to the target at batch 32, and 5 % at
    batch 2048. So at small batches, the evaluation that sees the target comes later after the target was reached."""
    monkeypatch.setattr(fit, "DRAWS", 100)
    random, covered, found = numpy.random.default_rng(3), 0, []
    batches = numpy.array([32, 128, 512, 2048])
    for _ in range(40):
        between = random.uniform(40000, 60000) / batches
        steps = [(500 + 200000 / b) * numpy.exp(0.01 * random.standard_normal(3)) for b in batches]
        seen = [numpy.ceil(s / apart) * apart for s, apart in zip(steps, between)]
        made = fit.fit(batches, seen, [[apart] * 3 for apart in between])
        covered += 400 in made.critical_interval
        found.append(made.critical)
    assert covered >= 34  # see above
    assert numpy.median(found) == pytest.approx(400, rel=0.05)


def test_two_batches_are_too_few_for_a_fit():
    assert fit.fit([64, 128], [[10], [8]], [[1], [1]]) is None


# ---- Verdicts ------------------------------------------------------------------------------------------------------


GOYAL = verdict.Sample(23.60, 0.12, 5)


@pytest.mark.parametrize(
    "ours, word",
    [
        ([23.55, 23.70, 23.62, 23.49, 23.66], "inside"),
        ([24.1, 24.2, 24.15, 24.3, 24.05], "above"),
        ([23.1, 23.2, 23.15, 23.05, 23.0], "below"),
        ([23.7], "inside"),
        ([24.2], "above"),
        ([23.0], "below"),
    ],
)
def test_the_verdict_on_known_samples(ours, word):
    assert verdict.judge(verdict.Sample.of(ours), GOYAL).word == word


def test_the_arithmetic_is_welchs():
    # Equal deviations and five runs on each side make 8 degrees of freedom. Student's table has 2.306 as their 97.5 %
    # point.
    said = verdict.judge(verdict.Sample(24.0, 0.12, 5), GOYAL).arithmetic
    error = (2 * 0.12**2 / 5) ** 0.5
    assert f"t = {0.4 / error:.3f} with 8.00 degrees" in said and f"+-{2.306 * error:.3g} would" in said
    assert "ours 24 +- 0.12 (n = 5), published 23.6 +- 0.12 (n = 5)" in said
    unequal = verdict.judge(verdict.Sample(24.0, 0.3, 5), verdict.Sample(23.6, 0.1, 10)).arithmetic
    a, b = 0.3**2 / 5, 0.1**2 / 10
    assert f"{(a + b) ** 2 / (a * a / 4 + b * b / 9):.2f} degrees" in unequal


def test_a_number_without_any_spread_is_not_tested():
    assert verdict.judge(verdict.Sample(75.0, None, 1), verdict.Sample(75.2, None, 0)).word == "no spread"
    assert verdict.judge(verdict.Sample(1.0, 0.0, 3), verdict.Sample(1.0, 0.0, 3)).word == "inside"


def goyal_run(path, seed, error, images=1281167, **more):
    """Writes a run folder as a run of configs/imagenet_resnet50_8192.yaml would leave it, with this top-1 error in
    percent."""
    row = next(
        r
        for r in references.read()
        if r.work.startswith("Goyal") and r.batch == 8192 and not r.table.startswith("ablation")
    )
    config = {**references.recipe(row), "seed": seed, **more}
    record = {
        "outcome": "finished",
        "starts": [{"ranks": 8, "train": {"samples": images}, "validation": {"samples": 50000}}],
    }
    evaluations = [
        {"step": s, "epoch": 85 + s, "validation_loss": 1.0, "validation_accuracy": 1 - error / 100}
        for s in range(1, 6)
    ]
    return runs.Run(Path(path), path, "", config, record, {"step": numpy.array([5.0])}, evaluations)


def compare(made):
    return verdict.compare_all(cells.make_cells(made), references.read())


def test_runs_of_a_papers_recipe_are_compared_with_its_rows():
    found = compare([goyal_run(f"r{i}", i, 23.74 + 0.02 * i) for i in range(-2, 3)])
    goyal = [c for c in found if c.reference.table == "error against batch"]
    assert [(c.reference.row, c.verdict.word) for c in goyal] == [("kn 8192", "inside")]
    worse = compare([goyal_run(f"r{i}", i, 25 + 0.02 * i) for i in range(-2, 3)])
    (goyal,) = [c for c in worse if c.reference.table == "error against batch"]
    assert goyal.verdict.word == "above" and verdict.good_or_bad(goyal.verdict, goyal.reference.metric) == "worse"


@pytest.mark.parametrize(
    "more, reason",
    [
        ({"optimizer.weight_decay": 0.0005}, "optimizer.weight_decay 0.0005 (published 0.0001)"),
        ({"data.flip": False}, "data.flip false (published true)"),
        ({"batch.worker": 64}, "batch.worker 64 (published 32)"),
        ({"images": 5000}, "train samples 5000 (published 1281167)"),
    ],
)
def test_another_recipe_or_data_set_is_not_comparable_with_its_reason(more, reason):
    found = compare([goyal_run("r", 1, 23.7, **more)])
    assert [c.verdict.word for c in found] == ["not comparable"] and found[0].verdict.arithmetic == reason


def test_other_arithmetic_is_noted_only():
    found = compare([goyal_run(f"r{i}", i, 23.7 + 0.02 * i, precision="bf16") for i in range(3)])
    (goyal,) = [c for c in found if c.reference.table == "error against batch"]
    assert goyal.verdict.word == "inside" and goyal.noted == "precision bf16 (published fp32)"


def test_numbers_from_memory_judge_nothing():
    (row,) = [r for r in references.read() if r.evidence == "memory" and r.batch == 512]
    run = goyal_run("r", 1, 23.0)
    run.config.update(references.recipe(row))
    assert [c.verdict.word for c in compare([run]) if c.reference is row] in ([], ["not comparable"])


# ---- References ----------------------------------------------------------------------------------------------------


def test_every_published_recipe_resolves_to_known_keys_and_its_batch():
    known = set(keys.defaults())
    assert {"batch.global", "optimizer.kind"} <= known | {"batch.global"}
    for row in references.read():
        made = references.recipe(row)
        assert bool(made) == bool(row.config), row
        if made:
            unknown = (
                {word.partition("=")[0] for word in row.overrides.split()} - known - {"batch.global", "batch.worker"}
            )
            assert not unknown and made["batch.global"] == row.batch, row
        assert row.evidence in ("read in the source", "read in notes on the paper", "memory"), row


def test_the_goyal_row_of_a_config_is_its_own(tmp_path):
    by_batch = {
        r.batch: r for r in references.read() if r.work.startswith("Goyal") and r.table == "error against batch"
    }
    assert (by_batch[8192].value, by_batch[8192].spread, by_batch[8192].n, by_batch[8192].overrides) == (
        23.74,
        0.09,
        5,
        "batch.global=8192",
    )
    assert set(by_batch) == {128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}


def test_a_broken_file_of_references_is_named_with_its_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(",".join(references.COLUMNS) + "\nWork,t,r,64,,,top1,many,,,,%,s,read in the source,\n")
    with pytest.raises(errors.ReportError, match="line 2: value is 'many'"):
        references.read_file(path)


# ---- MLPerf's checker ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rcp_checker():
    if mlperf.checker() is None:
        subprocess.run([ROOT / ".ci" / "mlperf_logging.sh"], timeout=HANG_SECONDS, capture_output=True)
    if mlperf.checker() is None:
        pytest.skip("mlperf-logging is not installed, and PyPI is not reached")


def mlperf_cell(epochs):
    made = []
    for seed, epoch in enumerate(epochs):
        run = goyal_run(f"r{seed}", seed, 50)
        run.evaluations = [
            {"step": 1, "epoch": epoch, "samples": 1, "validation_loss": 1.0, "validation_accuracy": 0.76}
        ]
        run.config["batch.global"] = 4096
        made.append(run)
    return cells.Cell((), 4096, 10.0, (), made)


def test_mlperfs_checker_passes_its_own_epochs_and_refuses_faster_ones(rcp_checker):
    assert mlperf.check(mlperf_cell([40, 40, 40, 41, 39]))[0] is True
    passed, words = mlperf.check(mlperf_cell([33, 33, 33, 34, 32]))
    assert passed is False and "32, 33, 33, 33, 34" in words
    assert mlperf.check(mlperf_cell([40, 40]))[0] is None
    cell = mlperf_cell([40, 40, 40, 41, 39])
    assert not tables.convergence([cell]).rows  # another target than MLPerf's
    cell.runs[0].config["stop.target_value"] = 0.759
    assert [row["checker"] for row in tables.convergence([cell]).rows] == ["passed"]


@pytest.mark.parametrize("told", json.loads((ROOT / "tests/golden/ends_diverged.json").read_text()))
def test_a_run_that_ends_above_its_first_step_and_above_guessing_has_diverged(told):
    """tests/unit/trial_record_test.cpp expects the same of the program."""
    count, first = told["losses"], told["first_step"]
    losses = [told["first"], *[math.nan if told["then"] is None else told["then"]] * (count - 1)]
    steps = {"step": numpy.arange(first, first + count, dtype=float), "loss": numpy.array(losses, float)}
    record = {"outcome": "finished", "starts": [{"ranks": 1}, {"guessing_loss": told["guessing"]}, {"ranks": 2}]}
    assert runs.Run(Path("run"), "run", "", {}, record, steps).ran_away == told["diverged"]
