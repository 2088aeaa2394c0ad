"""Tests a start without the other ranks, memory that runs out, converters on a full disk, and file systems that answer
like NFS."""
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy
import pytest

from conftest import CONVERTER, HANG_SECONDS, ROOT, environment, last_step, some_names, start_ranks
from test_no_hangs import assert_gone

sys.path.insert(0, str(ROOT / "tests" / "faults"))
from running import build_preload  # noqa: E402


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    return build_preload(tmp_path_factory.mktemp("preload"))


def with_rules(preload, rules, **more):
    return {"LD_PRELOAD": str(preload), "RINGTRAIN_FAULTS": rules, **more}


# ---- Hung ranks ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.thorough
def test_a_rank_that_stands_still_before_mpi_is_up_ends_the_job(workshop, preload, victim):
    env = with_rules(preload, f"call=open,rank={victim},from=1,do=signal:{int(signal.SIGSTOP)}", RINGTRAIN_START_SECONDS="3")
    _, job = workshop.start_training("run", ranks=3, batch={"global": 24, "worker": 8}, env=env)
    begin = time.monotonic()
    while len(job.ranks()) < 3 and time.monotonic() < begin + 10:
        time.sleep(0.05)
    result = job.wait(90)
    assert result.code not in (0, 85), result
    assert "MPI could not start within 3 s" in result.err and "RINGTRAIN_START_SECONDS" in result.err, result
    assert_gone(job)


@pytest.mark.thorough
def test_a_rank_that_stands_still_before_the_watchdog_meets_ends_the_job(workshop, preload):
    # Rank 1 is stopped at its first message after MPI's own start.
    env = with_rules(preload, f"call=send,rank=1,from=1,do=signal:{int(signal.SIGSTOP)}", RINGTRAIN_START_SECONDS="3")
    _, job = workshop.start_training("run", ranks=2, communication__timeout_seconds=3, env=env)
    result = job.wait(90)
    assert result.code not in (0, 85), result
    assert re.search(r"within 3 s|for 3 s", result.err), result


def test_a_wrong_limit_of_the_start_is_told(workshop):
    result = workshop.train_badly("run", ranks=2, env={"RINGTRAIN_START_SECONDS": "soon"})
    assert "RINGTRAIN_START_SECONDS is 'soon', expected seconds above 0" in result.err, result


# ---- Memory --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.thorough
def test_memory_that_runs_out_is_told_in_words_by_the_rank_that_has_none(workshop, preload, ranks):
    # The second rank runs out of memory, if there are two. The tables of the network are its first large allocations.
    rank = ranks - 1 if ranks > 1 else -1
    env = with_rules(preload, f"call=malloc,size=1000000,rank={rank},from=1,count=0,do=ENOMEM")
    result = workshop.train_badly("run", ranks=ranks, env=env, model__hidden=512)
    assert "out of memory" in result.err and "ringtrain plan shows" in result.err, result
    assert ranks == 1 or f"(rank {rank} on " in result.err, result
    assert not re.search("terminate called|signal 6|Segmentation", result.err), result


def test_a_launcher_whose_mpirun_is_stopped_waits_without_work(workshop):
    def processor_seconds(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    run, job = workshop.start_training("run", ranks=2, stop__steps=60, test={"slow_rank": 0, "slow_seconds": 0.02})
    job.wait_for_step(run, 3)
    launcher = job.process.pid
    mpirun = int(Path(f"/proc/{job.ranks()[0]}/stat").read_text().rsplit(") ", 1)[1].split()[1])
    before = processor_seconds(launcher)
    os.kill(mpirun, signal.SIGSTOP)
    time.sleep(1)
    used = processor_seconds(launcher) - before
    os.kill(mpirun, signal.SIGCONT)
    result = job.wait()
    assert result.code == 0 and last_step(run) == 60, result
    assert used < 0.2, used


# ---- A limit on the size of files ----------------------------------------------------------------------------------

@pytest.mark.thorough
def test_a_file_that_may_not_grow_is_an_error_and_not_a_signal(workshop, tmp_path):
    """SIGXFSZ would kill a rank without a word. Memory that ranks share counts as a file, too."""
    path = workshop.experiment(run__dir=str(workshop.folder / "run"), model__hidden=512)
    # The probe of the folder fits into 1.25 MiB. The ranks' memory and the checkpoint do not, and neither would the memory
    # of Open MPI.
    result = start_ranks(workshop, 2, "ulimit -f 1280", "train", path, env={"OMPI_MCA_btl": "self,tcp"}).wait()
    assert result.code == 1 and result.err.count("ringtrain: error") == 1 and "File too large" in result.err, result
    assert "cannot read each other's memory" in result.err, result
    source = tmp_path / "input.txt"
    source.write_text("\n".join(some_names(300, 1)) + "\n")
    done = subprocess.run(["bash", "-c", 'ulimit -f 4; exec "$0" "$@"', CONVERTER, "names", source, "--out", tmp_path / "set"],
                          capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert done.returncode == 1 and "ringtrain-data: error" in done.stderr and "File too large" in done.stderr, done


# ---- NFS -----------------------------------------------------------------------------------------------------------

def test_files_that_were_removed_while_open_do_not_stand_in_the_way(workshop, preload):
    """A start that fails leaves .nfs files where its lock was. The next start must treat the folder as empty."""
    folder = workshop.folder / "run"
    folder.mkdir()
    for name in ".nfs0000000001", ".probe.tmp":
        (folder / name).write_text("left")
    run = workshop.train("run", ranks=2, stop__steps=5, env=with_rules(preload, "call=unlink,path=*/run/*,from=1,count=0,do=silly"))
    assert last_step(run) == 5
    assert list(run.rglob(".nfs*")), "nothing was removed in the silly way"
    workshop.train("run", ranks=2, stop__steps=10, resume=True)
    assert last_step(run) == 10


@pytest.mark.parametrize("rules, code, says", [
    ("call=flock,from=1,count=0,do=ENOLCK", 0, ""),
    ("call=open,path=*names-train-00001*,from=1,do=ESTALE", 1, "names-train-00001-of-00002.h5"),
    ("call=read,path=*names-train-00000*,from=2,count=0,do=ESTALE", 1, "names-train-00000-of-00002.h5"),
    # Rank 1 cannot open the memory that the node's ranks share, so it reads its own copy.
    ("call=open,path=/proc/*/fd/*,rank=1,from=1,count=0,do=EACCES;"
     "call=read,path=*names-validation-*,rank=1,from=1,count=0,do=EIO", 1, "names-validation-0000"),
    # Rank 1 was asked to stop before its error. It must still say why it fails.
    ("call=open,path=/proc/*/fd/*,rank=1,from=1,count=0,do=EACCES;"
     f"call=open,path=*names-validation-*,rank=1,from=1,do=signal:{int(signal.SIGUSR1)};"
     "call=read,path=*names-validation-*,rank=1,from=1,count=0,do=EIO", 1, "names-validation-0000"),
    ("call=rename,path=*/run.json,from=1,count=0,do=ESTALE", 1, "run.json"),
])
@pytest.mark.thorough
def test_text_shards_locks_and_renames_on_a_file_server_that_forgets(workshop, preload, rules, code, says):
    run, job = workshop.start_training("run", ranks=2, stop__steps=5, env=with_rules(preload, rules))
    begin = time.monotonic()
    result = job.wait()
    assert time.monotonic() - begin < 30
    assert (result.code != 0) == (code != 0) and says in result.err, result
    assert code == 0 or result.err.count("ringtrain: error") == 1, result
    workshop.train("run" if code == 0 else "again", ranks=2, stop__steps=6, resume=code == 0)


@pytest.mark.thorough
def test_a_second_job_is_refused_while_the_lock_is_there_and_the_first_ends_where_it_has_lost_it(workshop):
    keys = dict(ranks=2, stop__steps=10**6, checkpoint={"every_steps": 40, "keep": 3}, test={"slow_rank": 0, "slow_seconds": 0.01})
    run, first = workshop.start_training("run", **keys)
    first.wait_for_step(run, 3)
    refused = workshop.run("train", workshop.experiment(run__dir=str(run), **{k: v for k, v in keys.items() if k != "ranks"}), "--resume")
    assert refused.code == 1 and "another job works in this run folder" in refused.err, refused
    # The lock is removed, and this test takes it at once, as another job would. One rename does both, because the first
    # job would otherwise lock the folder again before its next checkpoint.
    with open(run / ".lock.other", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("elsewhere pid 1\n")
        other.flush()
        os.rename(run / ".lock.other", run / ".lock")
        result = first.wait()
    assert result.code not in (0, 85) and "another job works in this run folder" in result.err, result
    keys["stop__steps"] = last_step(run) + 2
    workshop.train("run", resume=True, **keys)


def test_a_removed_lock_is_taken_again(workshop):
    run, job = workshop.start_training("run", ranks=2, stop__steps=10**6, checkpoint={"every_steps": 20},
                                       test={"slow_rank": 0, "slow_seconds": 0.01})
    job.wait_for_step(run, 3)
    (run / ".lock").unlink()
    job.wait_for_step(run, 45)
    os.kill(job.ranks()[0], signal.SIGTERM)
    result = job.wait()
    assert result.code == 85 and "it is locked again" in result.err and (run / ".lock").exists(), result


# ---- Converters ----------------------------------------------------------------------------------------------------

def sources(folder, kind):
    """Makes the input of a small conversion. Returns the arguments of ringtrain-data for it, with two training shards."""
    if kind == "images":
        for split in "train", "val":
            for label in "a", "b":
                place = folder / "pictures" / split / label
                place.mkdir(parents=True, exist_ok=True)
                for picture in "420", "444", "grey":
                    shutil.copy(ROOT / "tests/golden/images" / f"{picture}.jpg", place)
        return ["images", folder / "pictures", "--shards", "2"]
    if kind == "import":
        with h5py.File(folder / "arrays.h5", "w") as file:
            file["x"] = numpy.arange(24 * 8 * 8 * 3, dtype=numpy.uint8).reshape(24, 8, 8, 3)
            file["y"] = numpy.arange(24) % 3
        return ["import", folder / "arrays.h5", "--images", "x", "--labels", "y", "--encoding", "raw", "--rows", "0:16",
                "--validation-rows", "16:24", "--shards", "2"]
    source = folder / "input.txt"
    source.write_text("\n".join(some_names(300, 1)) + "\n")
    return [kind, source, "--shards", "2", *(["--validation", "0.1"] if kind == "text" else [])]


def convert(folder, preload, kind, rules=""):
    return subprocess.run([CONVERTER, *sources(folder, kind), "--out", folder / "set"], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS,
                          env=environment(with_rules(preload, rules) if rules else {}))


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize("kind", ["names", "text", "images", "import"])
def test_a_converter_on_a_full_disk_says_so_and_leaves_no_half_written_shard(tmp_path, preload, kind, call):
    for first in 1, 2, 4:
        done = convert(tmp_path, preload, kind, f"call={call},path={tmp_path}/set*,from={first},count=0,do=ENOSPC")
        assert done.returncode == 1, done
        assert "No space left on device" in done.stderr and "free some space" in done.stderr, done.stderr
        for path in tmp_path.glob("set*.h5"):
            with h5py.File(path) as file:
                assert file.attrs["complete"] == 1
            path.unlink()
    again = convert(tmp_path, preload, kind)
    assert again.returncode == 0, again.stderr
    assert len(list(tmp_path.glob("set-train-*.h5"))) == 2 and not list(tmp_path.glob("set*.tmp"))
