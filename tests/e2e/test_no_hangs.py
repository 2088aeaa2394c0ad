"""Tests that a job ends soon and with a reason, whatever happens to one of its ranks."""
import json
import os
import re
import signal
import subprocess
import time

import numpy
import pytest

from conftest import arrays, assert_same_bits, checkpoints, is_alive, last_step, steps

ENDLESS = 10**9


def assert_gone(job):
    deadline = time.monotonic() + 5
    while any(is_alive(pid) for pid in job.pids.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in job.pids.values() if is_alive(pid)], "ranks are left behind"


@pytest.mark.fast_cases("2")
@pytest.mark.parametrize("victim", [0, 2])
def test_killing_one_of_four_ranks_ends_the_job_and_names_the_rank(workshop, victim):
    run, job = workshop.start_training("run", ranks=4, stop__steps=ENDLESS)
    job.wait_for_step(run, 3)
    start = time.monotonic()
    os.kill(job.ranks()[victim], signal.SIGKILL)
    result = job.wait(90)
    assert time.monotonic() - start < 10
    assert result.code != 0
    assert re.search(rf"\brank {victim}\b", result.text), result
    assert_gone(job)


def test_a_rank_that_stands_still_is_found_by_the_watchdog(workshop):
    run, job = workshop.start_training("run", ranks=4, stop__steps=ENDLESS, communication__timeout_seconds=3)
    job.wait_for_step(run, 3)
    start = time.monotonic()
    os.kill(job.ranks()[1], signal.SIGSTOP)
    result = job.wait(90)
    assert 2 < time.monotonic() - start < 15
    assert result.code != 0
    assert "no step was finished for 3 s" in result.err, result
    for rank in range(4):  # rank, pid, step, phase
        assert re.search(rf"^ *{rank} +{job.pids[rank]} +\d+ +\w+", result.err, re.MULTILINE), result
    assert re.search(rf"^ *1 +{job.pids[1]} .*STOPPED", result.err, re.MULTILINE), result
    assert_gone(job)


@pytest.mark.thorough
def test_the_watchdog_shows_which_stage_the_others_wait_for(workshop):
    run, job = workshop.start_training("run", ranks=3, stop__steps=ENDLESS, communication__timeout_seconds=3, model__layers=3,
                                       parallel={"kind": "pipeline", "stages": 3}, batch__micro=4,
                                       test={"slow_rank": 1, "slow_seconds": 0.5})  # it stops while it sleeps
    job.wait_for_step(run, 3)
    os.kill(job.ranks()[1], signal.SIGSTOP)
    result = job.wait(90)
    assert result.code != 0
    for rank in (0, 2):
        assert re.search(rf"^ *{rank} +{job.pids[rank]} +\d+ +stage wait ", result.err, re.MULTILINE), result
    assert re.search(rf"^ *1 +{job.pids[1]} .*STOPPED", result.err, re.MULTILINE), result
    assert_gone(job)


def test_ranks_that_do_not_divide_the_workers_are_one_clear_error(workshop):
    result = workshop.train_badly("run", ranks=3)
    assert result.err.count("3 ranks do not divide the 4 virtual workers") == 1, result
    assert not (workshop.folder / "run").exists(), "errors come before any folder is made"


@pytest.mark.fast_cases("TERM to the job", "one rank")
@pytest.mark.parametrize("target", ["every rank", "one rank", "USR1 to the job", "TERM to the job", "INT to the job"])
def test_a_signal_writes_a_checkpoint_and_ends_with_85(workshop, target):
    run, job = workshop.start_training("run", ranks=2, stop__steps=ENDLESS, checkpoint={"every_epochs": 0})
    job.wait_for_step(run, 3)
    ranks = job.ranks()
    if target.endswith("the job"):
        os.kill(job.process.pid, getattr(signal, "SIG" + target.split()[0]))
    else:
        for rank in ranks if target == "every rank" else [1]:
            os.kill(ranks[rank], signal.SIGTERM)
    result = job.wait(90)
    assert result.code == 85, result
    last = last_step(run)
    assert checkpoints(run)[-1].name == f"step-{last:09d}.h5"
    assert "--resume" in result.out, result
    assert_gone(job)
    resumed = workshop.train("run", ranks=2, stop__steps=last + 5, resume=True, checkpoint={"every_epochs": 0})
    assert_same_bits(workshop.train("whole", ranks=2, stop__steps=last + 5, checkpoint={"every_epochs": 0}), resumed)


@pytest.mark.thorough
def test_what_the_last_words_say_continues_the_run_with_its_overrides(workshop):
    run, job = workshop.start_training("run", ranks=2, stop__steps=ENDLESS, learning_rate__base=0.002)
    job.wait_for_step(run, 3)
    os.kill(job.process.pid, signal.SIGTERM)
    result = job.wait(90)
    words = re.search(r"continue with: ringtrain (.*)", result.out)[1].split()
    last = last_step(run)
    assert workshop.run(*words, f"stop.steps={last + 3}", ranks=2).code == 0
    assert last_step(run) == last + 3
    assert steps(run)[-1]["lr"] == 0.002


def test_a_model_that_does_not_fit_into_memory_leaves_no_folder(workshop):
    result = workshop.train_badly("run", model__hidden=65536, model__layers=64)
    assert "refused" in result.err and "bytes" in result.err, result
    assert not (workshop.folder / "run").exists()


# This library is preloaded into ringtrain. For a checkpoint that is being written, it makes `pread` slow, and with
# HANGS it lets `fsync` wait for ever.
SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int is_checkpoint(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path);
  return length > 7 && memcmp(path + length - 7, ".h5.tmp", 7) == 0;
}
ssize_t pread64(int file, void* to, size_t bytes, off64_t at) {
  if (is_checkpoint(file)) usleep(READ_MICROSECONDS);
  return ((ssize_t(*)(int, void*, size_t, off64_t))dlsym(RTLD_NEXT, "pread64"))(file, to, bytes, at);
}
ssize_t pread(int file, void* to, size_t bytes, off_t at) { return pread64(file, to, bytes, at); }
int fsync(int file) {
  while (HANGS && is_checkpoint(file)) pause();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
"""


def preloaded(folder, source, *options):
    """Returns the environment that preloads this C source."""
    path, library = folder / "preload.c", folder / "preload.so"
    path.write_text(source)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", *options, path, "-o", library, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.mark.thorough
def test_a_slow_checkpoint_is_no_hang(workshop):
    timeout = 2
    env = preloaded(workshop.folder, SLOW_DISK, "-DREAD_MICROSECONDS=100000", "-DHANGS=0")
    run, job = workshop.start_training("run", ranks=2, stop__steps=5, communication__timeout_seconds=timeout, env=env)
    result = job.wait()
    assert result.code == 0, result
    assert last_step(run) == 5 and checkpoints(run)[-1].name == "step-000000005.h5"
    cost = json.loads((run / "run.json").read_text())["starts"][-1]["stop_cost"]
    assert cost["checkpoint_seconds"] > 1.5 * timeout, "the disk was not slow enough for this test"


@pytest.mark.thorough
def test_a_checkpoint_whose_writing_stands_still_ends_the_job(workshop):
    env = preloaded(workshop.folder, SLOW_DISK, "-DREAD_MICROSECONDS=0", "-DHANGS=1")
    _, job = workshop.start_training("run", ranks=2, stop__steps=5, communication__timeout_seconds=2, env=env)
    result = job.wait()
    assert result.code not in (0, 85), result
    assert "no step was finished for 2 s" in result.err, result
    assert len(re.findall(r"^ *[01] +\d+ +5 +checkpoint", result.err, re.MULTILINE)) == 2, result


@pytest.mark.thorough
def test_ranks_that_mpi_does_not_let_go_leave_with_their_exit_code(workshop):
    env = preloaded(workshop.folder, "#include <unistd.h>\nint MPI_Finalize(void) { for (;;) pause(); }\n"
                    "int MPI_Abort(void* group, int code) { for (;;) pause(); }\n")
    run, job = workshop.start_training("run", ranks=2, stop__steps=3, env=env)
    result = job.wait()
    # Open MPI 4's mpirun returns 1 when a process ends with 0 without MPI_Finalize.
    assert result.code in (0, 1) and "MPI_Finalize did not return" in result.err, result
    assert_gone(job)
    run, job = workshop.start_training("run", ranks=2, resume=True, stop__steps=ENDLESS, env=env)
    job.wait_for_step(run, 6)
    os.kill(job.ranks()[0], signal.SIGTERM)
    result = job.wait()
    assert result.code == 85, result
    assert_gone(job)


def assert_finite(run):
    for path in (run / "checkpoints").glob("*.h5") if (run / "checkpoints").exists() else []:
        for name, values in arrays(path).items():
            assert numpy.isfinite(values).all(), f"{path}: {name}"


def test_divergence_is_an_error_that_names_the_step_and_reaches_no_checkpoint(workshop):
    # Each step multiplies the weights by -1e9, so they overflow at the fifth step.
    run, job = workshop.start_training("run", ranks=2, stop__steps=50, learning_rate={"base": 1e6},
                                       optimizer={"kind": "sgd", "momentum": 0, "weight_decay": 1000},
                                       checkpoint={"every_steps": 1, "keep": 100})
    result = job.wait(90)
    assert result.code not in (0, 85), result
    assert re.search(r"step \d+: .*(loss|not finite)", result.err), result
    assert result.err.count("ringtrain: error") == 1, result
    assert_finite(run)
    assert all(numpy.isfinite([r["loss"], r["grad_norm"]]).all() for r in steps(run))


def test_the_run_can_be_stopped_by_time(workshop):
    run = workshop.train("run", ranks=2, stop={"seconds": 1})
    assert steps(run)[-1]["elapsed_seconds"] == pytest.approx(1, abs=0.8)
    assert checkpoints(run)[-1].name == f"step-{last_step(run):09d}.h5"


def test_the_run_can_be_stopped_by_a_target(workshop):
    run = workshop.train("run", stop={"steps": 2000, "target_metric": "validation_loss", "target_value": 2.0},
                         evaluate={"every_steps": 10})
    assert last_step(run) < 2000 and last_step(run) % 10 == 0
