"""Tests limits of open files, of address space, of inodes and of quotas. The message names the limit with its value and
says what to do, once, and the cause is not put on a file that is whole."""
import re
import resource
import subprocess
import sys

import h5py
import numpy
import pytest
from PIL import Image

from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, PROGRAM, ROOT, environment, some_names, start_ranks, steps

sys.path.insert(0, str(ROOT / "tests" / "faults"))
from running import build_preload  # noqa: E402


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    return build_preload(tmp_path_factory.mktemp("preload"))


def with_rules(preload, rules):
    return {"LD_PRELOAD": str(preload), "RINGTRAIN_FAULTS": rules}


def train(workshop, ranks, limit, **changes):
    words = ["train", workshop.experiment(run__dir=str(workshop.folder / "run"), stop__steps=3, **changes)]
    return start_ranks(workshop, ranks, limit, *words).wait()


def assert_refused(result, *words):
    assert result.code not in (0, 85) and result.err.count("ringtrain: error") == 1, result
    assert all(word in result.err for word in words), result


# ---- Open files ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("most", [8, 24])
def test_a_run_that_may_open_too_few_files_is_refused_before_it_begins(workshop, ranks, most):
    assert_refused(train(workshop, ranks, f"ulimit -n {most}"), f"may have {most} files open (ulimit -n)", "ulimit -n 4096")
    assert not (workshop.folder / "run").exists()


@pytest.mark.parametrize("kind", ["train", "convert"])
def test_a_stack_that_is_too_small_is_refused_before_it_crashes(workshop, kind):
    words = {"train": [PROGRAM, "train", workshop.experiment()], "convert": [CONVERTER, "verify", workshop.data]}[kind]
    done = subprocess.run(["bash", "-c", 'ulimit -Ss 200; exec "$@"', "bash", *words], capture_output=True, text=True, timeout=HANG_SECONDS, env=environment())
    assert done.returncode == 1 and "needs a stack of 1024 KiB, but this process may have 200 KiB (ulimit -s)" in done.stderr, done


def test_a_low_soft_limit_is_raised(workshop):
    assert train(workshop, 2, "ulimit -Sn 24").code == 0 and len(steps(workshop.folder / "run")) == 3


@pytest.mark.parametrize("path", ["names-train-00001", "checkpoints/", "metrics.jsonl"])
def test_files_that_cannot_be_opened_any_more_are_no_fault_of_the_data(workshop, preload, path):
    result = workshop.train_badly("run", ranks=2, env=with_rules(preload, f"call=open,path=*{path}*,from=1,count=0,do=EMFILE"))
    assert_refused(result, "Too many open files", "files open (ulimit -n)", "ulimit -n 4096")
    assert "convert the data again" not in result.err, result


def pictures(folder):
    for split in "train", "val":
        for label in "a", "b":
            (folder / "in" / split / label).mkdir(parents=True)
            for number in range(3):
                Image.fromarray(numpy.full((8, 8, 3), 20 * number, "u1")).save(folder / "in" / split / label / f"{number}.png")
    return folder / "in"


def arrays(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"], file["y"] = numpy.zeros((64, 8, 8, 3), "u1"), numpy.arange(64) % 2
    return [folder / "x.h5", "--images", "x", "--labels", "y"]


def text(folder):
    (folder / "input.txt").write_text("\n".join(some_names(300, 1)) + "\n")
    return [folder / "input.txt"]


def data(*words, env=None, **options):
    return subprocess.run([str(word) for word in (CONVERTER, *words)], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS,
                          env=environment(env or {}), **options)


def few_files(most):
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))}


@pytest.mark.parametrize("kind, source", [("images", lambda folder: [pictures(folder), "--broken", "skip"]), ("import", arrays),
                                          ("names", text), ("text", text)])
def test_a_converter_that_may_open_too_few_files_writes_nothing(tmp_path, kind, source):
    done = data(kind, *source(tmp_path), "--out", tmp_path / "set", **few_files(8))
    assert done.returncode == 1 and "may have 8 files open (ulimit -n)" in done.stderr and done.stderr.count("error") == 1, done
    assert not list(tmp_path.glob("set*"))


def test_pictures_that_cannot_be_opened_for_a_limit_are_not_broken(tmp_path, preload):
    done = data("images", pictures(tmp_path), "--broken", "skip", "--out", tmp_path / "set",
                env=with_rules(preload, "call=open,path=*1.png,from=2,count=0,do=EMFILE"))
    assert done.returncode == 1 and "files open (ulimit -n)" in done.stderr and not list(tmp_path.glob("set*.h5")), done


def test_a_shard_that_cannot_be_opened_for_a_limit_is_no_fault(tmp_path, preload):
    assert data("import", *arrays(tmp_path), "--shards", "3", "--out", tmp_path / "set").returncode == 0
    for error, words in ("EMFILE", "ulimit -n"), ("ENFILE", "fs.file-max"), ("ENOMEM", "too little memory"):
        done = data("verify", tmp_path / "set", env=with_rules(preload, f"call=open,path=*00001-of*,from=1,count=0,do={error}"))
        assert done.returncode == 1 and words in done.stderr and "fault" not in done.stdout + done.stderr, done


# ---- Memory --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kibibytes", [150_000, 500_000])
def test_a_run_with_too_few_addresses_is_refused_before_it_begins(workshop, ranks, kibibytes):
    """MPI would wait without end, and oneDNN would crash."""
    assert_refused(train(workshop, ranks, f"ulimit -v {kibibytes}"), f"(ulimit -v) is {kibibytes} KiB", "ulimit -v unlimited")
    assert not (workshop.folder / "run").exists()


def test_memory_that_runs_out_under_a_limit_names_the_limit(workshop, preload, tmp_path):
    rules = "call=malloc,size=1000000,from=1,count=0,do=ENOMEM"
    path = workshop.experiment(run__dir=str(workshop.folder / "run"), model__hidden=512)
    result = start_ranks(workshop, 1, "ulimit -v 9000000", "train", path, env=with_rules(preload, rules)).wait()
    assert_refused(result, "out of memory", "(ulimit -v) is 9000000 KiB", "raise that limit")
    done = data("import", *arrays(tmp_path), "--out", tmp_path / "set", env=with_rules(preload, rules.replace("1000000", "2000")))
    assert done.returncode == 1 and "ringtrain-data: error: out of memory" in done.stderr and "--threads" in done.stderr, done


# ---- Inodes and quotas ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("call, path", [("write", "checkpoints/*"), ("write", "metrics.jsonl"), ("open", "checkpoints/*")])
def test_a_used_up_quota_is_called_a_quota(workshop, preload, call, path):
    result = workshop.train_badly("run", ranks=2, env=with_rules(preload, f"call={call},path=*/run/{path},rank=0,from=2,count=0,do=EDQUOT"))
    assert_refused(result, "quota exceeded", "your quota there, of bytes or of files, is used up (quota -s", "run.dir")


@pytest.mark.parametrize("kind, source", [("images", lambda folder: [pictures(folder)]), ("import", arrays), ("names", text)])
def test_a_converter_calls_a_quota_a_quota(tmp_path, preload, kind, source):
    done = data(kind, *source(tmp_path), "--out", tmp_path / "set", env=with_rules(preload, f"call=write,path={tmp_path}/set*,from=1,count=0,do=EDQUOT"))
    assert done.returncode == 1 and "quota exceeded" in done.stderr and "your quota there" in done.stderr, done


SMALL = 'mount -t tmpfs -o nr_inodes={inodes},size=64m tmpfs "{folder}"'


@pytest.fixture
def few_inodes(tmp_path):
    """Returns a function that runs a command with a disk of few inodes at <tmp_path>/disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    space = ["unshare", "--mount", "--map-root-user", "--user"]
    if subprocess.run([*space, "true"], capture_output=True).returncode != 0:
        pytest.skip("users cannot mount a small disk here")

    def run(inodes, *words):
        shell = SMALL.format(inodes=inodes, folder=disk) + ' && "$0" "$@"; code=$?; ls "' + str(disk) + '"; exit $code'
        return subprocess.run([*space, "bash", "-c", shell, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS,
                              env=environment({}))

    run.disk = disk
    return run


@pytest.mark.parametrize("inodes", [*range(2, 14), 60])
def test_a_disk_without_inodes_is_not_called_full(workshop, few_inodes, inodes):
    experiment = workshop.experiment(run__dir=str(few_inodes.disk / "run"), stop__steps=3, checkpoint={"every_steps": 1, "keep": 3})
    done = few_inodes(inodes, LAUNCHER, 1, ROOT / "bin" / "ringtrain", "train", experiment)
    if inodes == 60:  # the run's files fit
        assert done.returncode == 0, done
        return
    if done.returncode != 0:
        assert "No space left on device" in done.stderr and done.stderr.count("ringtrain: error") == 1, done
        assert re.search(rf"has [\d.]+ MiB free, but only \d of its {inodes} inodes \(df -i\)", done.stderr), done


def test_a_converter_without_inodes_says_so(tmp_path, few_inodes):
    done = few_inodes(4, CONVERTER, "import", *arrays(tmp_path), "--shards", "8", "--out", few_inodes.disk / "set")
    assert done.returncode == 1 and re.search(r"only \d of its 4 inodes \(df -i\)", done.stderr), done


# ---- Errors of several ranks ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("mistake", ["missing", "labels", "rows"])
def test_an_error_of_the_input_is_printed_once(tmp_path, ranks, mistake):
    words = arrays(tmp_path)
    if mistake == "missing":
        words[0] = tmp_path / "none.h5"
    if mistake == "labels":
        words[-1] = "z"
    if mistake == "rows":
        words += ["--rows", "0:99"]
    done = subprocess.run([str(word) for word in (LAUNCHER, ranks, CONVERTER, "import", *words, "--out", tmp_path / "set")], cwd=ROOT,
                          capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode != 0 and done.stderr.count("ringtrain-data: error") == 1, done
    assert not list(tmp_path.glob("set*.h5"))
