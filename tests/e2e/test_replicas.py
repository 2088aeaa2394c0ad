"""Tests servers that die, with a fault-tolerant MPI: build/ulfm, which .ci/ulfm.sh makes."""
import json
import os
import signal
import subprocess

import pytest

from conftest import ROOT, assert_same_bits, evaluations
from test_images import data_sets, images  # noqa: F401 (fixtures)
from test_norm_statistics import PLAIN, RECOMPUTED, assert_they_are_those_of_the_whole_training_set
from test_servers import ASYNC, arrivals, assert_each_update_once

REPLICATED = {**ASYNC, "servers": 2, "replicas": 2}
RANKS = 6  # servers 0 and 2 have the first range, 1 and 3 the second one


@pytest.fixture(scope="module")
def ulfm():
    """The environment in which tests/mpirun.sh starts jobs with that MPI."""
    made = subprocess.run([ROOT / ".ci" / "ulfm.sh"], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no MPI with fault tolerance: {made.stderr.strip()[-300:]}")
    mpi = ROOT / "build" / "ulfm" / "mpi"
    # tests/mpirun.sh has no option for --with-ft ulfm, so it starts this script, which adds it.
    wrapper = ROOT / "build" / "ulfm" / "mpirun-ft"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {mpi}/bin/mpirun --version\n'
                       f'exec {mpi}/bin/mpirun --with-ft ulfm "$@"\n')
    wrapper.chmod(0o755)
    return {"MPIRUN": str(wrapper), "LD_LIBRARY_PATH": f"{mpi}/lib"}


def pid_of(workshop, rank):
    """Finds a rank's process through the test's folder, because mpirun of Open MPI 5 starts ranks through daemons."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and str(workshop.folder).encode() in open(f"/proc/{entry}/cmdline", "rb").read():
                if f"OMPI_COMM_WORLD_RANK={rank}".encode() in open(f"/proc/{entry}/environ", "rb").read().split(b"\0"):
                    return int(entry)
        except OSError:
            pass
    raise AssertionError(f"there is no rank {rank}")


def kill_at(workshop, run, job, victims, step):
    job.wait_for_step(run, step)
    for victim in victims:
        os.kill(pid_of(workshop, victim), signal.SIGKILL)


@pytest.mark.parametrize("victims, step", [([1], 25), ([2, 1], 67)])
def test_a_run_goes_on_without_servers_and_its_replay_has_the_same_bits(workshop, ulfm, victims, step):
    common = dict(stop={"epochs": 0, "steps": 400}, evaluate__every_steps=20, run__threads=1)
    run, job = workshop.start_training("run", ranks=RANKS, env=ulfm, parallel=REPLICATED, **common)
    kill_at(workshop, run, job, victims, step)
    result = job.wait()
    assert result.code == 0, result
    assert len(assert_each_update_once(run)) == 400
    deaths = json.loads((run / "run.json").read_text())["starts"][-1]["server_deaths"]
    assert sorted((d["rank"], d["successor"]) for d in deaths) == sorted((v, (v + 2) % 4) for v in victims)
    for victim in victims:
        assert f"rank {victim} on" in result.err and "has died" in result.err
    again = workshop.train("again", ranks=4, timeout=60, **common,
                           parallel={**ASYNC, "servers": 2, "replay": str(run / "arrivals.csv")})
    assert arrivals(again) == arrivals(run)
    assert_same_bits(run, again)
    assert [e["validation_loss"] for e in evaluations(run)] == [e["validation_loss"] for e in evaluations(again)]
    workshop.train("run", ranks=RANKS, env=ulfm, resume=True, parallel=REPLICATED, **{**common, "stop": {"epochs": 0, "steps": 410}})
    assert len(assert_each_update_once(run)) == 410


def test_recomputed_statistics_do_not_miss_a_dead_server(images, data_sets, ulfm):  # noqa: F811
    changes = {**PLAIN, "stop": {"epochs": 0, "steps": 40}, "evaluate": {**RECOMPUTED, "every_steps": 20}}
    run, job = images.start_training("run", ranks=RANKS, env=ulfm, parallel=REPLICATED, **changes)
    kill_at(images, run, job, [1], 5)
    result = job.wait()
    assert result.code == 0 and "has died" in result.err, result
    assert_they_are_those_of_the_whole_training_set(run, data_sets)


@pytest.mark.parametrize("victims, message", [([0], "rank 0 has died"), ([5], "worker 1, has died"),
                                              ([1, 3], "the last server of range 1 of 2")])
def test_a_job_ends_without_the_ranks_that_it_needs(workshop, ulfm, victims, message):
    run, job = workshop.start_training("run", ranks=RANKS, env=ulfm, parallel=REPLICATED,
                                       stop={"epochs": 0, "steps": 1000000}, evaluate__every_epochs=0)
    kill_at(workshop, run, job, victims, 30)
    result = job.wait()
    assert result.code != 0
    assert message in result.err
    recorded = json.loads((run / "run.json").read_text())["starts"][-1].get("server_deaths", [])
    assert len(recorded) < len(victims)  # the run went on without these


def test_an_mpi_without_fault_tolerance_is_refused_with_what_to_do(workshop):
    result = workshop.train_badly("run", ranks=5, parallel=REPLICATED)
    assert "has no MPIX_Comm" in result.err and "--with-ft ulfm" in result.err


def test_replicas_of_synchronous_servers_are_refused(workshop):
    result = workshop.train_badly("run", ranks=5, parallel={"kind": "server", "backup_workers": 1, "replicas": 2})
    assert "expected parallel.mode: async" in result.err
