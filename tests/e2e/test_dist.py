"""Tests what packagers use: the archive of `make dist`, the Apptainer definition and the Spack recipe. Nothing is built."""
import ast
import os
import re
import subprocess
import tarfile

import pytest

from conftest import ROOT

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")


def output_of(*words, cwd=ROOT, **variables):
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(words, cwd=cwd, text=True, capture_output=True, timeout=60, env=env | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def tracked_files():
    """The mode of every file of the last commit."""
    lines = output_of("git", "ls-tree", "-r", "-z", "HEAD").rstrip("\0").split("\0")
    return {name: facts.split()[0] for facts, name in (line.split("\t") for line in lines)}


@needs_git
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


@needs_git
def test_the_tracked_files_stay_small():
    """A machine with a GPU gets the checkout and a kit of programs through a narrow door."""
    names = {name for name in output_of("git", "ls-files", "-z").split("\0") if os.path.lexists(ROOT / name) and name}
    sizes = {name: os.lstat(ROOT / name).st_size for name in names}
    largest = [f"{name}: {sizes[name]}" for name in sorted(sizes, key=sizes.get)[:-9:-1]]
    assert len(sizes) > 1000 and sum(sizes.values()) < 10 * 2**20, (sum(sizes.values()) / 2**20, largest)
    studies = {name: size for name, size in sizes.items() if name.startswith("results/studies/")}
    assert 0 < sum(studies.values()) < 2 * 2**20 * len({name.split("/")[2] for name in studies})


def sections_of_the_definition():
    text = (ROOT / ".ci" / "apptainer.def").read_text()
    return dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))


@needs_git
def test_the_container_gets_the_files_of_the_commit_and_nothing_else(tmp_path):
    output_of("sh", "-c", sections_of_the_definition()["setup"], APPTAINER_ROOTFS=str(tmp_path))
    assert set(files_of(tmp_path / "src")) == set(tracked_files()) | {"COMMIT"}


def test_the_parts_of_the_container_are_shell_scripts():
    for name in "setup", "post", "environment", "test", "runscript":
        output_of("sh", "-n", "-c", sections_of_the_definition()[name])


def test_the_recipe_for_spack_names_every_library_that_the_build_looks_for():
    recipe = (ROOT / ".ci/spack/spack_repo/ringtrain/packages/ringtrain/package.py").read_text()
    wanted = set(re.findall(r"find_library (\w+_HOME)", (ROOT / ".ci" / "configure.sh").read_text()))
    given = {node.value for node in ast.walk(ast.parse(recipe)) if isinstance(node, ast.Constant) and str(node.value).endswith("_HOME")}
    assert len(wanted) > 6 and wanted <= given, wanted - given
    lines = recipe.splitlines()
    assert max(map(len, lines)) < 100  # the limit of `spack style`
    assert "parents[6]" in recipe and (ROOT / ".ci/spack/spack_repo/ringtrain/packages/ringtrain/package.py").parents[6] == ROOT
