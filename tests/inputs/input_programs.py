"""Starts the programs, and trains for a few steps on any data set."""
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import h5py
import yaml

from jobs import CONVERTER, LAUNCHER, PROGRAM, ROOT  # of tests/faults

SECONDS = 60  # after which a command hangs


@dataclass
class Done:
    code: int | None  # None: the command was killed after SECONDS
    out: str
    err: str
    what: str


def run(words, ranks=1, **env):
    """Runs a command on some ranks. Its process group is killed when it takes too long."""
    words = [str(word) for word in ([LAUNCHER, ranks] if ranks > 1 else []) + words]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "OMPI_COMM_", "PMI_", "PMIX_", "OMP_"))}
    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**environment, **env}, start_new_session=True)
    what = f"{Path(words[2] if ranks > 1 else words[0]).name} {words[3 if ranks > 1 else 1]}" + (f" on {ranks} ranks" if ranks > 1 else "")
    try:
        out, err = process.communicate(timeout=SECONDS)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        code = None
    return Done(code, out.decode(errors="replace"), err.decode(errors="replace"), what)


def convert(words, prefix, ranks=1, *more):
    prefix.parent.mkdir(parents=True, exist_ok=True)
    return run([CONVERTER, *words, "--out", prefix, *more], ranks)


def train(prefix, run_dir, ranks=1, threads=1, split="train"):
    """Trains for an epoch of few steps, so that every record is read."""
    path = sorted(prefix.parent.glob(f"{prefix.name}-{split}-?????-of-?????.h5"))
    kind, samples = "image", 8
    try:
        with h5py.File(path[0]) as file:
            kind = e2e_text(file.attrs["kind"])
            samples = int(file.attrs["num_samples_total"])
            running = "tokens" in file and file["tokens"].ndim == 1
    except (OSError, KeyError, IndexError, ValueError, TypeError):
        running = False
    batch = max(2, min(8, samples) // 2 * 2)
    tree = {"name": "input", "seed": 1, "data": {"train": f"{prefix}-{split}"}, "batch": {"global": batch, "worker": batch // 2},
            "optimizer": {"kind": "sgd"}, "learning_rate": {"base": 0.02}, "stop": {"epochs": 1}, "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0}, "run": {"dir": str(run_dir), "threads": threads, "log_every_steps": 1000}}
    if kind == "text":
        tree["model"] = {"kind": "char_lstm", "hidden": 8, "layers": 1}
        if running:
            tree["data"]["sequence"] = max(1, min(8, samples // 2 - 1))
            tree["batch"] = {"global": 2, "worker": 1}
            tree["stop"] = {"steps": min(200, max(1, samples // (2 * tree["data"]["sequence"])))}
    else:
        tree["model"] = {"kind": "cnn"}
        tree["data"].update(image_size=8, resize=8, augmentation="none", flip=False)
    if not running:  # a last step takes the rest of the epoch
        tree["stop"] = {"steps": min(200, -(-samples // batch))}
    experiment = Path(f"{run_dir}.yaml")
    experiment.parent.mkdir(parents=True, exist_ok=True)
    experiment.write_text(yaml.safe_dump(tree))
    return run([PROGRAM, "train", experiment], ranks)


def e2e_text(value):
    return value.decode() if isinstance(value, bytes) else str(value)
