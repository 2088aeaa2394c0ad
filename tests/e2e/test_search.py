"""Runs studies that continue from a run, and studies that search: `branch` and `search: halving`."""
import json
import re
import shutil
import time

import pytest

from conftest import HANG_SECONDS, arrays, checkpoints, evaluations, last_step, steps

HALVING = """name: search
experiment: {experiment}
vary: {{learning_rate.base: [0.0003, 0.002, 0.012, 0.07]}}
search: halving
budget: {{samples: 1280, factor: 2}}
"""


def run_study(workshop, text, *words, ranks=2, code=0, **changes):
    path = workshop.folder / "study.yaml"
    if not path.exists():
        path.write_text(text.format(experiment=workshop.experiment(**changes)))
    given = [] if "--plan" in words else ["--ranks", ranks]
    result = workshop.run("study", path, *words, *given, ranks=0, cwd=workshop.folder, timeout=HANG_SECONDS)
    assert result.code == code, result
    return result


def trials(folder):
    study = json.loads((folder / "study.json").read_text())
    return study, {trial["name"]: trial for trial in study["trials"]}


def computed_steps(folder):
    return sum(last_step(path) for path in folder.glob("*/"))


def decisions(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rung-*.json"))]


def test_the_plan_of_a_search_counts_the_samples_of_its_rungs(workshop):
    out = run_study(workshop, HALVING, "--plan", ranks=0, stop__steps=0).out
    assert re.search(r"^ *together +2,560 samples, 50 % of the 5,120 of all points to their end$", out, re.M), out
    sums = out[out.index("\ntogether\n"):]
    assert re.search(r"^ *samples +2,560$", sums, re.M), out
    # An earlier trial that went to the end says how long a sample takes.
    run_study(workshop, HALVING, stop__steps=0)
    folder = workshop.folder / "results" / "search"
    for path in folder.glob("*/run.json"):
        record = json.loads(path.read_text())
        record["starts"][-1]["elapsed_seconds"] = steps(path.parent)[-1]["samples"] / 100
        path.write_text(json.dumps(record))
    out = run_study(workshop, HALVING, "--plan", ranks=0, stop__steps=0).out
    assert re.search(r"^ *expected time +25.6 s x ranks", out, re.M), out


WITHIN = """name: within
experiment: {experiment}
vary: {{batch.global: [32, 64], learning_rate.base: [0.0001, 0.02]}}
search: halving
budget: {{samples: 16 * batch.global + 64, factor: 2, within: batch.global}}
limits: {{target: {{validation_loss: {target}}}}}
"""


def run_within(workshop, target):
    text = WITHIN.replace("{target}", target)
    run_study(workshop, text, stop__steps=0, evaluate={"every_epochs": 0, "every_steps": 1}, batch__worker=16)
    return trials(workshop.folder / "results" / "within")


def test_each_batch_has_a_search_of_its_own(workshop):
    study, by_name = run_within(workshop, "0.001")
    assert study["search"]["within"] == "batch.global"
    samples = {part["value"]: [rung["samples"] for rung in part["rungs"]] for part in study["search"]["searches"]}
    assert samples == {"32": [288, 576], "64": [544, 1088]}
    for part in study["search"]["searches"]:
        own = [by_name[name] for name in part["names"]]
        assert sorted(trial["rung"] for trial in own) == [1, 2]
        best = min(own, key=lambda trial: trial["rung_losses"][0])
        assert best["rung"] == 2 and best["outcome"]["samples"] == samples[part["value"]][1]
    run_study(workshop, "", "--resume")  # every decision is read again


def test_a_search_ends_when_a_trial_has_reached_the_target(workshop):
    study, by_name = run_within(workshop, "3.1")
    reached = [trial for trial in by_name.values() if trial["outcome"].get("end") == "target reached"]
    assert len(reached) == 2 and {trial["rung"] for trial in by_name.values()} == {1}
    assert all(decided["promoted"] == [] for decided in decisions(workshop.folder / "results" / "within"))


def test_a_search_does_not_wait_for_a_trial_whose_folder_cannot_be_used(workshop):
    path = workshop.folder / "study.yaml"
    slow = {"test": {"slow_rank": 0, "slow_seconds": 0.05}}
    path.write_text(HALVING.format(experiment=workshop.experiment(stop__steps=0, **slow)))
    job = workshop.start("study", path, "--ranks", 1, ranks=0, cwd=workshop.folder)
    folder = workshop.folder / "results" / "search"
    deadline = time.monotonic() + 30
    while not list(folder.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    begun = {path.name for path in folder.glob("*/")}
    names = {trial["name"] for trial in json.loads((folder / "study.json").read_text())["trials"]}
    (left, *_) = sorted(names - begun)
    (folder / left).touch()
    result = job.wait()
    assert result.code == 1 and f"{left}: " in result.err and "--resume" in result.out + result.err, result


def test_other_points_or_another_within_are_refused(workshop):
    run_study(workshop, HALVING, stop__steps=0)
    path = workshop.folder / "study.yaml"
    text = path.read_text()
    path.write_text(text.replace("0.07", "0.06"))
    result = run_study(workshop, "", "--resume", code=1)
    assert "rung-1.json: 4 points to 320 samples were compared, but this study has 4 others" in result.err, result
    path.write_text(text.replace("factor: 2}", "factor: 2, within: learning_rate.base}"))
    result = run_study(workshop, "", "--resume", code=1)
    assert "were decided with another budget.within" in result.err and "give the study another name" in result.err, result


def test_a_search_promotes_the_best_and_leaves_the_others_behind(workshop):
    run_study(workshop, HALVING, stop__steps=0)
    folder = workshop.folder / "results" / "search"
    study, by_name = trials(folder)
    assert [(r["trials"], r["samples"]) for r in study["search"]["rungs"]] == [(4, 320), (2, 640), (1, 1280)]
    assert {t["state"] for t in by_name.values()} == {"finished"}
    for number, decided in enumerate(decisions(folder), 1):
        order = sorted(decided["losses"], key=lambda name: decided["losses"][name])
        assert decided["promoted"] == order[:len(order) // 2]
        for name, loss in decided["losses"].items():
            end = next(e for e in evaluations(folder / name) if e["samples"] == decided["samples"])
            assert end["validation_loss"] == loss and by_name[name]["rung_losses"][number - 1] == loss
    rungs = sorted(t["rung"] for t in by_name.values())
    assert rungs == [1, 1, 2, 3]
    for name, trial in by_name.items():
        assert steps(folder / name)[-1]["samples"] == (320, 640, 1280)[trial["rung"] - 1]
        assert trial["left_behind"] == (trial["rung"] < 3)
    # The trial at the end equals the run that it would have been alone, because its schedule is that of the whole
    # budget.
    best = next(name for name, t in by_name.items() if t["rung"] == 3)
    overrides = by_name[best]["overrides"]
    alone = workshop.train("alone", stop__steps=40, learning_rate__base=overrides.get("learning_rate.base", 0.01))
    assert [(r["step"], r["loss"], r["lr"]) for r in steps(alone)] == [(r["step"], r["loss"], r["lr"])
                                                                       for r in steps(folder / best)]


@pytest.mark.thorough
def test_a_killed_search_goes_on_with_the_same_promotions(workshop):
    run_study(workshop, HALVING, stop__steps=0, test={"slow_rank": 0, "slow_seconds": 0.03})  # time for a kill
    folder = workshop.folder / "results" / "search"
    whole = workshop.folder / "whole"
    folder.rename(whole)
    path = workshop.folder / "study.yaml"
    # The three kills hit the first rung, the second one, and the third one.
    words = []
    for finished_rungs in range(3):
        job = workshop.start("study", path, "--ranks", 2, *words, ranks=0, cwd=workshop.folder)
        before, deadline = computed_steps(folder), time.monotonic() + 60
        while len(decisions(folder)) < finished_rungs or computed_steps(folder) < before + 2:
            assert job.process.poll() is None and time.monotonic() < deadline, job.result(job.process.returncode)
            time.sleep(0.005)
        job.process.kill()
        job.process.wait()
        assert computed_steps(folder) < computed_steps(whole), "the kill came after the end"
        words = ["--resume"]
    run_study(workshop, HALVING, "--resume")
    assert decisions(folder) == decisions(whole)
    _, expected = trials(whole)
    _, found = trials(folder)
    for name in expected:
        assert found[name]["rung"] == expected[name]["rung"] and found[name]["rung_losses"] == expected[name]["rung_losses"]
        a, b = arrays(checkpoints(folder / name)[-1]), arrays(checkpoints(whole / name)[-1])
        assert all(a[array].tobytes() == b[array].tobytes() for array in a) and a.keys() == b.keys()
    again = run_study(workshop, HALVING, "--resume")
    assert "4 finished" in again.err + again.out, again


def test_a_diverged_trial_is_never_promoted(workshop):
    run_study(workshop, HALVING.replace("0.07]", "100000]"), stop__steps=0)
    _, by_name = trials(workshop.folder / "results" / "search")
    lost = next(t for name, t in by_name.items() if "100000" in name)
    assert lost["state"] == "diverged" and lost["rung"] == 1, lost


BRANCHES = """name: branches
branch: {{from: parent, at: [20 steps], batch: [x1, x2], samples: 320, rate: linear}}
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_study_of_branches(workshop, ranks):
    parent = workshop.train("parent", ranks=ranks, stop__steps=30, checkpoint={"keep_at": ["20 steps"]}, model__dropout=0.3)
    result = run_study(workshop, BRANCHES + f"ranks_per_trial: {ranks}\n", ranks=2)
    folder = workshop.folder / "results" / "branches"
    study, by_name = trials(folder)
    one, two = (folder / next(n for n in by_name if n.endswith(k)) for k in ("_x1", "_x2"))
    assert [r["loss"] for r in steps(one)] == [r["loss"] for r in steps(parent)][20:], result
    assert [r["global_batch"] for r in steps(two)] == [64] * 5
    record = json.loads((two / "run.json").read_text())["starts"][0]
    assert record["branch"]["rate_factor"] == 2 and record["branch"]["run"] == str(parent)


@pytest.mark.thorough
def test_a_study_of_branches_needs_its_run(workshop):
    result = run_study(workshop, BRANCHES, ranks=1, code=1)
    assert result.err.count("ringtrain: error") == 1 and "study.yaml:2:16: there is no run in parent" in result.err, result
    path = workshop.folder / "study.yaml"
    path.write_text(path.read_text() + f"experiment: {workshop.experiment(stop__epochs=9)}\n")
    result = workshop.run("study", path, "--plan", ranks=0, cwd=workshop.folder)
    assert result.code == 0 and "at-20steps_x2" in result.out, result
    result = workshop.run("study", path, ranks=0, cwd=workshop.folder)
    assert result.code == 1 and result.err.count("ringtrain: error") == 1 and "there is no run parent" in result.err, result
    shutil.rmtree(workshop.folder / "results", ignore_errors=True)
    workshop.train("parent", stop__steps=22)
    result = workshop.run("study", path, "--plan", ranks=0, cwd=workshop.folder)
    assert result.code == 1 and "there is no checkpoint at 20 steps" in result.err and "checkpoint.keep_at: [20 steps]" in result.err
