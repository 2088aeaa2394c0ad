"""Runs the job of `make demo` in miniature: data_prep/demo.sh in a checkout of its own, on few names and with a small
model."""
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from conftest import HANG_SECONDS, ROOT, environment, some_names

SMALL = {"model": {"hidden": 16}, "batch": {"global": 32, "worker": 8}, "stop": {"epochs": 2}, "run": {"threads": 1}}


@pytest.fixture
def checkout(tmp_path):
    """A checkout with links to programs and scripts, and with its own folders where the demo writes."""
    for name in "bin", "tests", "src":
        (tmp_path / name).symlink_to(ROOT / name)
    for name in "data_prep/demo.sh", "data_prep/proper_names.sh", "results/plot.py":
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    experiment = yaml.safe_load((ROOT / "configs" / "names.yaml").read_text())
    for section, keys in SMALL.items():
        experiment[section] = {**experiment.get(section, {}), **keys}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "names.yaml").write_text(yaml.safe_dump(experiment))
    return tmp_path


def demo(checkout, **variables):
    env = environment({"PYTHON": sys.executable, "OMPI_MCA_btl_vader_backing_directory": str(checkout), **variables})
    return subprocess.run(["data_prep/demo.sh"], cwd=checkout, env=env, capture_output=True, text=True, timeout=HANG_SECONDS)


def test_the_demo_goes_from_names_to_a_curve(checkout):
    pytest.importorskip("matplotlib")
    names = some_names(120, 1)
    (checkout / "mine.csv").write_text("id,called\n" + "".join(f"{i},{name}\n" for i, name in enumerate(names)))
    done = demo(checkout, NAMES="mine.csv", COLUMN="called")
    assert done.returncode == 0, done.stdout + done.stderr
    run = checkout / "results" / "my_names" / os.readlink(checkout / "results" / "my_names" / "latest")
    record = json.loads((run / "run.json").read_text())
    assert record["outcome"] == "finished" and record["starts"][0]["ranks"] == 2
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    invented = done.stdout.split("not in the data\n")[1].split("\n\n")[0].splitlines()[:20]
    assert len(set(invented)) == 20 and not set(names) & {name.strip().lower() for name in invented}, done.stdout
    # The commands that the demo suggests at its end work from there.
    commands = re.findall(r"^bin/ringtrain (?:sample|plan) .*", done.stdout, re.MULTILINE)
    assert len(commands) == 2, done.stdout
    for command in commands:
        words = shlex.split(command)
        overrides = [] if "sample" in words else ["name=my_names", *(f"data.{part}=data_prep/data/my_names-{part}" for part in ("train", "validation"))]
        tried = subprocess.run([*words, *overrides], cwd=checkout, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert tried.returncode == 0, tried.stderr


def test_names_that_cannot_be_read_end_it_at_once(checkout):
    done = demo(checkout, NAMES="nowhere.csv")
    assert done.returncode == 1 and "NAMES=nowhere.csv cannot be read" in done.stderr, done.stderr
    assert not (checkout / "data_prep" / "data").exists()
