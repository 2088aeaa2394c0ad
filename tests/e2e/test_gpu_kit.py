"""Tests the kit for a GPU. It is packed from a copy of this checkout, in which plans are made up and xz packs quickly. Then
Python unpacks it elsewhere, and it must run there without any variable of this machine."""
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import HANG_SECONDS, ROOT, built_with_cuda, last_step

pytestmark = pytest.mark.thorough

CONFIG = ROOT / "build" / "cuda.mk"
NAME = "ringtrain-gpu-kit"
UNPACK = f"import tarfile; tarfile.open('build/{NAME}.tar.xz').extractall"
MOST_MIB = 33


def pack(checkout, script="bundle.sh", **variables):
    words = [checkout / ".ci" / script, *(["gpu-kit"] if script == "bundle.sh" else [])]
    path = f"{checkout / 'quick'}:{os.environ['PATH']}"
    return subprocess.run(words, cwd=checkout, text=True, capture_output=True, timeout=300, env={**os.environ, "PATH": path, **variables})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    if not built_with_cuda():
        pytest.skip("this build has no CUDA")
    folder = tmp_path_factory.mktemp("checkout")
    for part in ".ci", "configs", "tests/gpu", "tests/bench", "src/backend/cuda/device/descriptions", "src/backend/cuda/device/recorded":
        shutil.copytree(ROOT / part, folder / part)
    shutil.copy(ROOT / "tests/mpirun.sh", folder / "tests")
    (folder / "results").mkdir()
    (folder / "bin").mkdir()
    for program in (ROOT / "bin").iterdir():
        (folder / "bin" / program.name).symlink_to(program)
    hopper = folder / "bin/libringtrain-hopper.so"
    if not hopper.exists():
        shutil.copy(ROOT / "bin/libcuda-stand-in.so", hopper)
    (folder / "build").mkdir()
    for part in "tests", "bench":
        (folder / "build" / part).symlink_to(ROOT / "build" / part)
    shutil.copy(ROOT / "build/config.mk", folder / "build")
    (folder / "build/cuda.mk").write_text(re.sub(r"^(CUDA_VERSIONS := .*?,)( sm_\w+)+$", r"\1 sm_90", CONFIG.read_text(), flags=re.M))
    plan = folder / "build/gpu-plans/NVIDIA H100-cudnn-91900/0123.plan"
    plan.parent.mkdir(parents=True)
    plan.write_bytes(os.urandom(1000))
    (folder / "quick").mkdir()
    (folder / "quick/xz").write_text(f"#!/bin/sh\nexec {shutil.which('xz')} -1\n")
    (folder / "quick/xz").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def kit(checkout, tmp_path_factory):
    made = pack(checkout, KIT_MIB="1000")
    assert made.returncode == 0, made.stdout + made.stderr
    elsewhere = tmp_path_factory.mktemp("another place")
    subprocess.run([sys.executable, "-c", f"{UNPACK}({str(elsewhere)!r})"], cwd=checkout, check=True)
    return elsewhere / NAME


def run(folder, *command):
    done = subprocess.run([str(word) for word in command], cwd=folder, text=True, capture_output=True, timeout=HANG_SECONDS,
                          stdin=subprocess.DEVNULL, env={})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_programs_start(kit, tmp_path):
    assert run(tmp_path, kit / "ringtrain", "--version").startswith("ringtrain ")
    assert "CudaKernels" in run(tmp_path, kit / "build/tests/gpu_tests", "--gtest_list_tests")
    assert "gate" in run(tmp_path, kit / "tests/gpu/check.sh", "--list").lower()
    assert (kit / "build/bench/cuda_commands").exists()


def test_two_ranks_train(kit, workshop):
    run_dir = workshop.folder / "run"
    experiment = workshop.experiment(run__dir=str(run_dir), stop__steps=3)
    printed = run(workshop.folder, kit / "tests/mpirun.sh", 2, kit / "ringtrain", "train", experiment)
    assert "2 ranks" in printed and last_step(run_dir) == 3


def test_the_data_of_the_benchmarks_are_made_there(kit):
    run(kit, kit / "tests/gpu/make_data.sh", "--tiny", "--device", "cpu")
    names = {path.name for path in (kit / "build/bench").glob("*-train-*.h5")}
    assert {re.sub(r"\d.*", "", name) for name in names} == {"raw", "real", "text"}


def test_it_holds_plans_and_nothing_that_only_unit_tests_need(kit):
    assert list((kit / "plans").rglob("*.plan"))
    assert (kit / "src/backend/cuda/device/recorded/plans.csv").exists()
    assert not (kit / "programs/unit_tests").exists() and not (kit / "tests/golden").exists()


def test_its_sizes_are_printed_and_limited(checkout, kit):
    shown = pack(checkout, "kit_sizes.sh", KIT_MIB="1000").stdout
    sizes = [float(size) for size in re.findall(r"^(?:build/\S+|tracked files|sum): ([\d.]+) MiB", shown, re.M)]
    assert len(sizes) == 3 and abs(sizes[0] + sizes[1] - sizes[2]) < 0.11, shown
    assert abs(sizes[0] - (checkout / f"build/{NAME}.tar.xz").stat().st_size / 2**20) < 0.06
    assert len(re.findall(r"^ +[\d.]+ MiB  \S", shown, re.M)) == 5
    refused = pack(checkout, "kit_sizes.sh", KIT_MIB="1")
    assert refused.returncode == 1 and "larger than KIT_MIB=1 MiB" in refused.stderr


@pytest.mark.parametrize("spoil, said", [
    (lambda folder: (folder / "build/cuda.mk").write_text("CUDA_STATE := on\nCUDA_VERSIONS := CUDA 13.0, NCCL 2.28.9, sm_80 sm_90\n"),
     "kernels for other GPUs"),
    (lambda folder: shutil.rmtree(folder / "build/gpu-plans"), "build/gpu-plans holds no plans"),
    (lambda folder: (folder / "bin/libringtrain-hopper.so").unlink(), "the library for Hopper is not built"),
])
def test_no_kit_is_made_without_one_of_its_parts(checkout, tmp_path, spoil, said):
    spoiled = tmp_path / "checkout"
    shutil.copytree(checkout, spoiled, symlinks=True, ignore=shutil.ignore_patterns("gpu-kit", "*.xz"))
    spoil(spoiled)
    done = pack(spoiled)
    assert done.returncode == 1 and said in done.stderr and not list((spoiled / "build").glob("*.xz")), done.stdout + done.stderr


def test_a_kit_of_this_checkout_is_small_enough():
    archive = ROOT / "build" / f"{NAME}.tar.xz"
    if not archive.exists():
        pytest.skip("no kit has been made here (make gpu-kit)")
    assert archive.stat().st_size <= MOST_MIB * 2**20
