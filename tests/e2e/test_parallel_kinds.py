"""Tests the ways of training in parallel together. A run continues from one way with another, and ends when any of its
ranks is killed. `plan` refuses combinations that are impossible, and says why."""
import csv
import os
import re
import shutil
import signal
import time

import pytest

from conftest import arrays, assert_close, assert_same_bits, checkpoints, evaluations, last_step, merged, steps
from test_equivalence import has
from test_images import RESNET, data_sets, images  # noqa: F401 (fixtures)

ASYNC = {"kind": "server", "mode": "async"}
BACKUP = {"kind": "server", "backup_workers": 1}
PIPELINE = {"kind": "pipeline", "stages": 2}
SGD = {"optimizer": {"kind": "sgd"}, "learning_rate": {"base": 0.1, "scaling": "none"}}


def arrivals(run_dir):
    with open(run_dir / "arrivals.csv") as file:
        return [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]


# --- Asynchronous servers -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.skipif(
    not has("avx512_bf16"), reason="this processor has no AVX-512 BF16"))])
@pytest.mark.thorough
def test_a_resnet_with_one_worker_is_the_ring_of_one_rank_bit_for_bit(images, precision):
    """Trains with batch norm's running statistics, augmentation and evaluations."""
    common = {**RESNET, "precision": precision}
    ring = images.train("ring", **common)
    server = images.train("server", ranks=3, parallel={**ASYNC, "servers": 2}, **common)
    assert_same_bits(ring, server)
    assert evaluations(ring)[-1]["validation_loss"] == evaluations(server)[-1]["validation_loss"]


def test_a_text_model_in_bf16_with_one_worker_is_the_ring_bit_for_bit(workshop):
    if not has("avx512_bf16"):
        pytest.skip("this processor has no AVX-512 BF16")
    ring = workshop.train("ring", precision="bf16")
    assert_same_bits(ring, workshop.train("server", ranks=2, parallel=ASYNC, precision="bf16"))


@pytest.mark.thorough
def test_a_resnets_replay_has_the_bits_of_the_run(images):
    run = images.train("run", ranks=3, parallel=ASYNC, **RESNET)
    again = images.train("again", ranks=3, parallel={**ASYNC, "replay": str(run / "arrivals.csv")}, **RESNET)
    assert arrivals(again) == arrivals(run)
    assert_same_bits(run, again)


def test_workers_that_take_turns_are_one_rank_with_their_share_of_the_batch(workshop):
    """When workers take turns, no gradient is stale. The run is then that of a ring whose batch is one worker's share.
    Update u has the samples of the ring's step u."""
    ring = workshop.train("ring", batch={"global": 16, "worker": 8}, **SGD)
    turns = workshop.folder / "turns.csv"
    turns.write_text("step,update,worker,version,staleness\n" + "".join(
        f"{u + 1},{u},{u % 2},{u},0\n" for u in range(20)))
    run = workshop.train("run", ranks=3, parallel={**ASYNC, "replay": str(turns)}, batch={"global": 32, "worker": 8}, **SGD)
    assert_same_bits(ring, run)


def test_every_sample_is_applied_once_an_epoch(workshop):
    """In any order of arrival, each sample of an epoch is applied once, before the first one of the next epoch. Fast
    workers take over updates of a slow worker, with its samples. A replay has the bits of the run."""
    common = dict(ranks=4, batch={"global": 24, "worker": 4}, stop={"steps": 0, "epochs": 2}, **SGD)
    run = workshop.train("run", parallel=ASYNC, test={"slow_rank": 3, "slow_seconds": 0.02}, **common)
    assert [row["step"] for row in arrivals(run)] == list(range(1, last_step(run) + 1))
    updates = [row["update"] for row in arrivals(run)]
    epoch = evaluations(run)[0]["step"]
    assert last_step(run) == 2 * epoch
    assert sorted(updates[:epoch]) == list(range(epoch))
    assert sorted(updates[epoch:]) == list(range(epoch, 2 * epoch))
    assert steps(run)[-1]["samples"] == 8 * last_step(run)
    assert_same_bits(run, workshop.train("again", parallel={**ASYNC, "replay": str(run / "arrivals.csv")}, **common))


# --- From one to another ----------------------------------------------------------------------------------------------------

def go_on(workshop, parts, every, **common):
    """Trains one run in parts. Each part has its own number of ranks and its own way of training in parallel."""
    for i, (ranks, parallel) in enumerate(parts):
        run = workshop.train("run", ranks=ranks, resume=i > 0, stop__steps=every * (i + 1), parallel=parallel, **common)
    return run


@pytest.mark.thorough
def test_a_run_goes_on_from_the_ring_to_servers_and_back(workshop):
    """One asynchronous worker is one rank, so the whole run has the bits of the ring's."""
    common = dict(optimizer={"kind": "adam", "clip_norm": 0.5}, model__layers=3)
    ring = workshop.train("ring", stop__steps=24, **common)
    run = go_on(workshop, [(1, {"kind": "ring"}), (2, ASYNC), (3, {**ASYNC, "servers": 2}), (1, {"kind": "ring"})], 6, **common)
    assert_same_bits(ring, run)


@pytest.mark.thorough
def test_a_run_goes_on_from_a_pipeline_to_servers_and_back(workshop):
    common = dict(optimizer={"kind": "adam", "clip_norm": 0.5}, model__layers=3, batch__micro=4)
    ring = workshop.train("ring", stop__steps=24, **common)
    run = go_on(workshop, [(2, PIPELINE), (2, ASYNC), (4, {**PIPELINE, "schedule": "gpipe"}), (3, BACKUP)], 6, **common)
    assert last_step(run) == 24
    assert [s["loss"] for s in steps(run)][:18] == pytest.approx([s["loss"] for s in steps(ring)][:18], rel=1e-4)
    # A step with a backup worker takes half of the batch.
    assert [s["gradients"] for s in steps(run)[18:]] == [1] * 6
    assert steps(run)[-1]["loss"] == pytest.approx(steps(ring)[-1]["loss"], rel=0.2)


@pytest.mark.thorough
def test_a_run_goes_on_from_backup_servers_to_the_ring(workshop):
    """What follows is the ring's run from that checkpoint, with the optimizer's state of both servers."""
    common = dict(optimizer={"kind": "adam", "clip_norm": 0.5}, batch={"global": 24, "worker": 4})
    run = go_on(workshop, [(4, {**BACKUP, "servers": 2}), (2, {"kind": "ring"})], 8, **common)
    assert [s["step"] for s in steps(run)] == [*range(1, 17)]
    shutil.copytree(run, workshop.folder / "again")
    again = workshop.folder / "again"
    for checkpoint in checkpoints(again)[1:]:
        checkpoint.unlink()
    assert [c.name for c in checkpoints(again)] == ["step-000000008.h5"]
    squares = [values for name, values in arrays(checkpoints(again)[0]).items() if "exp_avg_sq" in name]
    assert squares and all((values > 0).mean() > 0.5 for values in squares), "each server's part of Adam's state is there"
    again = workshop.train("again", ranks=1, resume=True, stop__steps=16, **common)
    assert [s["loss"] for s in steps(run)][8:] == pytest.approx([s["loss"] for s in steps(again)][8:], rel=1e-4)
    assert steps(run)[-1]["loss"] < steps(run)[0]["loss"]


@pytest.mark.thorough
def test_a_run_goes_on_from_sharded_state_to_asynchronous_servers(workshop):
    """One asynchronous worker is one rank, so what follows has the bits of the ring's run from that checkpoint."""
    common = dict(optimizer={"kind": "adam", "clip_norm": 0.5}, batch={"global": 24, "worker": 4})
    whole = workshop.train("whole", stop__steps=16, **common)
    run = go_on(workshop, [(3, {"shard_state": True}), (3, {**ASYNC, "servers": 2})], 8, **common)
    shutil.copytree(run, workshop.folder / "again")
    for checkpoint in checkpoints(workshop.folder / "again")[1:]:
        checkpoint.unlink()
    again = workshop.train("again", ranks=1, resume=True, stop__steps=16, **common)
    assert_same_bits(run, again)
    assert [s["loss"] for s in steps(run)] == pytest.approx([s["loss"] for s in steps(whole)], rel=1e-4)


@pytest.mark.thorough
def test_a_pipeline_of_a_resnet_goes_on_with_servers(images):
    common = {**RESNET, "batch": {"global": 16, "worker": 4, "micro": 4}, "learning_rate": {"base": 0.005}}
    ring = images.train("ring", **merged(common, {"stop.steps": 6}))
    common.pop("stop")
    run = go_on(images, [(2, PIPELINE), (2, ASYNC), (2, {"kind": "ring"})], 2, **common)
    assert_close(run, ring, loss=2e-3)


# --- A rank dies ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("parallel, victim", [
    ({**ASYNC, "servers": 2}, 0),  # the server that decides
    ({**ASYNC, "servers": 2, "max_staleness": 0}, 3),
    (BACKUP, 0),
    (BACKUP, 3),  # a step does not need it
    ({**PIPELINE, "schedule": "gpipe"}, 0),
    ({**PIPELINE, "schedule": "1f1b"}, 3),  # the last stage of the second replica
])
@pytest.mark.thorough
def test_a_killed_rank_ends_the_job_and_the_run_goes_on_from_its_checkpoint(workshop, parallel, victim):
    common = dict(ranks=4, parallel=parallel, batch={"global": 24, "worker": 4, "micro": 4}, checkpoint__every_steps=5,
                  evaluate__every_epochs=0)
    run, job = workshop.start_training("run", stop={"epochs": 0, "steps": 10**6}, **common)
    job.wait_for_step(run, 12)
    start = time.monotonic()
    os.kill(job.ranks()[victim], signal.SIGKILL)
    result = job.wait(90)
    assert time.monotonic() - start < 10, result
    assert result.code not in (0, 85) and re.search(rf"\brank {victim}\b", result.text), result
    kept = int(checkpoints(run)[-1].stem.split("-")[1])
    workshop.train("run", resume=True, stop={"epochs": 0, "steps": kept + 5}, **common)
    assert [s["step"] for s in steps(run)] == [*range(1, kept + 6)]


# --- What cannot be ---------------------------------------------------------------------------------------------------------

ADASCALE = {"optimizer": {"kind": "sgd", "adascale": True}, "learning_rate": {"base": 0.1, "base_batch": 8},
            "noise": {"small_batch": 8}}
TRUST = {"optimizer": {"kind": "lamb", "record_trust_every_steps": 1}}
OF_SERVERS = [
    ({"precision": "fp16"}, "precision is fp16", "a loss scale could change between the time when a worker gets weights and its update"),
    ({"data.order": "streams", "data.sequence": 8}, "data.order is streams", "hidden state of streams"),
    ({"optimizer": {"kind": "muon"}}, "optimizer.kind is muon", "whole matrices"),
    (ADASCALE, "optimizer.adascale is true", "do not see the gradients of small batches"),
    ({"batch": {"follow_noise": 1000}, "noise": {"small_batch": 8}}, "batch.follow_noise is 1000", "noise scale"),
    ({"noise": {"small_batch": 8}}, "noise.small_batch is 8", "noise scale"),
    ({"noise": {"groups": "kind"}}, "noise.groups is kind", "noise scale"),
    ({"parallel": {"servers": 2}, **TRUST}, "record_trust_every_steps is 1", "the ratios of its part only"),
    ({"communication": {"algorithm": "ring"}}, "communication.algorithm is ring", "sent to the servers"),
    ({"batch": {"global": 16, "worker": 4}}, "batch.global is 16", "3 workers share it"),
]
OF_STAGES = [
    ({"noise": {"groups": "kind"}}, "noise.groups is kind", "the tensors of its own layers only"),
    (ADASCALE, "optimizer.adascale is true", "over all stages"),
    ({"optimizer": {"kind": "muon"}}, "optimizer.kind is muon", "ranks with the whole model"),
    (TRUST, "record_trust_every_steps is 1", "its own layers only"),
    ({"parallel": {"cuts": ["lstm.l7"]}}, "lstm.l7 is not a layer", "lstm.l1, linear"),
    ({"parallel": {"cuts": ["lstm.l1", "linear"]}}, "names 2 layers", "parallel.stages 2 need 1"),
    ({"parallel": {"stages": 4}}, "4", "3 layers"),
    ({"parallel": {"stages": 3}}, "parallel.stages 3", "does not divide the 4 ranks"),
    ({"parallel": {"servers": 2}}, "parallel.servers is 2", "only with server"),
    ({"parallel": {"mode": "async"}}, "parallel.mode is async", "only with server"),
    ({"parallel": {"shard_state": True}}, "parallel.shard_state is true", "only with ring"),
]
OF_RANKS = [
    (1, ASYNC, "leaves 0 of 1 ranks as workers", "start 2 ranks or more"),
    (2, {**ASYNC, "servers": 2}, "leaves 0 of 2 ranks as workers", "start 3 ranks or more"),
    (2, BACKUP, "leaves 1 of 2 ranks as workers", "start 3 ranks or more"),
    (3, {**ASYNC, "backup_workers": 1}, "parallel.backup_workers is 1", "waits for nobody"),
    (3, {**BACKUP, "max_staleness": 2}, "parallel.max_staleness is 2", "only with async"),
    (3, {**BACKUP, "staleness_rate": "inverse"}, "parallel.staleness_rate is inverse", "only with async"),
    (3, {"servers": 2}, "parallel.servers is 2 but parallel.kind is ring", "only with server"),
    (3, {"schedule": "gpipe"}, "parallel.schedule is gpipe but parallel.kind is ring", "only with pipeline"),
    (3, {"cuts": ["lstm.l1"]}, "parallel.cuts", "only with pipeline"),
    (3, {**ASYNC, "shard_state": True}, "parallel.shard_state is true", "only with ring"),
    (3, {"kind": "tree"}, "parallel.kind is 'tree'", "ring, server, pipeline"),
]


def test_plan_refuses_what_cannot_be_with_the_reason(workshop):
    cases = [(4, way, changes, parts) for way in (ASYNC, BACKUP) for changes, *parts in OF_SERVERS]
    changing = {"batch": {"schedule": [[0.1, 1.3333333333333333]]}}
    cases += [(4, ASYNC, changing, ["batch.schedule has a batch of 32", "3 workers share it, expected a multiple of 3"])]
    cases += [(4, PIPELINE, changes, parts) for changes, *parts in OF_STAGES]
    cases += [(ranks, way, {}, parts) for ranks, way, *parts in OF_RANKS]
    for ranks, way, changes, parts in cases:
        changes = {**changes, "parallel": {**way, **changes.get("parallel", {})}}
        if "batch" in changes:
            changes["batch"] = {"global": 24, "worker": 8, **changes["batch"]}
        result = workshop.run("plan", workshop.experiment(**changes), "--ranks", ranks, ranks=0)
        assert result.code not in (0, None) and all(part in result.err for part in parts), (ranks, changes, result)
        assert result.err.count("error") == 1, (ranks, changes, result)


def test_plan_refuses_an_algorithm_without_effect(workshop):
    for parallel, algorithm, told in [
        ({"kind": "server"}, "halving", "sent to the servers"),
        ({"kind": "server", "servers": 2}, "hierarchical", "sent to the servers"),
        ({"shard_state": True}, "mpi", "expected auto or ring"),
        ({"shard_state": True}, "halving", "expected auto or ring"),
        ({"shard_state": True}, "tree", "expected auto or ring"),
        ({"shard_state": True}, "ring", None),
        ({"kind": "server"}, "auto", None),
        (PIPELINE, "halving", None),
    ]:
        experiment = workshop.experiment(parallel=parallel, communication={"algorithm": algorithm})
        result = workshop.run("plan", experiment, "--ranks", 2, ranks=0)
        assert (result.code == 0) == (told is None), (parallel, algorithm, result)
        assert told is None or f"communication.algorithm is {algorithm}" in result.err and told in result.err, result


def test_plan_says_what_each_rank_keeps(workshop):
    def planned(ranks, **parallel):
        result = workshop.run("plan", workshop.experiment(parallel=parallel, batch={"global": 24, "worker": 2}), "--ranks",
                              ranks, ranks=0)
        assert result.code == 0, result
        rows = re.findall(r"^ *(ranks? \d+(?: to \d+)?)  +(.*of optimizer state.*)$", result.out, re.MULTILINE)
        sizes = {}
        for who, text in rows:
            value, unit = re.search(r"([\d.]+) (B|KiB|MiB) of optimizer state", text).groups()
            sizes[who] = float(value) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
        return result.out, dict(rows), sizes

    text, rows, sizes = planned(4, kind="server", servers=2)
    assert "ranks 0 to 1 hold and update the" in text and "all 4 ranks compute" in text
    assert [*rows] == ["rank 0", "rank 1", "ranks 2 to 3"], rows
    assert "serves" in rows["rank 0"] and ", 0 to" in rows["rank 0"] and "updates nothing" in rows["ranks 2 to 3"], rows
    assert sizes["rank 0"] > 0 and sizes["ranks 2 to 3"] == 0
    whole = sizes["rank 0"] + sizes["rank 1"]
    text, rows, sizes = planned(4, shard_state=True)
    assert "each of 4 ranks updates a part of the" in text
    assert 0 < sizes["rank 0"] < whole / 3, rows
    text, rows, sizes = planned(4, kind="server", servers=1, backup_workers=1)
    assert [*rows] == ["rank 0", "ranks 1 to 3"] and "computes" in rows["ranks 1 to 3"], rows
    text, rows, sizes = planned(1)
    assert not rows


def test_plan_refuses_what_batch_norm_cannot_have_with_the_reason(images):
    for ranks, changes, says in [
        (2, {"parallel": PIPELINE, "evaluate": {"norm_statistics": "recomputed", "norm_samples": 16}}, "the whole model"),
        (2, {"parallel": PIPELINE, "batch": {"global": 16, "worker": 4, "micro": 2}}, "splits a virtual worker of 4 samples"),
        (8, {"parallel": PIPELINE, "batch": {"global": 4, "worker": 4}}, "a replica computes whole workers"),
        (3, {"parallel": ASYNC, "batch": {"global": 16, "worker": 16}}, "batch.worker 16 does not divide batch.global 8"),
        (6, {}, "nor can a power of two of ranks share each"),
    ]:
        result = images.run("plan", images.experiment(**{**RESNET, **changes}), "--ranks", ranks, ranks=0)
        assert result.code not in (0, None) and says in result.err, (ranks, changes, result)
