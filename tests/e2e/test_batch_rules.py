"""Tests what stays constant when the batch changes: half-lives in samples, the decay's time scale, and the average of the
weights. Also tests a share of the training set."""
import math
import re

import numpy
import pytest

from conftest import (arrays, assert_close, assert_same_bits, checkpoints, evaluations, steps)

HALVED = {"kind": "adamw", "weight_decay": 0.1, "weight_decay_by": "sample",
          "half_life": {"beta1": 300, "beta2": 5000}}
# The batch changes after half an epoch and after a whole one.
COURSE = {"global": 32, "worker": 8, "schedule": [[0.5, 2], [1, 4]]}
AVERAGE = {"half_life": 200, "from_epoch": 0.2}
CASES = {
    "adamw": {"optimizer": HALVED, "average": AVERAGE},
    "sgd": {"optimizer": {"kind": "sgd", "half_life": {"momentum": 300}}, "average": {**AVERAGE, "evaluate": False},
            "learning_rate__base": 0.5, "data__last_batch": "smaller"},
    "muon": {"optimizer": {"kind": "muon", "half_life": {"momentum": 500, "beta1": 300, "beta2": 5000}},
             "average": AVERAGE, "learning_rate__base": 0.02},
}


@pytest.mark.fast_cases("adamw")
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_continues_bit_for_bit_before_and_after_the_batch_changes(workshop, case):
    common = dict(ranks=2, batch=COURSE, model__dropout=0.3, data__share=0.5, stop__epochs=1.5, **CASES[case])
    whole = workshop.train("whole", **common)
    numbers = [record["global_batch"] for record in steps(whole)]
    first, second = numbers.index(64), numbers.index(128)
    for cut in 1, first - 1, first + 1, second + 1:
        name = f"parts-{cut}"
        workshop.train(name, **{**common, "stop__steps": cut})
        parts = workshop.train(name, resume=True, **common)
        assert_same_bits(whole, parts)
        assert evaluations(whole)[-1]["validation_loss"] == evaluations(parts)[-1]["validation_loss"]


@pytest.mark.fast_cases("adamw")
@pytest.mark.parametrize("case", CASES)
def test_one_rank_is_two_ranks_is_four_ranks(workshop, case):
    keys = dict(batch=COURSE, data__share=0.5, stop__epochs=1.5, **CASES[case])
    one, two, four = (workshop.train(f"ranks-{n}", ranks=n, **keys) for n in (1, 2, 4))
    assert evaluations(one)
    assert_close(one, two)
    assert_close(one, four)


def test_in_a_fixed_order_the_ranks_have_the_same_bits(workshop):
    keys = dict(batch=COURSE, data__share=0.5, communication__order="fixed", run__threads=1, **CASES["adamw"])
    one, two = (workshop.train(f"ranks-{n}", ranks=n, **keys) for n in (1, 2))
    a, b = arrays(checkpoints(one)[-1]), arrays(checkpoints(two)[-1])
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.mark.parametrize("parallel", [{"kind": "ring", "shard_state": True}, {"kind": "server", "servers": 2},
                                      {"kind": "pipeline", "stages": 2}])
def test_every_way_to_be_parallel_has_the_average(workshop, parallel):
    keys = dict(batch=COURSE, stop__steps=12, **CASES["adamw"])
    assert_close(workshop.train("ring", **keys), workshop.train("other", ranks=2, parallel=parallel, **keys))


def test_asynchronous_servers_save_and_evaluate_the_average(workshop):
    run = workshop.train("run", ranks=4, parallel={"kind": "server", "servers": 2, "mode": "async"},
                         batch={"global": 32, "worker": 8, "micro": 8}, stop__steps=30, average={"half_life": 100},
                         optimizer={"half_life": {"beta1": 300}})
    stored = arrays(checkpoints(run)[-1])
    for name in [name for name in stored if name.startswith("optimizer/average/")]:
        tensor = name.removeprefix("optimizer/average/")
        assert stored[name].tobytes() == stored[f"weights/{tensor}"].tobytes()
        assert numpy.abs(stored[name] - stored[f"optimizer/y/{tensor}"]).max() > 0
    words = workshop.run("evaluate", checkpoints(run)[-1])
    assert words.code == 0 and math.isfinite(evaluations(run)[-1]["validation_loss"]), words


def test_the_average_is_that_of_the_saved_weights(workshop):
    """A program in float64 makes the average from the weights of every step."""
    keys = dict(stop__steps=12, checkpoint={"every_steps": 1, "keep": 20}, learning_rate__base=0.05,
                average={"half_life": 100, "from_epoch": 0.1}, data__share=0.5)
    run = workshop.train("run", **keys)
    positions = {record["step"]: record for record in steps(run)}
    expected = {}
    for path in checkpoints(run):
        stored = arrays(path)
        step = int(path.stem.removeprefix("step-"))
        if step == 0:
            continue
        begin = positions[step - 1]["epoch"] if step > 1 else 0
        rho = 2 ** (-32 / 100) if begin >= 0.1 else 0
        for name in [name for name in stored if name.startswith("optimizer/y/")]:
            tensor, weights = name.removeprefix("optimizer/y/"), stored[name].astype(float)
            expected[tensor] = rho * expected.get(tensor, weights) + (1 - rho) * weights
            numpy.testing.assert_allclose(stored[f"weights/{tensor}"], expected[tensor], rtol=1e-5, atol=1e-6)
    result = workshop.run("evaluate", checkpoints(run)[-1])
    said = evaluations(run)[-1]["validation_loss"]
    assert f"loss      {said:.6f}" in result.out, (said, result)
    assert any(numpy.abs(stored[f"optimizer/y/{name}"] - value).max() > 1e-4 for name, value in expected.items())


def test_without_evaluate_the_weights_themselves_are_evaluated(workshop):
    keys = dict(stop__steps=12, learning_rate__base=0.05)
    plain = workshop.train("plain", **keys)
    run = workshop.train("run", average={"half_life": 100, "evaluate": False}, **keys)
    assert evaluations(plain)[-1]["validation_loss"] == evaluations(run)[-1]["validation_loss"]
    a, b = arrays(checkpoints(plain)[-1]), arrays(checkpoints(run)[-1])
    assert {name for name in b if name not in a} == {
        name.replace("weights/", "optimizer/average/") for name in a if name.startswith("weights/")}
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)


def test_a_branch_with_twice_the_batch_keeps_half_lives_and_decay(workshop):
    parent = dict(optimizer=HALVED, average={"half_life": 200}, stop__steps=20, checkpoint={"keep_at": ["10 steps"]})
    run = workshop.train("parent", **parent)
    own = workshop.train("branch", **{**parent, "stop__steps": 40}, batch={"global": 64, "worker": 8},
                         branch={"from": f"{run}@10steps", "batch_factor": 2, "rate_factor": math.sqrt(2),
                                 "samples": 320})
    assert [r["global_batch"] for r in steps(own)] == [64] * 5
    assert math.isfinite(evaluations(own)[-1]["validation_loss"])


def test_plan_prints_factors_half_lives_and_the_decays_time_scale(workshop):
    def rows(**keys):
        result = workshop.run("plan", workshop.experiment(**keys), ranks=0)
        assert result.code == 0, result
        return result.out
    plain = rows(optimizer={"kind": "adamw", "weight_decay": 0.1})
    assert "beta1 0.9, half-life 211 samples in steps of 32" in plain, plain
    assert re.search(r"decay's time scale +\S+ epochs, \S+ steps of 32 samples, at the peak rate", plain), plain
    course = rows(optimizer=HALVED, batch=COURSE, stop__epochs=2, average=AVERAGE)
    factors = [f"{2 ** (-batch / 300):.6g} in steps of {batch}" for batch in (32, 128)]
    assert f"beta1 half-life 300 samples, {factors[0]}, {factors[1]}" in course, course
    assert "(the same at every batch)" in course and "optimizer state average" in course, course
    assert "averaged weights" in course and "from epoch 0.2, evaluated" in course, course
    assert "decay's time scale" not in rows(optimizer={"kind": "sgd", "weight_decay": 0.1})
    share = rows(data__share=0.25)
    assert re.search(r"share 0.25 of [\d,]+ samples", share), share


@pytest.mark.thorough
def test_resuming_with_other_betas_or_another_average_is_an_error(workshop):
    run = dict(optimizer=HALVED, average={"half_life": 200})
    workshop.train("run", stop__steps=3, **run)
    for change, words in [
            (dict(optimizer={**HALVED, "half_life": {"beta1": 400, "beta2": 5000}}),
             "optimizer.half_life.beta1 is 400, was 300"),
            (dict(average={}), "average.half_life is 0, was 200"),
            (dict(average={"half_life": 200, "evaluate": False}), "average.evaluate is false, was true"),
            (dict(data__share=0.5), "data.share is 0.5, was 1")]:
        result = workshop.train_badly("run", stop__steps=6, resume=True, **{**run, **change})
        assert words in result.err, (words, result)
    workshop.train("run", stop__steps=6, resume=True, optimizer=HALVED, average={"half_life": 100})
