"""Tests stages of a model on ranks of their own. Any number of stages must give the run of one rank. Also tests the
messages of the commands."""
import csv
import json
import os
import re
import signal
import time

import pytest

from conftest import HANG_SECONDS, assert_close, assert_drawn, evaluations, steps

PIPELINE = {"parallel__kind": "pipeline", "model__layers": 3, "batch__micro": 4}


def pipeline(stages, **more):
    return {**PIPELINE, "parallel__stages": stages, **more}


@pytest.mark.thorough
def test_any_stages_and_replicas_are_the_run_of_one_rank(workshop):
    one = workshop.train("one", model__layers=3, batch__micro=4)
    for name, ranks, changes in [("two", 2, pipeline(2)), ("replicas", 4, pipeline(2, parallel__schedule="gpipe")),
                                 ("four", 4, pipeline(4)),
                                 ("named", 3, pipeline(3, parallel__cuts=["lstm.l1", "linear"]))]:
        run = workshop.train(name, ranks=ranks, **changes)
        assert_close(run, one)
        for step in steps(run):
            assert step["bubble_seconds"] > 0 and step["boundary_seconds"] > 0


@pytest.mark.thorough
def test_replicas_of_a_pipeline_are_the_ring_of_as_many_ranks_bit_for_bit(workshop):
    for replicas in 1, 2:
        ring = workshop.train(f"ring{replicas}", ranks=replicas, model__layers=3, batch__micro=4)
        for schedule in "1f1b", "gpipe":
            run = workshop.train(f"{schedule}{replicas}", ranks=2 * replicas, **pipeline(2, parallel__schedule=schedule))
            assert [step["loss"] for step in steps(run)] == [step["loss"] for step in steps(ring)]
            assert [e["validation_loss"] for e in evaluations(run)] == [e["validation_loss"] for e in evaluations(ring)]


@pytest.mark.thorough
def test_a_run_goes_on_with_other_stages_or_none(workshop):
    whole = workshop.train("whole", model__layers=3, batch__micro=4, stop__steps=24)
    parts = [(4, pipeline(4)), (1, {"model__layers": 3, "batch__micro": 4}), (2, pipeline(2)),
             (2, {"model__layers": 3, "batch__micro": 4})]
    for i, (ranks, changes) in enumerate(parts):
        run = workshop.train("run", ranks=ranks, resume=i > 0, stop__steps=6 * (i + 1), **changes)
    assert_close(run, whole)
    words = ["evaluate", run, "--json"]
    for ranks in 1, 2:
        result = workshop.run(*words, workshop.folder / f"{ranks}.json", ranks=ranks)
        assert result.code == 0, result
    losses = [json.loads((workshop.folder / f"{ranks}.json").read_text())["validation_loss"] for ranks in (1, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] == pytest.approx(evaluations(run)[-1]["validation_loss"], rel=1e-5)


def test_the_split_size_is_measured_once_and_kept(workshop):
    run_dir, job = workshop.start_training("run", ranks=2, **{**pipeline(2), "batch__micro": 0}, stop__steps=4)
    first = job.wait()
    assert first.code == 0, first
    chosen = re.search(r"of \d+ split sizes (\d+) was the fastest", first.text)
    assert chosen, first
    assert f"{chosen[1]}: the fastest of those that were measured" in first.text, first
    _, job = workshop.start_training("run", ranks=2, resume=True, **{**pipeline(2), "batch__micro": 0}, stop__steps=8)
    second = job.wait()
    assert second.code == 0 and "was the fastest" not in second.text, second
    assert re.search(rf"micro-steps? x {chosen[1]}\b", second.text), second
    assert f"{chosen[1]}: that of the checkpoint" in second.text, second


def test_the_measured_split_sizes_divide_the_small_batch_of_the_noise(workshop):
    run_dir, job = workshop.start_training("run", ranks=2, **{**pipeline(2), "batch__micro": 0}, noise={"small_batch": 8}, stop__steps=4)
    result = job.wait()
    assert result.code == 0 and len(steps(run_dir)) == 4, result
    assert 8 % int(re.search(r"of \d+ split sizes (\d+) was the fastest", result.text)[1]) == 0, result


@pytest.mark.thorough
def test_the_measured_split_sizes_leave_room_for_evaluations(workshop):
    """The limit is between the memory of a run without evaluations and that of a run with them."""
    def planned(size, **more):
        result = workshop.run("plan", workshop.experiment(**{**pipeline(2), "batch__micro": size}, **more), "--ranks", 2, ranks=0)
        return result, max((float(value) * {"KiB": 2**10, "MiB": 2**20}[unit] for value, unit in
                            re.findall(r"parameters, ([\d.]+) (KiB|MiB) per rank", result.out)), default=0)

    without, evaluating = planned(32, data__validation="")[1], planned(32)[1]
    assert 0 < without < evaluating * 0.99
    limit = {"memory__limit_gib": (without + evaluating) / 2**31}
    table = workshop.folder / "split.csv"
    result = workshop.run("bench", "split", workshop.experiment(**pipeline(2), **limit), "--seconds", "1", "--csv", table,
                          ranks=2, timeout=HANG_SECONDS)
    assert result.code == 0, result
    sizes = {row["split_size"] for row in csv.DictReader(table.open())}
    assert sizes
    for size in sizes:
        assert planned(int(size), **limit)[0].code == 0, size
    workshop.train("run", ranks=2, **{**pipeline(2), "batch__micro": 0}, **limit, stop__steps=4)


def test_plan_prints_stages_and_the_bubble(workshop):
    result = workshop.run("plan", workshop.experiment(**pipeline(2)), "--ranks", 4, ranks=0)
    assert result.code == 0, result
    assert re.search(r"stage 0 +lstm\.l0", result.out), result
    assert re.search(r"stage 1 .*linear", result.out), result
    assert "of activations a micro-batch" in result.out
    named = workshop.run("plan", workshop.experiment(**pipeline(2, parallel__cuts=["lstm.l2"])), "--ranks", 2, ranks=0)
    assert re.search(r"stage 0 +lstm\.l0 to lstm\.l1", named.out) and re.search(r"stage 1 +lstm\.l2 to linear", named.out), named
    # A replica has 16 rows, in micro-batches of 4.
    assert re.search(r"bubble +\(K - 1\) / \(m \+ K - 1\) = 1 / 5 = 20 %", result.out), result


@pytest.mark.parametrize("changes, ranks, says", [
    ({"parallel__stages": 5}, 5, "more than the model's 4 layers"),
    ({"parallel__stages": 3}, 4, "does not divide the 4 ranks"),
    ({"parallel__stages": 2, "parallel__cuts": ["lstm.l7"]}, 2, "lstm.l7"),
    ({"parallel__stages": 2, "optimizer": {"kind": "muon"}}, 2, "pipeline"),
])
def test_what_cannot_be_is_refused_with_the_reason(workshop, changes, ranks, says):
    result = workshop.run("plan", workshop.experiment(**{**PIPELINE, **changes}), "--ranks", ranks, ranks=0)
    assert result.code != 0 and says in result.err, result


@pytest.mark.parametrize("victim", [0, 1])
def test_killing_a_stage_ends_the_job_and_names_the_rank(workshop, victim):
    run, job = workshop.start_training("run", ranks=2, **pipeline(2), stop__steps=10**9)
    job.wait_for_step(run, 3)
    start = time.monotonic()
    os.kill(job.ranks()[victim], signal.SIGKILL)
    result = job.wait(90)
    assert time.monotonic() - start < 10
    assert result.code != 0 and re.search(rf"\brank {victim}\b", result.text), result


@pytest.mark.thorough
def test_bench_split_names_the_fastest_of_what_it_tried(workshop):
    table = workshop.folder / "split.csv"
    result = workshop.run("bench", "split", workshop.experiment(**pipeline(2)), "--seconds", "1", "--csv", table,
                          ranks=2, timeout=HANG_SECONDS)
    assert result.code == 0, result
    rows = list(csv.DictReader(table.open()))
    assert {row["split_size"] for row in rows} == {"1", "2", "4", "8", "16", "32"}
    assert len({row["cuts"] for row in rows}) > 1
    best = max(rows, key=lambda row: float(row["samples_per_second"]))
    assert f"fastest: batch.micro={best['split_size']} parallel.cuts=[{best['cuts'].replace(' ', ',')}]" in result.text
    assert_drawn(table)
    result = workshop.run("bench", "split", workshop.experiment(), "--seconds", "1", ranks=2)
    assert result.code != 0 and "parallel.kind" in result.err, result
