"""Tests which checkpoints a run keeps, and the targets that end it."""
import json
import re

import h5py
import numpy
import pytest

from conftest import ROOT, checkpoints, evaluations, last_step


def saved_steps(run):
    return [int(path.stem.split("-")[1]) for path in checkpoints(run)]


def test_every_seconds_saves_while_the_run_goes_on(workshop):
    words = dict(stop__steps=20, test={"slow_rank": 0, "slow_seconds": 0.05}, data__validation="")
    by_the_clock = workshop.train("clock", checkpoint={"every_epochs": 0, "every_seconds": 0.2, "keep": 100}, **words)
    never_due = workshop.train("never", checkpoint={"every_epochs": 0, "every_seconds": 1000, "keep": 100}, **words)
    assert saved_steps(never_due) == [20]
    assert len(saved_steps(by_the_clock)) >= 3 and saved_steps(by_the_clock)[-1] == 20  # the run takes a second or more


def test_the_best_is_kept_unless_it_is_not_wanted(workshop):
    words = dict(stop__steps=20, evaluate={"every_epochs": 0, "every_steps": 5})
    kept = workshop.train("kept", **words)
    left = workshop.train("left", checkpoint={"best": False}, **words)
    assert (kept / "checkpoints" / "best.h5").exists() and not (left / "checkpoints" / "best.h5").exists()
    assert [e["best"] for e in evaluations(left)] == [e["best"] for e in evaluations(kept)]
    # The folder has no other file: the start has removed the file with which it measured a checkpoint's time.
    assert sorted(path.name for path in (left / "checkpoints").iterdir()) == sorted(path.name for path in checkpoints(left))
    # Without a best checkpoint, the newest one is evaluated.
    result = workshop.run("evaluate", left, ranks=0)
    assert result.code == 0 and "step 20" in result.text, result


@pytest.mark.parametrize("metric, sign", [("validation_loss", 1), ("validation_accuracy", -1)])
def test_a_target_ends_the_run_at_the_first_evaluation_that_reaches_it(workshop, metric, sign):
    words = dict(evaluate={"every_epochs": 0, "every_steps": 10}, learning_rate__base=0.02)
    reference = evaluations(workshop.train("reference", stop__steps=100, **words))
    reached = [sign * e[metric] for e in reference]
    # The target lies between the lowest loss so far and all before it, so rounding of the printed value does not
    # matter.
    records = [i for i in range(1, len(reached)) if reached[i] < min(reached[:i])]
    assert records, reached
    last = records[-1]
    target = sign * (reached[last] + min(reached[:last])) / 2
    run = workshop.train("run", stop={"steps": 100, "target_metric": metric, "target_value": target}, **words)
    assert last_step(run) == reference[last]["step"]
    assert evaluations(run)[-1][metric] == reference[last][metric]
    assert json.loads((run / "run.json").read_text())["outcome"] == "finished"


def test_the_page_of_checkpoints_lists_every_attribute_with_its_type(workshop):
    """A count is an integer in the file. In the page, a name that ends in ... stands for all names with this beginning."""
    kinds = {"text": (str, bytes), "text, JSON": (str, bytes), "integer": numpy.integer, "float": numpy.floating}
    listed = {}
    for names, types in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", (ROOT / "results" / "checkpoints.md").read_text(), re.M):
        names = re.findall("`([^`]*)`", names)
        types = [types] * len(names) if types in kinds else types.split(", ")
        listed.update(zip(names, types, strict=False))
    run = workshop.train("run", checkpoint__keep_at=["1epochs"], batch={"global": 32, "worker": 8, "micro": 8}, noise__every_steps=1,
                         stop={"steps": 0, "epochs": 1})
    with h5py.File(checkpoints(run)[-1]) as file:
        attributes = dict(file.attrs)
    assert attributes["format"] == 1 and attributes["samples"] > 0 and attributes["noise_samples"] > 0
    for name, value in attributes.items():
        kind = next((kind for one, kind in listed.items() if one == name or one.endswith("...") and name.startswith(one[:-3])), None)
        assert kind is not None, f"results/checkpoints.md does not list {name}"
        assert kind not in kinds or isinstance(value, kinds[kind]), (name, value)
