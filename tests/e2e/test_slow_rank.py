"""Tests that the metrics say where the time went, with one rank that sleeps in each step (test.slow_rank): who waits for
whom in a pipeline and with parameter servers, and that the parts of a step add up to it."""
import json
import re

import pytest

from conftest import ROOT, evaluations, steps

SLEEP = 0.1
LEAST = 0.7 * SLEEP  # a rank that waits computes while the other one begins to sleep; its first step is slow in any case
STEPS = 12
RUN = dict(stop__steps=STEPS, evaluate__every_epochs=0, data__validation="")
ASYNC = {"kind": "server", "mode": "async"}
PARTS = ["input", "forward", "backward", "bubble", "boundary", "communication", "update"]


def slow(rank):
    return {"slow_rank": rank, "slow_seconds": SLEEP}


def start_of(run):
    return json.loads((run / "run.json").read_text())["starts"][-1]


def seconds_of_ranks(run, part):
    """Mean seconds of a step, for each rank."""
    return [rank.get(part, 0) / STEPS for rank in start_of(run)["rank_seconds"]]


def mean(run, field):
    lines = steps(run)[1:]
    return sum(line[field] for line in lines) / len(lines)


def assert_parts_add_up(run):
    lines = steps(run)
    sums = [sum(line.get(f"{part}_seconds", 0) for part in PARTS) for line in lines]
    assert all(total <= line["seconds"] for total, line in zip(sums, lines)), (sums, lines)
    # One step is enough, because other work on this machine may stop a rank anywhere.
    assert max(total / line["seconds"] for total, line in zip(sums, lines)) >= 0.8, (sums, lines)


@pytest.mark.thorough
def test_a_stage_waits_for_the_slow_one_and_its_bubble_says_so(workshop):
    pipeline = {"kind": "pipeline", "stages": 2}
    run = workshop.train("run", ranks=4, parallel=pipeline, batch__micro=4, test=slow(3), **RUN)
    bubbles, boundaries = seconds_of_ranks(run, "bubble"), seconds_of_ranks(run, "boundary")
    assert bubbles[2] >= LEAST, bubbles  # the first stage of the replica whose last stage is slow
    assert bubbles[3] < LEAST, bubbles
    assert all(seconds > 0 for seconds in boundaries), boundaries
    run = workshop.train("first", ranks=2, parallel=pipeline, batch__micro=4, test=slow(1), **RUN)
    assert mean(run, "bubble_seconds") >= LEAST, steps(run)
    for line in steps(run):
        assert line["boundary_seconds"] > 0 and line["sent_bytes"] > 0, line
    assert_parts_add_up(run)
    assert seconds_of_ranks(run, "forward")[1] >= SLEEP


def test_ranks_wait_for_the_slow_one_of_a_ring(workshop):
    run = workshop.train("run", ranks=2, test=slow(1), **RUN)
    assert mean(run, "communication_seconds") >= LEAST, steps(run)
    assert_parts_add_up(run)
    assert not any("bubble_seconds" in line or "server_wait_seconds" in line for line in steps(run))


@pytest.mark.thorough
def test_workers_wait_for_a_slow_synchronous_server(workshop):
    server = {"kind": "server", "mode": "sync"}
    run = workshop.train("server", ranks=2, parallel=server, test=slow(0), **RUN)
    waits = seconds_of_ranks(run, "server")
    assert waits[1] >= LEAST, waits
    # A server that computes waits for gradients, too. It does so in the first step, where other work on this machine may
    # delay it by as much as SLEEP.
    run = workshop.train("worker", ranks=2, parallel=server, test={"slow_rank": 1, "slow_seconds": 5 * SLEEP},
                         **{**RUN, "stop__steps": 5})
    assert mean(run, "server_wait_seconds") >= LEAST, steps(run)
    assert all(line["server_wait_seconds"] <= line["communication_seconds"] for line in steps(run))
    assert steps(run)[0]["server_wait_seconds"] >= LEAST, "the first sum does not wait inside the backward pass"
    assert_parts_add_up(run)


@pytest.mark.parametrize("parallel", [ASYNC, {"kind": "server", "backup_workers": 1}], ids=["async", "backup"])
def test_workers_wait_for_a_slow_server_of_its_own(workshop, parallel):
    """The server sleeps in each update, and all workers have to wait for it."""
    run = workshop.train("run", ranks=3, parallel=parallel, batch={"global": 24, "worker": 4}, test=slow(0), **RUN)
    lines = steps(run)
    for line in lines:
        assert line["update_seconds"] >= SLEEP, line
    assert sum(line["server_wait_seconds"] for line in lines) >= (STEPS - 3) * LEAST, lines
    # Each of two workers waits for about the updates that are not its own, or for all of them.
    assert min(seconds_of_ranks(run, "server")[1:]) >= 0.4 * SLEEP, start_of(run)
    assert seconds_of_ranks(run, "update")[0] >= SLEEP
    assert seconds_of_ranks(run, "server")[0] == 0
    assert_parts_add_up(run)


def test_a_slow_second_server_holds_up_the_workers(workshop):
    run = workshop.train("run", ranks=4, parallel={**ASYNC, "servers": 2}, batch={"global": 24, "worker": 4},
                         test=slow(1), **RUN)
    assert seconds_of_ranks(run, "update")[1] >= SLEEP, start_of(run)
    assert min(seconds_of_ranks(run, "server")[2:]) >= 0.4 * SLEEP, start_of(run)


def test_a_server_waits_for_its_slow_worker(workshop):
    run = workshop.train("run", ranks=2, parallel=ASYNC, test=slow(1), **RUN)
    for line in steps(run):
        assert line["worker_forward_seconds"] >= SLEEP, line
    assert sum(line["worker_wait_seconds"] for line in steps(run)) >= (STEPS - 1) * LEAST
    assert seconds_of_ranks(run, "workers")[0] >= LEAST * (STEPS - 1) / STEPS, start_of(run)
    assert_parts_add_up(run)


@pytest.mark.thorough
def test_the_bytes_of_a_step_are_known_in_every_way(workshop):
    """Each of N ranks in a ring gives 2 (N - 1) / N times the gradients to others. With two ranks, this is each
    gradient once. Ranks of a node read gradients in place."""
    parameters = 4 * start_of(workshop.train("one", **RUN))["parameters"]
    common = dict(ranks=2, **RUN)
    ring = workshop.train("ring", **common)
    for line in steps(ring):
        assert parameters <= line["shared_bytes"] <= 1.1 * parameters + 1000, line
        assert 0 < line["sent_bytes"] < 1000, line  # the step's counters
    for name, parallel in ("server", {"kind": "server"}), ("sharded", {"shard_state": True}):
        run = workshop.train(name, parallel=parallel, **common)
        for rank in start_of(run)["rank_bytes"]:
            assert STEPS * parameters <= rank["sent"] + rank["shared"] <= STEPS * (1.3 * parameters + 10000), (name, rank)
    run = workshop.train("async", parallel=ASYNC, **common)
    for rank in start_of(run)["rank_bytes"]:
        assert STEPS * parameters <= rank["sent"] <= (STEPS + 3) * (1.1 * parameters + 2000), rank
        assert rank["shared"] == 0
    assert "rank_bytes" not in start_of(workshop.folder / "one")


@pytest.mark.thorough
def test_every_field_of_an_update_is_documented(workshop):
    page = (ROOT / "results" / "README.md").read_text()
    section = page[page.index("## metrics.jsonl"):page.index("## study.json")]
    documented = set(re.findall(r"`(\w+)`", section))
    for name, ranks, more in [("ring", 2, {}), ("pipeline", 2, {"parallel": {"kind": "pipeline", "stages": 2}}),
                              ("sync", 2, {"parallel": {"kind": "server"}}), ("async", 2, {"parallel": ASYNC}),
                              ("backup", 3, {"parallel": {"kind": "server", "backup_workers": 1}}),
                              ("noise", 1, {"noise": {"every_steps": 1, "small_batch": 8, "groups": "kind"},
                                            "optimizer": {"kind": "lamb"}}),
                              ("adascale", 1, {"optimizer": {"kind": "sgd", "adascale": True}, "noise": {"small_batch": 8},
                                               "learning_rate": {"base": 0.1, "base_batch": 8}})]:
        run = workshop.train(name, ranks=ranks, stop__steps=2, evaluate__every_steps=2, **more)
        for line in steps(run) + evaluations(run):
            assert set(line) <= documented, (name, set(line) - documented)
