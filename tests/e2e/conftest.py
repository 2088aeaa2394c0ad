"""Helpers and fixtures that the end-to-end tests share. The tests start bin/ringtrain as a user does, on small data of
their own."""
import copy
import itertools
import json
import os
import random
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
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bin" / "ringtrain"
CONVERTER = ROOT / "bin" / "ringtrain-data"
LAUNCHER = ROOT / "tests" / "mpirun.sh"

EXPERIMENT = {
    "name": "e2e",
    "seed": 1,
    "model": {"kind": "char_lstm", "hidden": 16, "layers": 2, "dropout": 0.2},
    "batch": {"global": 32, "worker": 8},
    "optimizer": {"kind": "adam"},
    "learning_rate": {"base": 0.01, "warmup_steps": 5, "warmup_from": "zero"},
    "stop": {"steps": 20},
    "run": {"threads": 1, "log_every_steps": 5},
}


def pytest_configure(config):
    config.addinivalue_line("markers", "thorough: not in the fast tier of tests/run_tests")
    config.addinivalue_line("markers", "fast_cases(ids): the other cases of this parametrized test are marked thorough; without ids there are none")


HANG_SECONDS = 180  # a job that takes longer hangs; a shared machine is several times slower at times
FAST_CASES = 4  # of a parametrized test without the mark fast_cases: the first, the last, and others at equal distances


def spread(cases):
    """Returns FAST_CASES of the cases, or all if there are no more."""
    if len(cases) <= FAST_CASES:
        return cases
    return [cases[i * (len(cases) - 1) // (FAST_CASES - 1)] for i in range(FAST_CASES)]


@pytest.hookimpl(tryfirst=True)  # before pytest chooses tests by their marks
def pytest_collection_modifyitems(items):
    tables = {}
    for item in items:
        if hasattr(item, "callspec"):
            tables.setdefault((item.path, item.originalname), []).append(item)
    for (path, name), cases in tables.items():
        ids = [item.callspec.id for item in cases]
        marks = [mark.args for mark in cases[0].iter_markers("fast_cases")]
        fast = spread(ids) if not marks else marks[0] or ids
        if len(ids) > 1 and not set(fast) <= set(ids):  # one case alone was asked for by its name
            raise pytest.UsageError(f"{path}: {name} has no case {', '.join(set(fast) - set(ids))}")
        for item in cases:
            if item.callspec.id not in fast:
                item.add_marker(pytest.mark.thorough)


# A script that runs the tests in the background makes them ignore SIGINT, and every process started here would ignore
# it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def built_with_cuda():
    """Whether this build has the library for GPUs."""
    settings = ROOT / "build" / "cuda.mk"
    return settings.exists() and "CUDA_STATE := on\n" in settings.read_text() and (ROOT / "bin" / "libringtrain-cuda.so").exists()


def environment(extra=None):
    """The caller's environment without variables of a batch system or of an outer run."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_COMM_", "PMI_", "PMIX_", "OMP_"))}
    return {**kept, **(extra or {})}


class Result:
    """A command's exit code, output and time."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds
        self.text = out + err

    def __repr__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[1])


def children_of(launcher_pid):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and parent_of(entry.name) == launcher_pid:
                found.append(int(entry.name))
        except (OSError, IndexError):
            pass  # the process ended meanwhile
    return found


def processes_of(launcher_pid):
    """Maps each rank to the pid of its ringtrain process, for the processes that this launcher's mpirun has started."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            mpirun = parent_of(entry.name)
            if launcher_pid not in (mpirun, parent_of(mpirun)) or b"ringtrain" not in (entry / "cmdline").read_bytes():
                continue
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except (OSError, IndexError):
            continue  # the process ended meanwhile
        for variable in variables:
            match = re.fullmatch(r"(?:OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=(\d+)", variable)
            if match:
                found[int(match[1])] = int(entry.name)
    return found


class Job:
    """A running command. Its output goes to files, so that no pipe fills up."""

    def __init__(self, command, folder, env=None, cwd=ROOT):
        folder.mkdir(parents=True, exist_ok=True)
        self.command = [str(word) for word in command]
        self.out_path, self.err_path = folder / "stdout", folder / "stderr"
        self.started = time.monotonic()
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd,
                                            env=environment(env))
        self.pids = {}

    def ranks(self):
        """Maps ranks to pids. They are remembered, so that kill() finds processes that the launcher has lost."""
        self.pids.update(processes_of(self.process.pid))
        return self.pids

    def wait(self, timeout=HANG_SECONDS):
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{' '.join(self.command)}\ndid not end within {timeout} s\n{self.result(None)}")
        return self.result(code)

    def result(self, code):
        return Result(code, self.out_path.read_text(errors="replace"), self.err_path.read_text(errors="replace"),
                      time.monotonic() - self.started)

    def wait_for_step(self, run_dir, step, timeout=HANG_SECONDS):
        """Waits until metrics.jsonl has this step. Fails if the job ends before that."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if last_step(run_dir) >= step:
                self.ranks()
                return
            if self.process.poll() is not None:
                pytest.fail(f"the job ended before step {step}: {self.result(self.process.returncode)}")
            time.sleep(0.02)
        self.kill()
        pytest.fail(f"no step {step} within {timeout} s: {self.result(None)}")

    def kill(self):
        """Kills the launcher and all ranks with SIGKILL. mpirun then ends by itself, with the ranks that it was just
        starting. This function waits for its end."""
        self.ranks()
        mpirun = children_of(self.process.pid)
        for pid in [self.process.pid, *self.pids.values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        deadline = time.monotonic() + 10  # a test may have stopped mpirun
        while any(map(is_alive, mpirun)) and time.monotonic() < deadline:
            time.sleep(0.01)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def records(run_dir):
    """All objects of metrics.jsonl. A last line that a kill has cut off is left out."""
    path = Path(run_dir) / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def steps(run_dir):
    return [r for r in records(run_dir) if "loss" in r]


def evaluations(run_dir):
    return [r for r in records(run_dir) if "validation_loss" in r]


def last_step(run_dir):
    try:
        lines = (Path(run_dir) / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except OSError:
        return 0
    whole = [line for line in lines if line.endswith(b"\n")]
    return json.loads(whole[-1])["step"] if whole else 0


# These values must be the same when a run is repeated. Times differ.
CURVE = ("step", "epoch", "samples", "loss", "lr", "grad_norm")


def curve(run_dir):
    return [tuple(record[key] for key in CURVE) for record in steps(run_dir)]


def checkpoints(run_dir):
    return sorted((Path(run_dir) / "checkpoints").glob("step-*.h5"))


def arrays(path):
    """Maps names to values, for every training array of a checkpoint."""
    found = {}
    with h5py.File(path, "r") as file:
        def visit(name, item):
            if isinstance(item, h5py.Dataset) and item.dtype == numpy.float32:
                found[name] = item[()]
        file.visititems(visit)
    return found


def assert_same_bits(run_a, run_b):
    """Expects the same curve and the same newest checkpoint, bit for bit."""
    a, b = curve(run_a), curve(run_b)
    assert a == b, f"first difference: {next((pair for pair in zip(a, b) if pair[0] != pair[1]), (len(a), len(b)))}"
    path_a, path_b = checkpoints(run_a)[-1], checkpoints(run_b)[-1]
    assert path_a.name == path_b.name
    arrays_a, arrays_b = arrays(path_a), arrays(path_b)
    assert arrays_a.keys() == arrays_b.keys() and arrays_a
    for name, values in arrays_a.items():
        assert values.tobytes() == arrays_b[name].tobytes(), f"{name} differs"


def assert_close(run_a, run_b, gradient=1e-5, loss=1e-4):
    """Expects the same run up to rounding: the first gradient, the losses of all steps and the validation."""
    a, b = steps(run_a), steps(run_b)
    assert [r["step"] for r in a] == [r["step"] for r in b]
    assert a[0]["grad_norm"] == pytest.approx(b[0]["grad_norm"], rel=gradient)
    assert a[0]["loss"] == pytest.approx(b[0]["loss"], rel=gradient)
    assert [r["loss"] for r in a] == pytest.approx([r["loss"] for r in b], rel=loss)
    assert [r["lr"] for r in a] == [r["lr"] for r in b]
    # A run in parts also has evaluations at the ends of its parts.
    by_step_a, by_step_b = ({e["step"]: e for e in evaluations(run)} for run in (run_a, run_b))
    both = by_step_a.keys() & by_step_b.keys()
    assert both or not by_step_a
    for step in both:
        assert by_step_a[step]["validation_targets"] == by_step_b[step]["validation_targets"]
        assert by_step_a[step]["validation_loss"] == pytest.approx(by_step_b[step]["validation_loss"], rel=loss)


def merged(base, changes):
    """Returns `base` with dotted keys replaced, for example {"model.hidden": 24}."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return result


class Workshop:
    """A test's own folder, and the commands that run in it."""

    def __init__(self, folder, data):
        self.folder, self.data = folder, data
        self.numbers = itertools.count()
        self.jobs = []

    def experiment(self, **changes):
        """Writes the experiment file. Keys have __ for the dot: model__hidden=24."""
        data = {"data": {"train": f"{self.data}-train", "validation": f"{self.data}-validation"}}
        changes = {key.replace("__", "."): value for key, value in changes.items()}
        path = self.folder / f"experiment-{next(self.numbers)}.yaml"
        path.write_text(yaml.safe_dump(merged({**EXPERIMENT, **data}, changes), sort_keys=False))
        return path

    def start(self, *words, ranks=1, env=None, cwd=ROOT):
        """Starts any ringtrain command in the background."""
        launcher = [LAUNCHER, ranks] if ranks else []
        # Open MPI's shared memory stays after kill -9. Here it lies in the test's folder and is removed with it.
        env = {"OMPI_MCA_btl_vader_backing_directory": str(self.folder), **(env or {})}
        job = Job([*launcher, PROGRAM, *words], self.folder / f"output-{next(self.numbers)}", env, cwd)
        self.jobs.append(job)
        return job

    def run(self, *words, ranks=1, timeout=HANG_SECONDS, env=None, cwd=ROOT):
        return self.start(*words, ranks=ranks, env=env, cwd=cwd).wait(timeout)

    def start_training(self, name, *, ranks=1, resume=False, env=None, **changes):
        run_dir = self.folder / name
        words = ["train", self.experiment(run__dir=str(run_dir), **changes), *(["--resume"] if resume else [])]
        return run_dir, self.start(*words, ranks=ranks, env=env)

    def train(self, name, *, code=0, timeout=HANG_SECONDS, **arguments):
        """Trains to the end in <folder>/<name> and returns this folder. The exit code must be `code`."""
        run_dir, job = self.start_training(name, **arguments)
        result = job.wait(timeout)
        assert result.code == code, result
        return run_dir

    def train_badly(self, name, *, timeout=HANG_SECONDS, **arguments):
        """Expects a training that ends with an error. Returns its result."""
        _, job = self.start_training(name, **arguments)
        result = job.wait(timeout)
        assert result.code not in (0, 85), result
        return result


def start_ranks(workshop, ranks, setup, *words, env=None):
    """Starts any ringtrain command. Each rank's shell runs `setup` first, for example "ulimit -f 8"."""
    env = {"OMPI_MCA_btl_vader_backing_directory": str(workshop.folder), **(env or {})}
    job = Job([LAUNCHER, ranks, "bash", "-c", f'{setup}\nexec "$0" "$@"', PROGRAM, *words],
              workshop.folder / f"output-{next(workshop.numbers)}", env)
    workshop.jobs.append(job)
    return job


def some_names(count, seed):
    """Makes names of syllables, so that they are short, distinct and learnable."""
    generator = random.Random(seed)
    syllables = ["an", "bel", "co", "da", "el", "fi", "gus", "ha", "is", "jo", "ka", "lo", "mi", "ne", "ru", "sa", "to"]
    names = set()
    while len(names) < count:
        names.add("".join(generator.choice(syllables) for _ in range(generator.randint(1, 3))))
    return sorted(names)


def convert(kind, lines, prefix, *options):
    source = Path(f"{prefix}.txt")
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run([CONVERTER, kind, source, "--out", prefix, "--shards", "2", *options], cwd=ROOT,
                          capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return prefix


def make_names(prefix, count=120, seed=1):
    return convert("names", some_names(count, seed), prefix)


@pytest.fixture(scope="session")
def names(tmp_path_factory):
    """The prefix of a small data set of names, with about 17 steps of 32 samples per epoch."""
    for program in PROGRAM, CONVERTER:
        assert program.exists(), f"{program} is missing: make all"
    return make_names(tmp_path_factory.mktemp("names") / "names")


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """The prefix of a small data set of running text."""
    generator = random.Random(2)
    words = some_names(60, 3)
    lines = [" ".join(generator.choice(words) for _ in range(12)) for _ in range(120)]
    return convert("text", lines, tmp_path_factory.mktemp("text") / "text", "--validation", "0.1")


@pytest.fixture
def workshop(tmp_path, names):
    shop = Workshop(tmp_path, names)
    yield shop
    for job in shop.jobs:
        if job.process.poll() is None:
            job.kill()
    shutil.rmtree(tmp_path, ignore_errors=True)


def assert_drawn(file):
    """Expects that results/plot_bench.py makes a picture of the table that a bench command wrote."""
    pytest.importorskip("matplotlib")
    picture = file.with_suffix(".png")
    done = subprocess.run([sys.executable, ROOT / "results/plot_bench.py", file, "-o", picture], capture_output=True, text=True,
                          timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
