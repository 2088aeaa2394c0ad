"""Tests a run under a batch system: the job's name, the resources of its ranks, and how it ends. Slurm is only a set of
environment variables here. tests/slurm uses a real one."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import (HANG_SECONDS, LAUNCHER, PROGRAM, Job, assert_same_bits, checkpoints, evaluations, last_step, make_names, steps)

ENDLESS = 10**9


def starts(run_dir):
    return json.loads((run_dir / "run.json").read_text())["starts"]


def test_the_record_and_the_first_lines_name_job_array_restart_nodes_and_launcher(workshop):
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_ARRAY_JOB_ID": "4709", "SLURM_ARRAY_TASK_ID": "3",
             "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    run, job = workshop.start_training("run", ranks=2, stop__steps=1, env=slurm)
    result = job.wait()
    assert "Slurm job 4709_3, restart 2, on node[1-2], started by mpirun" in result.out, result
    assert starts(run)[0]["slurm"] == slurm
    assert starts(run)[0]["launcher"] == "mpirun"


def test_srun_without_pmix_is_one_sentence_with_advice_and_not_many_single_ranks(workshop):
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    results = {}
    for process in ("0", "2"):
        run, job = workshop.start_training("run", ranks=0, stop__steps=1, env={**step, "SLURM_PROCID": process})
        results[process] = result = job.wait()
        assert result.code == 1 and not run.exists(), result
    assert "srun started 4 processes without PMIx" in results["0"].err, results
    assert "srun --mpi=pmix" in results["0"].err, results
    assert results["2"].err == "", "the first process alone says it"


def test_cores_of_the_ranks_are_said_in_one_line(workshop):
    _, job = workshop.start_training("run", ranks=2, stop__steps=1)
    result = job.wait()
    assert len(re.findall(r"^\S+: 2 ranks, CPUs [-0-9,]+( \| [-0-9,]+| for all)$", result.out, re.MULTILINE)) == 1, result


def test_ranks_that_share_a_core_are_named_and_train_all_the_same(workshop):
    core = str(min(os.sched_getaffinity(0)))
    run = workshop.folder / "run"
    job = Job(["taskset", "-c", core, LAUNCHER, 2, PROGRAM, "train", workshop.experiment(run__dir=str(run), stop__steps=1)],
              workshop.folder / "output")
    workshop.jobs.append(job)
    result = job.wait()
    assert result.code == 0, result
    assert re.search(rf"warning: ranks 0, 1 on \S+ share 1 core \(CPUs {core} for all\)", result.err), result


def test_two_ranks_on_one_gpu_are_an_error_that_names_them_before_any_folder_is_made(workshop):
    result = workshop.train_badly("run", ranks=2, env={"CUDA_VISIBLE_DEVICES": "0"}, machine={"device": "auto"})
    assert re.search(r"2 ranks on \S+, but 1 device \(CUDA_VISIBLE_DEVICES=0\): rank 1 is left without one; "
                     r"taken are GPU 0 \(rank 0\)", result.err), result
    assert not (workshop.folder / "run").exists()


@pytest.mark.parametrize("devices, device", [("0,1", "auto"), ("0", "cpu")])
def test_gpus_enough_for_all_or_none_asked_for_are_no_error(workshop, devices, device):
    workshop.train("run", ranks=2, stop__steps=1, env={"CUDA_VISIBLE_DEVICES": devices}, machine={"device": device})


def test_what_a_stop_costs_is_measured_by_the_first_checkpoint_and_known_to_the_next_start(workshop):
    run, job = workshop.start_training("run", stop__steps=3)
    first = job.wait()
    assert re.search(r"two steps of .* s and of a checkpoint \(.* in .* s, measured now\)$", first.out, re.MULTILINE), first  # no word of Slurm
    cost = starts(run)[0]["stop_cost"]
    assert cost["checkpoint_bytes"] == checkpoints(run)[-1].stat().st_size
    assert cost["checkpoint_seconds"] > 0 and cost["step_seconds"] > 0
    slurm = {"SLURM_JOB_ID": "7", "OMPI_MCA_plm": "isolated", "OMPI_MCA_ras": "^slurm"}
    second = workshop.start_training("run", stop__steps=5, resume=True, env=slurm)[1].wait()
    assert re.search(r"two steps of .* s and of a checkpoint \(.* in .* s, measured in an earlier start\)\. To stop in time, this job needs --signal=USR1@\d+0 or more$",
                     second.out, re.MULTILINE), second


def test_the_last_words_and_the_record_name_the_signal_and_how_long_ago_it_came(workshop):
    run, job = workshop.start_training("run", ranks=2, stop__steps=ENDLESS)
    job.wait_for_step(run, 3)
    os.kill(job.ranks()[0], signal.SIGTERM)
    result = job.wait(90)
    assert result.code == 85 and re.search(r"^SIGTERM came \d+\.\d s ago$", result.out, re.MULTILINE), result
    assert starts(run)[0]["outcome"] == "stopped by SIGTERM"


@pytest.fixture(scope="module")
def slow_disk(tmp_path_factory):
    """A library that makes every sync of a checkpoint take a second, as on a busy file system."""
    folder = tmp_path_factory.mktemp("slow")
    source = folder / "slow.c"
    source.write_text("""
        #include <stdio.h>
        #include <string.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int fsync(int file) {
          char link[40], path[4096] = "";
          snprintf(link, sizeof link, "/proc/self/fd/%d", file);
          if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/step-")) usleep(1000000);
          return (int)syscall(SYS_fsync, file);
        }""")
    library = folder / "slow.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", library], check=True)
    return library


@pytest.mark.fast_cases("TERM to every rank")
@pytest.mark.parametrize("more", ["TERM to every rank", "INT to every rank", "INT to the job", "USR1 to the job"])
def test_another_signal_while_the_checkpoint_is_being_written_loses_nothing(workshop, slow_disk, more):
    name, _, whom = more.partition(" to ")
    number = getattr(signal, "SIG" + name)
    common = dict(ranks=2, checkpoint={"every_epochs": 0}, evaluate={"every_epochs": 0})
    run, job = workshop.start_training("run", stop__steps=ENDLESS, env={"LD_PRELOAD": str(slow_disk)}, **common)
    job.wait_for_step(run, 3)
    os.kill(job.process.pid, signal.SIGUSR1 if whom == "the job" and name == "USR1" else signal.SIGTERM)
    deadline = time.monotonic() + 20
    while not list((run / "checkpoints").glob("step-*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(1.2)  # repeats within a second do not count
    assert list((run / "checkpoints").glob("step-*.tmp")) and job.process.poll() is None, "it is being written"
    for pid in [job.process.pid] if whom == "the job" else job.ranks().values():
        os.kill(pid, number)
    result = job.wait(90)
    assert result.code == 85, result
    last = last_step(run)
    assert checkpoints(run)[-1].name == f"step-{last:09d}.h5"
    resumed = workshop.train("run", stop__steps=last + 3, resume=True, **common)
    assert_same_bits(workshop.train("whole", stop__steps=last + 3, **common), resumed)


@pytest.mark.thorough
def test_signals_in_the_middle_of_matrix_products_leave_the_heap_whole(workshop):
    # The model is wide enough for the kernels of oneDNN that put their stack pointer into the heap.
    run, job = workshop.start_training("run", ranks=0, stop__steps=ENDLESS, model__hidden=512,
                                       batch={"global": 256, "worker": 128})
    job.wait_for_step(run, 2)
    deadline = time.monotonic() + 4  # later signals are caught, too
    while job.process.poll() is None and time.monotonic() < deadline:
        os.kill(job.process.pid, signal.SIGTERM)
        time.sleep(0.0003)
    assert job.wait().code == 85
    assert checkpoints(run)[-1].name == f"step-{last_step(run):09d}.h5"


@pytest.mark.thorough
def test_a_signal_ends_an_evaluation_half_way_and_the_resumed_run_makes_up_for_it(workshop):
    # An evaluation takes some seconds, in many passes.
    workshop.data = make_names(workshop.folder / "many", count=3000)
    common = dict(ranks=2, data__validation=f"{workshop.data}-train", model__hidden=64, model__layers=2,
                  batch={"global": 32, "worker": 8, "micro": 2}, checkpoint={"every_epochs": 0},
                  evaluate={"every_steps": 2, "every_epochs": 0})
    run, job = workshop.start_training("run", stop__steps=3, **common)
    job.wait_for_step(run, 2)
    os.kill(job.ranks()[1], signal.SIGTERM)  # one rank is enough
    result = job.wait()
    assert result.code == 85, result
    assert last_step(run) == 2 and evaluations(run) == [], "the evaluation was broken off"
    assert checkpoints(run)[-1].name == "step-000000002.h5"
    workshop.train("run", stop__steps=3, resume=True, timeout=HANG_SECONDS, **common)
    whole = workshop.train("whole", stop__steps=3, timeout=HANG_SECONDS, **common)
    assert_same_bits(whole, run)
    words = ("step", "validation_loss", "validation_accuracy")
    assert [[e[w] for w in words] for e in evaluations(run)] == [[e[w] for w in words] for e in evaluations(whole)]
    assert [r["step"] for r in steps(run)] == [1, 2, 3]
