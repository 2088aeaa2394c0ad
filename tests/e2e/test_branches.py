"""Tests checkpoints that are kept for ever, and runs that continue from them with another batch."""
import json
import math
import shutil

import pytest

from conftest import CURVE, arrays, assert_close, checkpoints, evaluations, steps


def kept(run_dir):
    return [int(path.stem[5:]) for path in checkpoints(run_dir)]


def first_step_at(run_dir, epochs):
    return next(r["step"] for r in steps(run_dir) if r["epoch"] >= epochs - 1e-9)


def curve_behind(run_dir, step):
    return [tuple(r[key] for key in CURVE) for r in steps(run_dir) if r["step"] > step]


def of(run_dir, step):
    return run_dir / "checkpoints" / f"step-{step:09}.h5"


POINTS = {"keep": 1, "keep_at": [0, 0.3, 1, "20 steps", 40], "every_epochs": 0, "every_steps": 7}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.thorough
def test_kept_checkpoints_lie_at_the_same_steps_on_any_ranks_and_over_a_resume(workshop, ranks):
    common = dict(checkpoint=POINTS, ranks=ranks)
    whole = workshop.train("whole", stop__steps=30, **common)
    expected = sorted({0, first_step_at(whole, 0.3), first_step_at(whole, 1), 20, 30})
    assert kept(whole) == expected
    # The run is made in parts. The second part ends at a kept point, and its checkpoint stays although none was due
    # there.
    for end in (10, 20, 26, 30):
        workshop.train("parts", stop__steps=end, resume=end > 10, **common)
    parts = workshop.folder / "parts"
    assert kept(parts) == expected
    for step in expected:
        a, b = arrays(of(whole, step)), arrays(of(parts, step))
        assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a), step


def test_a_point_that_a_killed_run_has_reached_is_kept_by_the_next(workshop):
    common = dict(checkpoint={"keep": 1, "keep_at": ["6 steps"], "every_steps": 3}, stop__steps=40)
    run, job = workshop.start_training("run", **common)
    job.wait_for_step(run, 12)
    job.kill()
    workshop.train("run", resume=True, **common)
    assert kept(run) == [6, 40]


def test_plan_shows_the_steps_that_are_kept(workshop):
    path = workshop.experiment(checkpoint={"keep_at": [0.5, "12 steps", 9]})
    result = workshop.run("plan", path, ranks=0)
    assert result.code == 0 and "12 steps: step 12 (epoch" in result.out and "9 epochs: after the end" in result.out, result


@pytest.fixture
def parent(workshop):
    """A run with dropout, a schedule in which every step has another rate, and checkpoints inside and between
    epochs."""
    return workshop.train("parent", **PARENT)


PARENT = dict(ranks=2, stop__steps=40, model__dropout=0.3,
              learning_rate={"base": 0.01, "warmup_steps": 25, "warmup_from": "zero", "schedule": "cosine"},
              checkpoint={"keep_at": ["20 steps", 1]})


def branch(workshop, name, parent, point, **changes):
    """Trains a branch of the parent's own experiment."""
    given = {"from": f"{parent}@{point}", **changes.pop("branch", {})}
    return workshop.train(name, branch=given, batch=multiple(given), **{**PARENT, **changes})


def multiple(branch):
    return {"global": round(32 * branch.get("batch_factor", 1)), "worker": 8}


@pytest.mark.fast_cases("adam-1", "schedule-free sgd-2")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "schedule-free sgd"])
def test_a_branch_of_once_the_batch_is_the_runs_own_continuation_bit_for_bit(workshop, ranks, optimizer):
    keys = {"kind": optimizer.split()[-1], "schedule_free": optimizer.startswith("schedule")}
    if keys["schedule_free"]:
        changes = dict(learning_rate={"base": 0.01, "warmup_steps": 25, "warmup_from": "zero"})
    else:
        changes = {}
    common = {**PARENT, "ranks": ranks, "optimizer": keys, **changes}
    run = workshop.train("parent", **common)
    for point, step in ("20steps", 20), (1, first_step_at(run, 1)):
        name = f"branch-{point}"
        own = workshop.train(name, branch={"from": f"{run}@{point}", "samples": 32 * (40 - step)}, **common)
        assert curve_behind(own, 0) == curve_behind(run, step) and len(steps(own)) == 40 - step
        a, b = arrays(checkpoints(own)[-1]), arrays(checkpoints(run)[-1])
        assert a.keys() == b.keys() and all(a[array].tobytes() == b[array].tobytes() for array in a)
        assert evaluations(own)[-1]["validation_loss"] == evaluations(run)[-1]["validation_loss"]
        start = json.loads((own / "run.json").read_text())["starts"][0]
        said = start["branch"]
        assert (said["step"], said["samples"], said["batch_factor"], said["run"]) == (step, 32 * step, 1, str(run))


def test_a_branch_with_twice_the_batch_takes_the_same_samples_in_half_the_steps(workshop, parent):
    own = branch(workshop, "twice", parent, "20steps",
                 branch={"batch_factor": 2, "rate_factor": math.sqrt(2), "samples": 320})
    assert [(r["step"], r["samples"], r["global_batch"]) for r in steps(own)] == [
        (20 + i, 640 + 64 * i, 64) for i in range(1, 6)]
    # An update has the parent's rate at the same number of samples, times sqrt 2.
    rates = {r["samples"] - 32: r["lr"] for r in steps(parent)}
    for record in steps(own):
        assert record["lr"] == pytest.approx(math.sqrt(2) * rates[record["samples"] - 64], rel=1e-6)
    start = json.loads((own / "run.json").read_text())["starts"][0]
    assert start["batch"]["global"] == 64 and start["branch"]["rate_factor"] == pytest.approx(math.sqrt(2))
    # On another number of ranks, the branch is the same up to rounding. It may start from the file or from the point.
    one = branch(workshop, "one", parent, "20steps", ranks=1,
                 branch={"from": str(of(parent, 20)), "batch_factor": 2, "rate_factor": math.sqrt(2), "samples": 320})
    assert_close(own, one)


@pytest.mark.thorough
def test_a_branch_is_resumed_from_its_own_checkpoints(workshop, parent):
    keys = dict(branch={"batch_factor": 2, "rate_factor": 2, "samples": 576}, checkpoint={"every_steps": 2})
    whole = branch(workshop, "whole", parent, "20steps", **keys)
    again = {**PARENT, **keys, "branch": {"from": f"{parent}@20steps", **keys["branch"]}, "batch": multiple(keys["branch"])}
    run, job = workshop.start_training("parts", **again)
    job.wait_for_step(run, 23)
    job.kill()
    moved = parent.rename(parent.with_name("elsewhere"))  # then only its own checkpoints are there
    if checkpoints(run):
        workshop.train("parts", resume=True, **again)
    moved.rename(parent)
    workshop.train("parts", resume=True, **again)
    assert curve_behind(run, 0) == curve_behind(whole, 0)
    a, b = arrays(checkpoints(run)[-1]), arrays(checkpoints(whole)[-1])
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
    # Now the run is as if it had been killed before its first checkpoint. It starts from the parent's checkpoint again.
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    workshop.train("parts", resume=True, **again)
    assert curve_behind(run, 0) == curve_behind(whole, 0)


BAD = {
    "no such run": (dict(branch={"from": "nowhere@1"}), ["branch.from is nowhere@1", "there is no run nowhere"]),
    "no such point": (dict(branch={"from": "PARENT@7steps"}), ["there is no checkpoint at 7 steps; there are checkpoints at ", "step 20 (epoch", "step 40",
                                                              "checkpoint.keep_at: [7 steps]"]),
    "another model": (dict(branch={"from": "PARENT@20steps"}, model={"hidden": 24}), ["model.hidden is 24, was 16"]),
    "another seed": (dict(branch={"from": "PARENT@20steps"}, seed=2), ["seed is 2, was 1"]),
    "another batch": (dict(branch={"from": "PARENT@20steps"}, batch={"global": 64, "worker": 8}),
                      ["batch.global is 64, but 1 x the 32 of that run is 32", "branch.batch_factor"]),
    "ranks": (dict(branch={"from": "PARENT@20steps", "batch_factor": 1.5}, batch={"global": 48, "worker": 8}, ranks=4), ["4 ranks do not divide the 6 virtual workers"]),
    "no checkpoint": (dict(branch={"from": "PARENT/run.json"}), ["run.json"]),
}


@pytest.mark.thorough
def test_what_a_branch_cannot_be_is_one_clear_error(workshop, parent):
    for what, (changes, words) in BAD.items():
        changes = {**PARENT, **changes}
        changes["branch"] = {**changes["branch"], "from": changes["branch"]["from"].replace("PARENT", str(parent))}
        result = workshop.train_badly(f"bad {what}".replace(" ", "-"), **changes)
        assert result.err.count("ringtrain: error") == 1, (what, result)
        for word in words:
            assert word in result.err, (what, word, result)


@pytest.mark.thorough
def test_the_branch_stays_as_it_is_over_a_resume(workshop, parent):
    keys = {"batch_factor": 2, "samples": 320}
    branch(workshop, "run", parent, "20steps", branch=keys)
    for changes, word in (({"batch_factor": 4, "samples": 640}, "branch.batch_factor is 4, was 2"), (None, "branch.from is")):
        given = {"branch": {"from": f"{parent}@20steps", **changes}, "batch": multiple(changes)} if changes else {}
        result = workshop.train_badly("run", resume=True, **{**PARENT, **given})
        assert word in result.err, result
