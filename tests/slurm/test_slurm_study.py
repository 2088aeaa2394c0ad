"""Tests study.sbatch on a real Slurm: steps side by side, an array, signals, a trial that is killed, and a node that fails."""
import json
import os
import signal

import pytest

from cluster import SCRIPTS, Job, e2e, until
from conftest import together

EXPERIMENT = {**e2e.EXPERIMENT, "stop": {"steps": 100}, "checkpoint": {"every_epochs": 0}}
# A trial takes seconds on any processor, so that a test can act on a job before the trial's end.
SLOW = {"test": {"slow_rank": 0, "slow_seconds": 0.05}}


def write_study(shop, text, **changes):
    data = {"data": {"train": f"{shop.data}-train", "validation": f"{shop.data}-validation"}}
    (shop.folder / "experiment.yaml").write_text(e2e.yaml.safe_dump({**EXPERIMENT, **data, **changes}))
    path = shop.folder / "study.yaml"
    path.write_text(f"name: small\nexperiment: experiment.yaml\n{text}")
    return path


def trials(shop):
    listed = json.loads((shop.folder / "results" / "small" / "study.json").read_text())["trials"]
    return {trial["name"]: trial for trial in listed}


def states(shop):
    return [trial["state"] for trial in trials(shop).values()]


@together
def test_a_study_that_is_signalled_is_queued_again_and_every_trial_goes_on(shop, whole):
    path = write_study(shop, "ranks_per_trial: 2\nrepeat: 4\n", **SLOW)
    job = shop.submit(SCRIPTS / "study.sbatch", path, options=["--nodes=2"])
    first = shop.folder / "results" / "small" / "ranks-2"
    job.wait_for_step(first, 3)
    job.ask_for_checkpoint()
    job.wait()
    assert job.restarts() == 1 and "every trial that was running has a checkpoint" in job.output(), job.told()
    assert states(shop) == ["finished"] * 4, job.told()
    assert e2e.steps(first)[-1]["step"] == 100 == len(e2e.steps(first)), job.told()
    assert "resuming after step" in (first / "log.txt").read_text()


@together
def test_the_tasks_of_an_array_share_a_study(shop, whole):
    path = write_study(shop, "repeat: 6\n")
    array = shop.submit(SCRIPTS / "study.sbatch", path, options=["--nodes=1", "--ntasks-per-node=1", "--array=3-5"])
    for number in 3, 4, 5:
        Job(shop.cluster, f"{array.id}_{number}", shop.folder).wait()
    assert states(shop) == ["finished"] * 6 and all(t["starts"] == 1 for t in trials(shop).values()), array.told()
    assert len({t["job"] for t in trials(shop).values()}) == 3


@together
def test_trials_are_steps_side_by_side_with_cpus_of_their_own(shop, whole):
    path = write_study(shop, "ranks_per_trial: [1, 3]\nrepeat: 2\n", batch={"global": 48, "worker": 8}, **SLOW)
    job = shop.submit(SCRIPTS / "study.sbatch", path, options=["--nodes=2", "--ntasks-per-node=4"])
    runs = [shop.folder / "results" / "small" / name for name in ("unchanged", "seed-2", "ranks-3", "ranks-3_seed-2")]
    for run in runs:
        job.wait_for_step(run, 3)
    assert states(shop) == ["running"] * 4, job.told()
    steps = shop.cluster.run("squeue", "--steps", "--noheader", "--job", job.number()).stdout.splitlines()
    assert len(steps) >= 4, steps
    if shop.cluster.has_namespaces:
        hosts = [json.loads((run / "run.json").read_text())["starts"][-1]["hosts"] for run in runs]
        assert [len(h) for h in hosts] == [1] * 4 and len({name for h in hosts for name in h}) == 2, hosts
    job.wait()
    assert states(shop) == ["finished"] * 4, job.told()
    lines = [next(line for line in (run / "log.txt").read_text().splitlines() if "CPUs" in line) for run in runs]
    assert len(set(lines)) == 4, "two trials have the same CPUs of a node"


@together
def test_a_trial_that_is_killed_ends_alone_and_is_tried_again(shop, whole):
    path = write_study(shop, "ranks_per_trial: 2\nrepeat: 3\n", **SLOW)
    job = shop.submit(SCRIPTS / "study.sbatch", path, options=["--nodes=1", "--ntasks-per-node=4"])
    victim = shop.folder / "results" / "small" / "ranks-2"
    job.wait_for_step(victim, 3)
    os.kill(json.loads((victim / "run.json").read_text())["starts"][-1]["process_id"], signal.SIGKILL)
    job.wait("FAILED")
    assert job.restarts() == 0 and "ended with exit code 1" in job.output(), job.told()
    listed = trials(shop)
    assert listed.pop("ranks-2")["state"] == "failed" and [t["state"] for t in listed.values()] == ["finished"] * 2, job.told()
    other = shop.submit(SCRIPTS / "study.sbatch", path, "--resume", options=["--nodes=1"]).wait()
    assert states(shop) == ["finished"] * 3 and trials(shop)["ranks-2"]["starts"] == 2, other.told()
    assert all(t["starts"] == 1 for name, t in trials(shop).items() if name != "ranks-2"), other.told()


@together
def test_a_bad_study_is_told_before_anything_starts(shop, whole):
    job = shop.submit(SCRIPTS / "study.sbatch", write_study(shop, "vary: {batch.globl: [1]}\n"), options=["--nodes=1"])
    assert "did you mean" in job.wait("FAILED").output() and job.restarts() == 0, job.told()
    gaps = shop.submit(SCRIPTS / "study.sbatch", write_study(shop, "repeat: 2\n"),
                       options=["--nodes=1", "--array=1,2,7"])
    assert "the array has gaps" in Job(shop.cluster, f"{gaps.id}_7", shop.folder).wait("FAILED").output()
    assert not (shop.folder / "results").exists()


def test_a_study_whose_node_fails_is_queued_again_and_loses_nothing(alone, shop, whole):
    if not shop.cluster.has_namespaces:
        pytest.skip("the ranks of a virtual node cannot be told from the others")
    path = write_study(shop, "ranks_per_trial: 2\nrepeat: 2\n", **SLOW)
    job = shop.submit(SCRIPTS / "study.sbatch", path, options=["--nodes=2"])
    runs = [shop.folder / "results" / "small" / name for name in ("ranks-2", "ranks-2_seed-2")]
    for run in runs:
        job.wait_for_step(run, 3)
    daemon, victim = shop.cluster.daemon("node2"), shop.cluster.rank("node2")
    os.kill(daemon, signal.SIGSTOP)  # Slurm checks its nodes only twice a minute
    try:
        os.kill(victim, signal.SIGKILL)
        until(lambda: "not every node of the job answers" in job.output(), job.told)
    finally:
        os.kill(daemon, signal.SIGCONT)
        shop.cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    job.wait_for_restart()
    job.wait()
    assert states(shop) == ["finished"] * 2 and sorted(t["starts"] for t in trials(shop).values()) == [1, 2], job.told()
