"""Tests variables and limits of the system that leave a run fewer threads or CPUs than it asks for. The run computes the
same, or it is refused with the name of the variable or limit."""
import os
import subprocess

import h5py
import numpy
import pytest

from conftest import CONVERTER, start_ranks, steps
from control_group import ControlGroup

NO_LEVELS = {"OMP_MAX_ACTIVE_LEVELS": "0"}  # every region would have one thread
LIMIT = {"OMP_THREAD_LIMIT": "1"}


def curve(run):
    return [(line["loss"], line["grad_norm"]) for line in steps(run)]


def test_smaller_teams_are_switched_off(workshop):
    settings = {"stop__steps": 3, "run__threads": 2}
    whole = workshop.train("whole", **settings)
    assert len(curve(whole)) == 3
    for number, env in enumerate([NO_LEVELS, {"OMP_DYNAMIC": "true"}, {"OMP_NESTED": "true"}]):
        assert curve(workshop.train(f"run-{number}", env=env, **settings)) == curve(whole), env


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_limit_of_threads_is_refused_by_name(workshop, ranks):
    result = workshop.train_badly("run", ranks=ranks, env=LIMIT, run__threads=2, stop__steps=2)
    assert "OMP_THREAD_LIMIT is 1" in result.err and "run.threads=1" in result.err, result
    assert not (workshop.folder / "run" / "metrics.jsonl").exists()
    workshop.train("one", ranks=ranks, env=LIMIT, run__threads=1, stop__steps=2)


def test_evaluate_and_bench_refuse_it_too(workshop):
    run = workshop.train("run", stop__steps=2, run__threads=2)
    for words in (["evaluate", run], ["bench", "step", workshop.experiment(run__threads=2)]):
        result = workshop.run(*words, env=LIMIT)
        assert result.code not in (0, 85) and "OMP_THREAD_LIMIT is 1" in result.err, result


@pytest.mark.parametrize("binding", ["OMP_PROC_BIND=true", "OMP_PLACES=cores", "GOMP_CPU_AFFINITY=0-1023"])
def test_openmp_does_not_bind_all_threads_to_one_cpu(workshop, binding):
    name, value = binding.split("=")
    if name == "GOMP_CPU_AFFINITY":
        value = " ".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
    plain, bound = (workshop.run("train", workshop.experiment(run__dir=str(workshop.folder / f"run-{len(env)}"), stop__steps=2), env=env)
                    for env in ({}, {name: value}))
    cpus = [next(line for line in r.out.splitlines() + r.err.splitlines() if "CPUs" in line) for r in (plain, bound)]
    assert plain.code == bound.code == 0 and cpus[0] == cpus[1], (plain, bound)


@pytest.fixture
def limited():
    made = []

    def make(**limits):
        try:
            made.append(ControlGroup(f"ringtrain-test-{len(made)}", **limits))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        return made[-1].enter

    yield make
    for group in made:
        group.remove()


def words_of(workshop, name, **changes):
    return ["train", workshop.experiment(run__dir=str(workshop.folder / name), stop__steps=3, **changes)]


@pytest.mark.parametrize("ranks, cpus, told", [(1, 1, "a rank 1 CPU"), (1, 1.5, "a rank 1.5 CPUs"), (2, 1, "a rank 0.5 CPUs")])
def test_threads_follow_a_quota_of_cpu_time(workshop, limited, ranks, cpus, told):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("the quota would not be smaller than the CPUs")
    result = start_ranks(workshop, ranks, limited(cpus=cpus), *words_of(workshop, "run", run__threads=0)).wait()
    assert result.code == 0 and told in result.out + result.err and "with 1 thread" in result.out + result.err, result
    result = start_ranks(workshop, ranks, limited(cpus=cpus), *words_of(workshop, "more", run__threads=2)).wait()
    assert result.code == 0 and "a quota (cgroup) of" in result.err, result
    result = start_ranks(workshop, ranks, limited(cpus=cpus), "plan", workshop.experiment(run__threads=2)).wait()
    assert result.code == 0 and "run.threads is 2, but a rank has a quota (cgroup) of" in result.err, result


@pytest.mark.parametrize("threads, what", [(1, "signals|the threads of MPI"), (4, "the threads of MPI"), (10, "a thread that")])
def test_a_thread_that_may_not_start_is_named_with_the_limit(workshop, limited, threads, what):
    result = start_ranks(workshop, 1, limited(threads=threads), *words_of(workshop, "run", data__loader_threads=8)).wait()
    assert result.code not in (0, 85) and any(f"{w}" in result.err for w in what.split("|")), result
    assert f"allows {threads} processes and threads (pids.max)" in result.err and result.err.count("error") == 1, result


def test_openmp_names_the_limit_too(workshop):
    result = workshop.run(*words_of(workshop, "run", run__threads=2), env={"OMP_STACKSIZE": "100000G"})
    assert result.code not in (0, 85) and "OMP_STACKSIZE is 100000G" in result.err, result


def test_a_conversion_works_with_the_threads_that_it_gets(tmp_path, limited):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["y"] = numpy.zeros((64, 8, 8, 3), numpy.uint8), numpy.arange(64) % 2

    def convert(out, enter, *options):
        return subprocess.run(["bash", "-c", f'{enter}\nexec "$0" "$@"', CONVERTER, "import", "x.h5", "--images", "x", "--labels", "y",
                               "--out", out, *options], cwd=tmp_path, capture_output=True, text=True)
    few, whole = convert("few", limited(threads=2), "--threads", "8"), convert("whole", "true")
    assert few.returncode == whole.returncode == 0, few
    assert few.stderr.count("warning: works with 2 of 8 threads") == 1 and "(pids.max)" in few.stderr, few
    assert few.stdout.rstrip().endswith("1 rank(s) x 2 thread(s)"), few
    with h5py.File(tmp_path / "few-train-00000-of-00001.h5") as a, h5py.File(tmp_path / "whole-train-00000-of-00001.h5") as b:
        assert set(a) == set(b) and all(numpy.array_equal(a[name][()], b[name][()]) for name in a)
    quota = convert("quota", limited(cpus=1))
    assert "1 rank(s) x 1 thread(s)" in quota.stdout + quota.stderr, quota
