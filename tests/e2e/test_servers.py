"""Tests parameter servers with ranks of their own: asynchronous updates, and steps with backup workers."""
import csv
import json
import os
import re
import signal

import pytest

from conftest import assert_same_bits, checkpoints, evaluations, last_step, steps

ASYNC = {"kind": "server", "mode": "async"}


def arrivals(run_dir):
    with open(run_dir / "arrivals.csv") as file:
        return [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]


def assert_each_update_once(run_dir):
    rows = arrivals(run_dir)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert sorted(row["update"] for row in rows) == list(range(len(rows)))
    assert all(row["staleness"] == row["step"] - 1 - row["version"] for row in rows)
    return rows


@pytest.mark.fast_cases("lamb")
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lamb"])
def test_one_worker_equals_one_rank_of_the_ring_bit_for_bit(workshop, optimizer):
    common = dict(stop__steps=15, optimizer={"kind": optimizer, "clip_norm": 0.5}, run__threads=1, model__dropout=0.3)
    ring = workshop.train("ring", **common)
    server = workshop.train("server", ranks=2, parallel=ASYNC, **common)
    assert_same_bits(ring, server)
    assert [s["loss"] for s in steps(ring)] == [s["loss"] for s in steps(server)]
    assert [e["validation_loss"] for e in evaluations(ring)] == [e["validation_loss"] for e in evaluations(server)]


@pytest.mark.fast_cases("2")
@pytest.mark.parametrize("servers", [1, 2])
def test_a_replay_has_the_bits_of_the_run(workshop, servers):
    common = dict(ranks=servers + 2, stop__steps=30, evaluate__every_steps=12, run__threads=1)
    run = workshop.train("run", parallel={**ASYNC, "servers": servers}, **common)
    rows = assert_each_update_once(run)
    for meeting in (12, 24):
        assert {row["update"] for row in rows[:meeting]} == set(range(meeting))
    again = workshop.train(
        "again", parallel={**ASYNC, "servers": servers, "replay": str(run / "arrivals.csv")}, **common)
    assert arrivals(again) == rows
    assert_same_bits(run, again)


def test_staleness_is_bounded_and_reported(workshop):
    """Beside a slow worker, the two others make about ten updates in each of its steps, and wait where they may not."""
    common = dict(ranks=4, stop__steps=40, batch={"global": 24, "worker": 4}, learning_rate={"base": 0.01},
                  evaluate__every_epochs=0, test={"slow_rank": 3, "slow_seconds": 0.1})
    free = workshop.train("free", parallel={**ASYNC, "staleness_rate": "inverse"}, **common)
    run = workshop.train("run", parallel={**ASYNC, "max_staleness": 1, "staleness_rate": "inverse"}, **common)
    rows = assert_each_update_once(run)
    most = 2 * (2 * 1 + 1)
    assert max(row["staleness"] for row in assert_each_update_once(free)) > most
    assert 2 <= max(row["staleness"] for row in rows) <= most
    for step, row in zip(steps(run), rows):
        assert (step["worker"], step["staleness"]) == (row["worker"], row["staleness"])
        assert step["lr"] == pytest.approx(0.01 / max(1, row["staleness"]))
        assert step["global_batch"] == 8
    histogram = json.loads((run / "run.json").read_text())["staleness"]
    assert {int(key): value for key, value in histogram.items()} == {
        staleness: sum(row["staleness"] == staleness for row in rows) for staleness in
        {row["staleness"] for row in rows}}


@pytest.mark.thorough
def test_backup_workers_stand_in_for_late_ones(workshop):
    """One of three workers sleeps longer in a step than the whole run takes with the two others."""
    run = workshop.train("run", ranks=4, stop__steps=25, batch={"global": 24, "worker": 4}, evaluate__every_epochs=0,
                         parallel={"kind": "server", "backup_workers": 1}, test={"slow_rank": 3, "slow_seconds": 3})
    assert last_step(run) == 25
    assert all(step["gradients"] == 2 for step in steps(run))
    elapsed = json.loads((run / "run.json").read_text())["starts"][-1]["elapsed_seconds"]
    assert elapsed < 25 * 3 / 2, "the steps waited for the late worker"
    assert steps(run)[-1]["loss"] < steps(run)[0]["loss"]


def test_dropped_gradients_count_over_all_starts(workshop):
    """A resumed run adds those of its own steps to those before its checkpoint."""
    common = dict(ranks=4, batch={"global": 24, "worker": 4}, parallel={"kind": "server", "backup_workers": 1},
                  test={"slow_rank": 3, "slow_seconds": 0.02})
    workshop.train("run", stop__steps=20, **common)
    run = workshop.train("run", stop__steps=40, resume=True, **common)
    record = json.loads((run / "run.json").read_text())
    dropped = [step["dropped"] for step in steps(run)]
    assert sum(dropped[:20]) > 0 and sum(dropped[20:]) > 0, dropped
    assert [start["dropped_gradients"] for start in record["starts"]] == [sum(dropped[:20]), sum(dropped)]
    assert record["dropped_gradients"] == sum(dropped)


@pytest.mark.thorough
def test_a_signal_to_a_worker_drains_the_run_into_a_checkpoint_and_it_goes_on(workshop):
    common = dict(ranks=3, parallel=ASYNC, stop={"epochs": 0, "steps": 1000000}, evaluate__every_epochs=0)
    run, job = workshop.start_training("run", **common)
    job.wait_for_step(run, 20)
    os.kill(job.ranks()[2], signal.SIGUSR1)
    job.wait()
    stopped = int(checkpoints(run)[-1].stem.split("-")[1])
    assert len(assert_each_update_once(run)) == stopped
    common["stop"] = {"epochs": 0, "steps": stopped + 10}
    workshop.train("run", resume=True, **common)
    assert len(assert_each_update_once(run)) == stopped + 10


@pytest.mark.parametrize("victim", [1, 3])  # a server, a worker
@pytest.mark.thorough
def test_a_killed_rank_ends_the_job_and_the_restart_says_what_was_lost(workshop, victim):
    common = dict(ranks=4, parallel={**ASYNC, "servers": 2}, evaluate__every_epochs=0)
    run, job = workshop.start_training("run", stop={"epochs": 0, "steps": 1000000}, checkpoint={"every_epochs": 0, "keep_at": ["30 steps"]}, **common)
    job.wait_for_step(run, 40)
    os.kill(job.ranks()[victim], signal.SIGKILL)
    result = job.wait()
    assert result.code != 0
    # The output names the dead rank and the signal. The launcher, a waiting rank or the watchdog prints it.
    assert re.search(rf"rank {victim}\b.*(exited on signal 9|has died)", result.text), result
    kept = int(checkpoints(run)[-1].stem.split("-")[1])
    lost = last_step(run) - kept
    assert kept == 30 and lost >= 10
    _, job = workshop.start_training("run", resume=True, stop={"epochs": 0, "steps": kept + 20}, **common)
    result = job.wait()
    assert result.code == 0, result
    assert f"{lost} updates since that checkpoint were lost" in result.text, result
    assert len(assert_each_update_once(run)) == kept + 20


@pytest.mark.parametrize("ranks, changes, message", [
    (1, dict(parallel=ASYNC), "1 or more"),
    (4, dict(parallel=ASYNC, batch={"global": 16, "worker": 4}), "a multiple of 3"),
    (3, dict(parallel=ASYNC, optimizer={"kind": "muon"}), "Muon needs whole matrices"),
    (3, dict(parallel={**ASYNC, "backup_workers": 1}), "expected only one of them"),
    (2, dict(parallel={"kind": "server", "backup_workers": 1}), "2 or more"),
    (3, dict(parallel={**ASYNC, "replay": "/nowhere.csv"}), "/nowhere.csv"),
])
def test_what_cannot_be_is_refused_with_the_reason(workshop, ranks, changes, message):
    result = workshop.train_badly("run", ranks=ranks, **changes)
    assert message in result.out + result.err


# --- An order of arrival that does not fit the run ------------------------------------------------------------------------

def write_order(path, updates, *, turns=(0, 1), samples=8, at_once=False):
    """Workers take turns. A worker pulls weights just before its update is applied, or at once after its last update."""
    free, lines = {}, ["step,update,worker,version,staleness,samples"]
    for u in range(updates):
        worker = turns[u % len(turns)]
        version = free.get(worker, 0) if at_once else u
        free[worker] = u + 1
        lines.append(",".join(map(str, (u + 1, u, worker, version, u - version, samples * (u + 1)))))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


# The run has three ranks, which are two workers and a server. Its batch is 16, so that an update has 8 samples.
@pytest.mark.fast_cases()  # each case is a check of its own
@pytest.mark.parametrize("order, changes, message", [
    (dict(updates=10), {}, "ends after step 10, before the run does"),
    (dict(updates=20, turns=(0, 1, 2)), {}, "step 3 is of worker 2, expected a worker from 0 to 1"),
    (dict(updates=20, samples=4), {}, "had applied 4 samples after step 1, expected 8 as in this run (batch.global: 16, 2 workers)"),
    (dict(updates=20, at_once=True), {"evaluate__every_steps": 7}, "stops for an evaluation, a checkpoint, a pause or its end after step 7"),
    (dict(updates=20, at_once=True), {"stop__steps": 19}, "stops for an evaluation, a checkpoint, a pause or its end after step 19"),
    (dict(updates=21, turns=(0, 0, 1), at_once=True), {"parallel": {"max_staleness": 0}}, "step 3 has a staleness of 2, expected at most 1"),
])
def test_an_order_that_the_run_cannot_follow_is_refused_before_it_begins(workshop, order, changes, message):
    path = write_order(workshop.folder / "order.csv", **order)
    common = {"stop__steps": 20, "evaluate__every_epochs": 0, "batch": {"global": 16, "worker": 4}, **changes,
              "parallel": {**ASYNC, "replay": path, **changes.get("parallel", {})}}
    result = workshop.train_badly("run", ranks=3, **common)
    assert message in result.err and f"parallel.replay: {path}" in result.err, result
    assert not (workshop.folder / "run").exists()
    planned = workshop.run("plan", workshop.experiment(run__dir=str(workshop.folder / "run"), **common), "--ranks", "3", ranks=0)
    assert planned.code == 1 and message in planned.err, planned


@pytest.mark.thorough
def test_a_replay_ends_with_its_order_if_time_may_end_the_run(workshop):
    path = write_order(workshop.folder / "order.csv", 12)
    common = dict(ranks=3, batch={"global": 16, "worker": 4}, evaluate__every_epochs=0, parallel={**ASYNC, "replay": path})
    run, job = workshop.start_training("run", stop={"steps": 1000, "seconds": 3000}, **common)
    result = job.wait()
    assert result.code == 0 and "order of arrival ends after step 12: the run stops there" in result.out, result
    assert last_step(run) == 12 and checkpoints(run)[-1].stem == "step-000000012"
    short = workshop.train("short", stop__steps=12, **common)
    assert [s["loss"] for s in steps(run)] == [s["loss"] for s in steps(short)]
    write_order(workshop.folder / "order.csv", 12, at_once=True)
    lines = (workshop.folder / "order.csv").read_text().splitlines()
    lines[-1] = "12,12,1,10,1,96"  # update 11 was still being computed
    (workshop.folder / "order.csv").write_text("\n".join(lines) + "\n")
    result = workshop.train_badly("cut", stop={"steps": 1000, "seconds": 3000}, **common)
    assert "other updates were being computed after its last step 12" in result.err, result


def test_a_damaged_end_of_the_record_does_not_keep_a_run_from_going_on(workshop):
    common = dict(ranks=3, parallel=ASYNC, evaluate__every_epochs=0)
    run = workshop.train("run", stop__steps=20, **common)
    whole = (run / "arrivals.csv").read_text().splitlines()
    (run / "arrivals.csv").write_text("\n".join(whole[:16]) + "\n\0\0\0\n")
    _, job = workshop.start_training("run", resume=True, stop__steps=30, **common)
    result = job.wait()
    assert result.code == 0 and "line 17 is" in result.err and "lacks the updates from step 16 to 20" in result.err, result
    assert [row["step"] for row in arrivals(run)] == [*range(1, 16), *range(21, 31)]
    for last, lost in ((40, "lacks the updates from step 16 to 20"), (50, "lacks the updates from step 1 to 40")):
        _, job = workshop.start_training("run", resume=True, stop__steps=last, **common)
        result = job.wait()
        assert result.code == 0 and lost in result.err, result
        (run / "arrivals.csv").unlink()


@pytest.mark.thorough
def test_a_run_that_may_end_early_needs_no_whole_order(workshop):
    """A target ends the run, so its record is shorter than the plan."""
    common = dict(ranks=3, batch={"global": 16, "worker": 4}, evaluate__every_steps=5,
                  stop={"steps": 1000, "target_metric": "validation_loss", "target_value": 100.0})
    run = workshop.train("run", parallel=ASYNC, **common)
    assert last_step(run) == 5
    again = workshop.train("again", parallel={**ASYNC, "replay": str(run / "arrivals.csv")}, **common)
    assert arrivals(again) == arrivals(run)
    assert_same_bits(run, again)
    # The target was reached, so a resumed start has nothing to do. Without the target, the order has no more updates.
    replayed = dict(resume=True, parallel={**ASYNC, "replay": str(run / "arrivals.csv")})
    workshop.train("again", **replayed, **common)
    assert arrivals(again) == arrivals(run)
    result = workshop.train_badly("again", **replayed, **{**common, "stop": {"steps": 1000}})
    assert "arrivals.csv" in result.err and "step 5" in result.err, result
    # With a target that is not reached, the run ends where the order ends, and so does every resumed start.
    missed = {**common, "stop": {**common["stop"], "target_value": 0.001}}
    for _ in range(2):
        workshop.train("again", **replayed, **missed)
        assert arrivals(again) == arrivals(run)
        assert len(json.loads((again / "run.json").read_text())["starts"]) == 1
