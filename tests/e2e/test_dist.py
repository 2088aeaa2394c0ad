"""Tests `make dist`: the archive has the files of the last commit and its name, and make works there. Nothing is built."""
import os
import subprocess
import tarfile

import pytest

from conftest import ROOT


def output_of(*words, cwd=ROOT):
    done = subprocess.run(words, cwd=cwd, text=True, capture_output=True, timeout=60,
                          env={name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_the_archive_has_the_files_of_the_commit_and_make_works_there(tmp_path):
    commit = output_of("git", "describe", "--always").strip()
    archive = ROOT / output_of("make", "--no-print-directory", "dist").strip()
    assert archive == ROOT / "build" / f"ringtrain-{commit}.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path)
    archive.unlink()
    folder, = tmp_path.iterdir()
    assert folder.name == f"ringtrain-{commit}" and (folder / "COMMIT").read_text() == commit
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}
    tracked = {}
    for line in output_of("git", "ls-tree", "-r", "-z", "HEAD").rstrip("\0").split("\0"):
        facts, name = line.split("\t")
        tracked[name] = facts.split()[0]
    assert set(found) == set(tracked) | {"COMMIT"}
    assert [name for name, mode in tracked.items() if mode == "100755" and not os.access(found[name], os.X_OK)] == []
    assert "make demo" in output_of("make", "help", cwd=folder)
    assert ".ci/setup.sh" in output_of("make", "-n", "setup", cwd=folder)
