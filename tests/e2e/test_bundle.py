"""Tests the relocatable folder. Unpacked elsewhere, it must run with only its own files, the kernel and a shell."""
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from conftest import HANG_SECONDS, ROOT, curve, last_step

pytestmark = pytest.mark.thorough

ARCHIVE = ROOT / "build" / f"ringtrain-bundle-{os.uname().machine}.tar.gz"
# This environment has no variable of this machine's build or MPI.
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    made = subprocess.run([ROOT / ".ci" / "bundle.sh", "bundle"], cwd=ROOT, text=True, capture_output=True)
    assert made.returncode == 0, made.stdout + made.stderr
    elsewhere = tmp_path_factory.mktemp("another place")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(elsewhere)
    return elsewhere / "ringtrain-bundle"


def run(folder, *command, **settings):
    return subprocess.run([str(word) for word in command], cwd=folder, text=True, capture_output=True, timeout=HANG_SECONDS,
                          stdin=subprocess.DEVNULL, env={**BARE, **settings})


def train(bundle, workshop, *launcher):
    """Trains three steps. Returns the run's folder and the output."""
    run_dir = workshop.folder / "run"
    done = run(workshop.folder, *launcher, bundle / "ringtrain", "train", workshop.experiment(run__dir=str(run_dir), stop__steps=3))
    assert done.returncode == 0, done.stdout + done.stderr
    assert last_step(run_dir) == 3
    return run_dir, done.stdout


def test_all_libraries_are_the_folders_own_and_none_is_cudas(bundle):
    loader = next((bundle / "lib").glob("ld-*.so.*"))
    for program in sorted((bundle / "programs").iterdir()):
        listed = run(bundle, loader, "--library-path", bundle / "lib", "--list", program).stdout
        paths = re.findall(r"=> (/.*?) \(0x", listed)
        assert paths, listed
        assert not [path for path in paths if not Path(path).is_relative_to(bundle)], listed
    names = " ".join(path.name for path in (bundle / "lib").iterdir())
    assert not re.search(r"libcuda|libcudnn|libnccl|libcublas|libnvrtc", names), names


def test_the_library_for_hopper_is_in_it_and_needs_nothing_else(bundle):
    library = bundle / "bin" / "libringtrain-hopper.so"
    if not (ROOT / "bin" / library.name).exists():
        pytest.skip("the library for Hopper is not built (make hopper)")
    loader = next((bundle / "lib").glob("ld-*.so.*"))
    paths = re.findall(r"=> (/.*?) \(0x", run(bundle, loader, "--library-path", bundle / "lib", "--list", library).stdout)
    assert paths and not [path for path in paths if not Path(path).is_relative_to(bundle)], paths


def test_it_trains_three_steps_from_another_folder(bundle, workshop):
    run_dir, _ = train(bundle, workshop)
    assert curve(run_dir) == curve(workshop.train("installed", stop__steps=3))


def test_its_own_mpirun_trains_on_two_ranks(bundle, workshop):
    if not (bundle / "bin" / "mpirun").exists():
        pytest.skip("the MPI of this build is not Open MPI, whose mpirun the bundle brings")
    _, printed = train(bundle, workshop, bundle / "tests" / "mpirun.sh", 2)
    assert "2 ranks" in printed, printed


def test_its_tests_run(bundle):
    done = run(bundle, bundle / "build" / "tests" / "unit_tests", "--gtest_filter=CudaLibraries.*:PackedPlans.*")
    assert done.returncode == 0 and "[  PASSED  ]" in done.stdout, done.stdout + done.stderr
