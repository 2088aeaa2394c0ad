"""The jobs for which faults are drawn: tiny experiments on made data, and their undisturbed runs."""
import hashlib
import importlib.util
import json
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM, CONVERTER, LAUNCHER = ROOT / "bin" / "ringtrain", ROOT / "bin" / "ringtrain-data", ROOT / "tests" / "mpirun.sh"
TIMEOUT = 10  # communication.timeout_seconds of every job
START_TIMEOUT = 20  # RINGTRAIN_START_SECONDS of every job


def load_e2e_tools():
    spec = importlib.util.spec_from_file_location("e2e_tools", ROOT / "tests" / "e2e" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


e2e = load_e2e_tools()


@dataclass(frozen=True)
class Kind:
    """What is trained, and on how many ranks. `data` names one of the made data sets."""
    name: str
    ranks: int
    data: str
    changes: dict = field(default_factory=dict, hash=False, compare=False)
    command: str = "train"
    repeats: bool = True  # whether it repeats bit for bit. Asynchronous updates depend on who comes first


COMMON = {
    "name": "faults", "seed": 1,
    "model": {"kind": "char_lstm", "hidden": 16, "layers": 2, "dropout": 0.2},
    "batch": {"global": 24, "worker": 6},
    "optimizer": {"kind": "adam"},
    "learning_rate": {"base": 0.01, "warmup_steps": 5, "warmup_from": "zero"},
    "stop": {"steps": 24},
    "evaluate": {"every_epochs": 0, "every_steps": 8},
    "checkpoint": {"every_epochs": 0, "every_steps": 5, "keep": 3},
    "communication": {"timeout_seconds": TIMEOUT},
    "run": {"threads": 1, "log_every_steps": 4},
}
PICTURES = {
    "model": {"kind": "cnn"}, "data.image_size": 16, "data.augmentation": "pad_crop", "data.pad": 2, "data.flip": True,
    "batch": {"global": 16, "worker": 4}, "optimizer": {"kind": "sgd", "momentum": 0.9}, "learning_rate.base": 0.05,
    "stop.steps": 14, "evaluate.every_steps": 4, "checkpoint.every_steps": 3,
}
RESNET = {**PICTURES, "model": {"kind": "resnet", "depth": 18, "width": 16, "stem": "small"}, "stop.steps": 8,
          "evaluate.every_steps": 3, "checkpoint.every_steps": 2}
KINDS = {kind.name: kind for kind in [
    Kind("names-2", 2, "names"),
    Kind("names-3", 3, "names", {"batch": {"global": 24, "worker": 8}}),
    Kind("names-4", 4, "names"),
    Kind("text-2", 2, "text", {"batch": {"global": 8, "worker": 4}}),
    Kind("cnn-2", 2, "pictures", PICTURES),
    Kind("cnn-4", 4, "pictures", PICTURES),
    Kind("resnet-2", 2, "pictures", RESNET),
    Kind("server-2", 2, "names", {"parallel": {"kind": "server", "mode": "sync"}}),
    Kind("pipeline-2", 2, "names", {"parallel": {"kind": "pipeline", "stages": 2}, "batch": {"global": 24, "worker": 6, "micro": 3}}),
    Kind("fixed-2", 2, "names", {"communication.order": "fixed"}),
    Kind("fixed-4", 4, "names", {"communication.order": "fixed"}),
    Kind("shares-2", 2, "pictures", {**RESNET, "parallel": {"shard_state": True}}),
    Kind("async-3", 3, "names", {"parallel": {"kind": "server", "mode": "async", "servers": 1}, "batch": {"global": 24, "worker": 12}}, repeats=False),
    Kind("study-2", 2, "names", command="study"),
    Kind("batch-2", 2, "names", command="batch"),
]}

STUDY = "name: small\nexperiment: experiment.yaml\nranks_per_trial: 1\nrepeat: 3\n"


# ---- Data ----------------------------------------------------------------------------------------------------------

def make_pictures(folder):
    generator = numpy.random.default_rng(1)
    labels = numpy.arange(96) % 4
    pixels = generator.normal(100 + 30 * labels[:, None, None, None], 30, (96, 16, 16, 3)).clip(0, 255).astype(numpy.uint8)
    with h5py.File(folder / "arrays.h5", "w") as file:
        file["x"], file["y"] = pixels, labels
    done = subprocess.run([CONVERTER, "import", folder / "arrays.h5", "--images", "x", "--labels", "y", "--out", folder / "pictures",
                           "--encoding", "raw", "--rows", "0:64", "--validation-rows", "64:96", "--shards", "2"],
                          capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def make_data(folder):
    """Makes names, text and pictures, with two shards for each split."""
    folder.mkdir(parents=True)
    e2e.make_names(folder / "names")
    generator = random.Random(2)
    words = e2e.some_names(60, 3)
    e2e.convert("text", [" ".join(generator.choice(words) for _ in range(12)) for _ in range(120)], folder / "text",
                "--validation", "0.1")
    make_pictures(folder)


def experiment_of(kind, data, run_dir, changes=None):
    """Returns the text of the experiment file. `data` is the folder of the data sets. A study itself decides where its
    trials go."""
    tree = e2e.merged({**COMMON, "data": {"train": str(data / f"{kind.data}-train"), "validation": str(data / f"{kind.data}-validation")}},
                      {**kind.changes, **(changes or {})})
    if kind.command != "study":
        tree["run"].setdefault("dir", str(run_dir))
    return yaml.safe_dump(tree, sort_keys=False)


# ---- The state of a run on disk ------------------------------------------------------------------------------------

def digest_of(checkpoint, kind):
    """A digest of every number that a checkpoint carries from step to step. If the job does not repeat bit for bit, the
    digest is that of the names, the shapes, the step and the samples. Raises ValueError for a number that is not finite."""
    whole = hashlib.sha256()
    for name, values in sorted(e2e.arrays(checkpoint).items()):
        whole.update(name.encode())
        whole.update(values.tobytes() if kind.repeats else str(values.shape).encode())
        if not numpy.isfinite(values).all():
            raise ValueError(f"{name} is not finite")
    if not kind.repeats:
        with h5py.File(checkpoint) as file:
            whole.update(f"{file.attrs['step']} {file.attrs['samples']} {file.attrs['complete']}".encode())
    return whole.hexdigest()


SCHEDULED = e2e.CURVE.index("samples") + 1  # step, epoch and samples follow from the experiment alone


def curve_of(run_dir, kind):
    return {record[0]: list(record if kind.repeats else record[:SCHEDULED]) for record in e2e.curve(run_dir)}


def evaluations_of(run_dir, kind):
    return {r["step"]: [r["validation_targets"], *([r["validation_loss"], r["validation_accuracy"]] if kind.repeats else [])]
            for r in e2e.evaluations(run_dir)}


def run_dirs(kind, folder):
    """The run folders of the whole job: one, or one for each trial of a study."""
    if kind.command != "study":
        return {"run": folder / "run"}
    results = folder / "results" / "small"
    return {path.name: path for path in sorted(results.iterdir()) if path.is_dir()} if results.exists() else {}


class Undisturbed:
    """The results of a job without any fault, with a checkpoint of every step, and the number of its calls of each
    kind.

    curves, evaluations: run -> step -> numbers; digests: run -> step -> digest; calls: (call's name, rank) ->
    number."""

    def __init__(self, kind, curves, evaluations, digests, calls, seconds):
        self.kind = kind
        self.curves, self.evaluations, self.digests, self.calls = curves, evaluations, digests, calls
        self.seconds = seconds

    def last_step(self, run):
        return max(self.curves[run])


def _with_integers(tree):
    return {run: {int(step): value for step, value in steps.items()} for run, steps in tree.items()}


def undisturbed(kind, place, preload, catalogue, start):
    """Reads the results from `place`, or runs the job and keeps them there. `catalogue` maps names to rules.
    `start(kind, folder, ...)` runs a job."""
    kept = place / f"{kind.name}.json"
    stamp = f"{PROGRAM.stat().st_mtime_ns} {sorted(catalogue.items())} {COMMON} {kind.changes} {STUDY}"
    if kept.exists():
        tree = json.loads(kept.read_text())
        if tree["stamp"] == stamp:
            return Undisturbed(kind, _with_integers(tree["curves"]), _with_integers(tree["evaluations"]), _with_integers(tree["digests"]),
                               {tuple(key.rsplit(" ", 1)): n for key, n in tree["calls"].items()}, tree["seconds"])
    folder = place / kind.name
    subprocess.run(["rm", "-rf", folder], check=True)
    folder.mkdir(parents=True)
    counts = folder / "counts"
    rules = ";".join(f"{rule},from=1000000000000,do=EIO" for rule in catalogue.values())
    job = start(kind, folder, {}, rules=rules, more={"RINGTRAIN_FAULTS_COUNTS": str(counts)})
    result = job.wait(120)
    assert result.code == 0, f"{kind.name} does not even run without faults: {result}"
    names = list(catalogue)
    calls = {}
    for line in counts.read_text().splitlines() if counts.exists() else []:
        rule, rank, number = map(int, line.split())
        calls[names[rule], str(rank)] = number
    seconds = result.seconds
    folder = place / f"{kind.name}-all"
    subprocess.run(["rm", "-rf", folder], check=True)
    folder.mkdir(parents=True)
    result = start(kind, folder, {"checkpoint.every_steps": 1, "checkpoint.keep": 1000}).wait(120)
    assert result.code == 0, f"{kind.name} does not even run without faults: {result}"
    runs = run_dirs(kind, folder)
    tree = {
        "stamp": stamp, "seconds": seconds,
        "curves": {name: curve_of(path, kind) for name, path in runs.items()},
        "evaluations": {name: evaluations_of(path, kind) for name, path in runs.items()},
        "digests": {name: {int(c.stem[5:]): digest_of(c, kind) for c in e2e.checkpoints(path)} for name, path in runs.items()},
        "calls": {f"{name} {rank}": number for (name, rank), number in calls.items()},
    }
    kept.write_text(json.dumps(tree))
    subprocess.run(["rm", "-rf", place / kind.name, folder], check=True)
    return undisturbed(kind, place, preload, catalogue, start)
