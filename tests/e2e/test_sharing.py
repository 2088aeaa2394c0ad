"""Tests ranks that share the update. Sharded state and synchronous servers must give the run of one rank, and each may
continue another one's run."""
import json
import os
import re
import signal
import time

import pytest

from conftest import assert_close, evaluations, last_step, steps

SHARDED = {"shard_state": True}
SERVER = {"kind": "server", "mode": "sync"}
WAYS = [(4, SHARDED), (3, SERVER), (4, {**SERVER, "servers": 2}), (2, {**SERVER, "servers": 2})]


def state_bytes(run_dir):
    memory = json.loads((run_dir / "run.json").read_text())["starts"][-1]["memory_bytes_per_rank"]
    return sum(size for what, size in memory.items() if what.startswith("optimizer state"))


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.thorough
def test_shares_are_the_run_of_one_rank(workshop, optimizer):
    common = dict(optimizer={"kind": optimizer, "weight_decay": 0.01, "clip_norm": 0.5}, batch={"global": 24, "worker": 2})
    one = workshop.train("one", **common)
    for i, (ranks, parallel) in enumerate(WAYS):
        run = workshop.train(f"way{i}", ranks=ranks, parallel=parallel, communication__bucket_mib=0.004, **common)
        assert_close(run, one)
        assert evaluations(run)[-1]["validation_loss"] == pytest.approx(evaluations(one)[-1]["validation_loss"], rel=1e-4)
        servers = parallel.get("servers", 1 if "kind" in parallel else ranks)
        assert state_bytes(run) <= state_bytes(one) / servers + 20000
        assert all((step.get("server_wait_seconds", 0) > 0) == ("kind" in parallel) for step in steps(run))


@pytest.mark.thorough
def test_a_run_goes_on_in_another_way(workshop):
    common = dict(model__layers=3, batch={"global": 24, "worker": 2, "micro": 2}, optimizer__kind="adamw")
    whole = workshop.train("whole", stop__steps=25, **common)
    parts = [(2, {}), (4, SHARDED), (3, SERVER), (2, {"kind": "pipeline", "stages": 2}), (2, SHARDED)]
    for i, (ranks, parallel) in enumerate(parts):
        run = workshop.train("run", ranks=ranks, resume=i > 0, stop__steps=5 * (i + 1), parallel=parallel, **common)
    assert last_step(run) == 25
    assert_close(run, whole)


@pytest.mark.parametrize("victim", [0, 1])  # the server, which also works, and a rank that only works
@pytest.mark.parametrize("parallel", [SERVER, SHARDED], ids=["server", "sharded"])
@pytest.mark.thorough
def test_killing_a_rank_ends_the_job_and_names_it(workshop, parallel, victim):
    run, job = workshop.start_training("run", ranks=2, parallel=parallel, stop__steps=10**9)
    job.wait_for_step(run, 3)
    start = time.monotonic()
    os.kill(job.ranks()[victim], signal.SIGKILL)
    result = job.wait(90)
    assert time.monotonic() - start < 10
    assert result.code != 0 and f"rank {victim}" in result.text, result


def test_plan_says_what_each_rank_keeps(workshop):
    def planned(**changes):
        result = workshop.run("plan", workshop.experiment(**changes), "--ranks", 4, ranks=0)
        assert result.code == 0, result
        values = re.findall(r"^.*optimizer state.* ([\d,]+)$", result.out, re.MULTILINE)
        return [int(value.replace(",", "")) for value in values]

    whole, shared = planned(), planned(parallel=SHARDED)
    assert len(whole) == len(shared) == 2  # Adam's two moments
    # Each rank keeps a quarter of the elements, and at most one piece of 64 more in each bucket and tensor.
    assert all(all_bytes / 4 - 256 <= own <= all_bytes / 4 + 4096 for all_bytes, own in zip(whole, shared))


@pytest.mark.parametrize("ranks, changes, says", [
    (2, dict(parallel={**SERVER, "servers": 3}), "at most as many servers as ranks"),
    (2, dict(parallel=SERVER, optimizer={"kind": "muon"}), "whole matrices"),
    (2, dict(parallel=SHARDED, optimizer={"kind": "muon"}), "whole matrices"),
    (2, dict(parallel={**SERVER, "shard_state": True}), "parallel.shard_state"),
])
def test_what_cannot_be_is_refused_with_the_reason(workshop, ranks, changes, says):
    result = workshop.run("plan", workshop.experiment(**changes), "--ranks", ranks, ranks=0)
    assert result.code != 0 and says in result.err, result
