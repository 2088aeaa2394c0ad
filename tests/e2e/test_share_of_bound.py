"""Tests the share of the bound: each step says which part of its time the machine's least time for it is, and run.json
says what that least time consists of."""
import json
import re

import pytest

from conftest import steps

PIPELINE = {"kind": "pipeline", "stages": 2}
ASYNC = {"kind": "server", "mode": "async"}


def bounds(run):
    return [start.get("bound") for start in json.loads((run / "run.json").read_text())["starts"]]


def least_seconds(bound, samples):
    return samples / bound["replicas"] * bound["seconds_per_sample"] + bound.get("seconds_per_update", 0)


@pytest.mark.parametrize("ranks, replicas, computing, parallel", [
    (1, 1, 1, {}), (2, 2, 2, {}), (2, 1, 2, PIPELINE), (3, 2, 2, ASYNC)], ids=["1", "2", "pipeline", "servers"])
def test_each_step_has_the_share_that_run_json_explains(workshop, ranks, replicas, computing, parallel):
    run = workshop.train("run", ranks=ranks, stop__steps=4, parallel=parallel)
    (bound,) = bounds(run)
    assert bound["rates"] == "measured at the start" and (bound["ranks"], bound["replicas"]) == (computing, replicas), bound
    assert bound["flops_per_second"] > 1e6
    if computing == 1:
        assert bound["seconds_per_sample"] == pytest.approx(bound["flops_per_sample"] / bound["flops_per_second"])
    for line in steps(run):
        expected = least_seconds(bound, line["global_batch"]) / line["seconds"]
        assert line["share_of_bound"] == pytest.approx(expected) and line["share_of_bound"] > 0, (line, bound)


@pytest.mark.thorough
def test_the_counted_work_does_not_depend_on_the_ranks(workshop):
    alone = workshop.train("alone", stop__steps=1)
    others = [workshop.train("two", ranks=2, stop__steps=1), workshop.train("stages", ranks=2, stop__steps=1, parallel=PIPELINE),
              workshop.train("accumulating", stop__steps=1, batch__micro=4)]
    (counted,) = [bound["flops_per_sample"] for bound in bounds(alone)]
    assert counted > 0 and all(bounds(run)[0]["flops_per_sample"] == counted for run in others)


def test_every_line_of_the_log_says_it(workshop):
    path = workshop.experiment(run__dir=str(workshop.folder / "run"), stop__steps=10)
    result = workshop.run("train", path, ranks=1)
    lines = re.findall(r"^step \d+/10 .*$", result.out, re.MULTILINE)
    assert result.code == 0 and len(lines) == 3, result
    assert all(re.search(r" samples/s  (?:[\d.]+|over 100) % of bound  ETA ", line) for line in lines), lines


def test_each_start_measures_again_and_a_finished_run_does_not(workshop):
    for stop in (2, 4, 4):
        run = workshop.train("run", stop__steps=stop, resume=stop > 2)
    first, second = bounds(run)
    assert first["flops_per_sample"] == second["flops_per_sample"]
    assert all(line["share_of_bound"] > 0 for line in steps(run)) and len(steps(run)) == 4
