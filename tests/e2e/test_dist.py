"""Tests what packagers use: the archive of `make dist` and the Apptainer definition. Nothing is built. `make lint` checks the
recipe for Spack."""
import os
import re
import subprocess
import tarfile

import pytest

from conftest import HANG_SECONDS, ROOT

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")


def output_of(*words, cwd=ROOT, **variables):
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(words, cwd=cwd, text=True, capture_output=True, timeout=HANG_SECONDS, env=env | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def tracked_files():
    """The mode of every file of the last commit."""
    lines = output_of("git", "ls-tree", "-r", "-z", "HEAD").rstrip("\0").split("\0")
    return {name: facts.split()[0] for facts, name in (line.split("\t") for line in lines)}


@needs_git
@pytest.mark.thorough
def test_the_archive_has_the_files_of_the_commit_and_make_works_there(tmp_path):
    commit = output_of("git", "describe", "--always").strip()
    archive = ROOT / output_of("make", "--no-print-directory", "dist").strip()
    assert archive == ROOT / "build" / f"ringtrain-{commit}.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path)
    folder, = tmp_path.iterdir()
    assert folder.name == f"ringtrain-{commit}"
    found, tracked = files_of(folder), tracked_files()
    assert set(found) == set(tracked) | {"COMMIT"} and found["COMMIT"].read_text() == commit
    assert [name for name, mode in tracked.items() if mode == "100755" and not os.access(found[name], os.X_OK)] == []
    assert "make demo" in output_of("make", "help", cwd=folder)
    assert ".ci/setup.sh" in output_of("make", "-n", "setup", cwd=folder)


def sections_of_the_definition():
    text = (ROOT / ".ci" / "apptainer.def").read_text()
    return dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))


@needs_git
def test_the_container_gets_the_files_of_the_commit_and_nothing_else(tmp_path):
    output_of("sh", "-c", sections_of_the_definition()["setup"], APPTAINER_ROOTFS=str(tmp_path))
    assert set(files_of(tmp_path / "src")) == set(tracked_files()) | {"COMMIT"}
