"""Tests a batch that changes during a run: by its schedule, with the gradient noise scale, and at the end of an
epoch."""
import re

import pytest

from conftest import assert_close, assert_same_bits, evaluations, steps

SCHEDULE = {"global": 32, "worker": 8, "schedule": [[0.5, 2], [1, 6]], "largest": 128}


def sizes(run_dir):
    return [record["global_batch"] for record in steps(run_dir)]


@pytest.mark.thorough
def test_a_schedule_takes_the_same_course_on_any_number_of_ranks_and_over_a_resume(workshop):
    common = dict(batch=SCHEDULE, stop__epochs=2, learning_rate={"warmup_steps": 0, "warmup_from": "base"})
    whole = workshop.train("whole", ranks=2, stop__steps=0, **common)
    records = steps(whole)
    assert sorted(set(sizes(whole))) == [32, 64, 128] and sizes(whole) == sorted(sizes(whole))
    for before, after in zip(records, records[1:]):
        assert after["samples"] == before["samples"] + after["global_batch"]
    for record in records:
        # The rate is that of the update with which the record ends.
        assert record["lr"] == records[0]["lr"] * (128 / 192 if record["global_batch"] == 128 else 1)
    assert [round(e["epoch"], 9) for e in evaluations(whole)] == [1, 2]
    one = workshop.train("one", ranks=1, stop__steps=0, **common)
    assert_close(whole, one)
    for cut in sizes(whole).index(64), sizes(whole).index(128) + 1:
        workshop.train(f"parts-{cut}", ranks=2, stop__steps=cut, **common)
        parts = workshop.train(f"parts-{cut}", ranks=2, stop__steps=0, resume=True, **common)
        assert_same_bits(whole, parts)


def test_plan_shows_the_course_and_refuses_ranks_that_do_not_divide_it(workshop):
    path = workshop.experiment(batch=SCHEDULE, stop__epochs=2, stop__steps=0)
    result = workshop.run("plan", path, ranks=0)
    assert result.code == 0, result
    assert "course of the batch" in result.out, result
    for part in ("32 samples", "64 samples", "128 samples", "from epoch 1"):
        assert part in result.out, result
    path = workshop.experiment(batch={"global": 32, "worker": 8, "schedule": [[1, 1.5]]}, stop__epochs=2)
    result = workshop.run("plan", path, "--ranks", "4", ranks=0)
    assert result.code != 0 and "4 ranks do not divide the 6 virtual workers" in result.err, result


@pytest.mark.thorough
def test_a_batch_that_follows_the_noise_is_the_same_on_any_number_of_ranks_and_over_a_resume(workshop):
    common = dict(batch={"global": 32, "worker": 8, "follow_noise": 1e6, "largest": 128, "patience": 200},
                  noise={"small_batch": 8, "half_life": 1000}, stop__steps=20)
    whole = workshop.train("whole", ranks=2, **common)
    assert sizes(whole)[0] == 32 and sizes(whole)[-1] == 128 and sizes(whole) == sorted(sizes(whole))
    assert sizes(workshop.train("four", ranks=4, **common)) == sizes(whole)
    first = sizes(whole).index(64)
    for cut in first - 1, first, first + 2:
        workshop.train(f"parts-{cut}", ranks=2, **{**common, "stop__steps": cut})
        assert_same_bits(whole, workshop.train(f"parts-{cut}", ranks=2, resume=True, **common))


@pytest.mark.thorough
def test_a_smaller_last_batch_takes_every_sample_once_an_epoch(workshop):
    common = dict(data__last_batch="smaller", stop__epochs=2, stop__steps=0)
    run = workshop.train("run", ranks=2, **common)
    per_epoch = [[r["global_batch"] for r in steps(run) if epoch < r["epoch"] <= epoch + 1] for epoch in (0, 1)]
    assert per_epoch[0] == per_epoch[1] and set(per_epoch[0][:-1]) == {32} and 0 < per_epoch[0][-1] < 32
    record = (run / "run.json").read_text()
    assert f'"samples": {sum(per_epoch[0])}' in record
    assert [e["epoch"] for e in evaluations(run)] == [1, 2]
    assert_close(run, workshop.train("four", ranks=4, **common))
    cut = len(per_epoch[0])
    workshop.train("parts", ranks=2, **{**common, "stop__steps": cut})
    assert_same_bits(run, workshop.train("parts", ranks=2, resume=True, **common))


@pytest.mark.parametrize("changes", [
    dict(data__last_batch="smaller", learning_rate={"schedule": "polynomial", "warmup_epochs": 1.4}),
    dict(batch__schedule=[[1, 2], [2, 4]], learning_rate={"schedule": "step", "milestones": [2], "warmup_epochs": 1.5}),
    dict(batch__schedule=[[1, 4]], batch__largest=64, learning_rate={"schedule": "cosine", "warmup_steps": 4}),
    dict(learning_rate={"schedule": "step", "milestones": [1, 1.5], "every": "epoch", "warmup_epochs": 1}),
], ids=["smaller last batch", "larger batches", "largest batch", "by epochs"])
def test_plan_prints_the_rates_of_the_run(workshop, changes):
    """Each row of the table has the rate of an update. The update after N steps is step N + 1 in metrics.jsonl."""
    rates = {"learning_rate__base": 0.01, "learning_rate__warmup_from": "zero"}
    changes = {**changes, **rates, "stop__epochs": 3, "stop__steps": 0}
    planned = workshop.run("plan", workshop.experiment(**changes), ranks=0)
    rows = re.findall(r"^  step (\d+) \(epoch \S+\) +(\S+)  (.*)$", planned.out, re.MULTILINE)
    assert len(rows) >= 3, planned
    trained = {record["step"]: record["lr"] for record in steps(workshop.train("run", **changes))}
    if rows[-1][2] == "end":
        assert int(rows.pop()[0]) == max(trained), planned
    for step, rate, what in rows:
        assert float(rate) == pytest.approx(trained[int(step) + 1], rel=1e-5), (step, what, planned.out, trained)
    assert int(rows[-1][0]) + 1 == max(trained) and rows[-1][2].endswith("last update"), planned
