"""Tests a build with CUDA on a machine without a GPU. In a build without CUDA, the tests that need CUDA are skipped.
The others run in any build."""
import os
import re
import shutil
import subprocess

import pytest

from conftest import PROGRAM, ROOT, built_with_cuda

with_cuda = pytest.mark.skipif(not built_with_cuda(), reason="this build is without CUDA")


def run(*command, **settings):
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env={**os.environ, **settings})


def setting(name):
    return re.search(rf"^{name} := (.*)$", (ROOT / "build" / "cuda.mk").read_text(), re.M).group(1)


def test_the_program_needs_no_cuda_library_to_start():
    needed = run("ldd", PROGRAM).stdout
    assert "libc.so" in needed
    assert not re.search(r"libcuda|libcudnn|libnccl|libnvrtc|libcublas", needed), needed


@with_cuda
def test_no_kernel_spills_and_all_take_what_the_recorded_table_says():
    done = run("tests/gpu/resources.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
@with_cuda
def test_kernels_for_hopper_consist_of_what_their_tiles_say():
    if not (ROOT / "bin" / "libringtrain-hopper.so").exists():
        pytest.skip("the library for Hopper is not built (make hopper)")
    done = run("tests/gpu/hopper.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
@with_cuda
def test_a_build_without_cutlass_says_so_in_one_line_and_goes_on(tmp_path):
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    done = subprocess.run([".ci/configure_hopper.sh", "hopper.mk"], cwd=tmp_path, text=True, capture_output=True,
                          env={**os.environ, "NVCC": setting("NVCC"), "PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_NO_CACHE_DIR": "1"})
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *CUTLASS +none, no library for Hopper: CUTLASS could not be fetched: .+$", done.stdout, re.M), done.stdout
    assert "CUTLASS_INCLUDE := \n" in (tmp_path / "hopper.mk").read_text()


@pytest.mark.thorough
@with_cuda
def test_a_sites_own_cutlass_is_taken_or_named(tmp_path):
    done = run(".ci/configure_hopper.sh", tmp_path / "hopper.mk", NVCC=setting("NVCC"), CUTLASS_HOME="/nowhere")
    assert done.returncode != 0 and "CUTLASS_HOME=/nowhere" in done.stderr, done.stdout + done.stderr
    own = ROOT / "build" / "cutlass"
    if not own.exists():
        pytest.skip("CUTLASS is not here")
    done = run(".ci/configure_hopper.sh", tmp_path / "hopper.mk", NVCC=setting("NVCC"), CUTLASS_HOME=str(own))
    assert done.returncode == 0, done.stderr
    assert f"CUTLASS_INCLUDE := {own}/include\n" in (tmp_path / "hopper.mk").read_text()


@with_cuda
def test_the_version_names_cuda_cudnn_nccl_and_the_kinds_of_gpu():
    line = re.search(r"^GPU kernels: (.*)$", run(PROGRAM, "--version").stdout, re.M).group(1)
    for part in "CUDA", "cuDNN", "NCCL":
        assert part in line
    code = setting("CUDA_GENCODE")
    assert set(re.findall(r"sm_\w+", line)) == set(re.findall(r"code=(sm_\w+)", code)) != set()


NOWHERE = [{"NCCL_HOME": "/nowhere"}, {"CUDNN_HOME": "/nowhere"}, {"CUDNN_FRONTEND_HOME": "/nowhere"}, {"CUDA_HOME": "/nowhere"},
           {"CUDA_ARCHITECTURES": "1"}]


@with_cuda
@pytest.mark.parametrize("settings", NOWHERE, ids=lambda settings: next(iter(settings)))
def test_what_keeps_cuda_out_is_an_error_when_it_was_asked_for(settings, tmp_path):
    done = run(".ci/configure_cuda.sh", tmp_path / "cuda.mk", CUDA="1", **settings)
    assert done.returncode != 0 and next(iter(settings)) in done.stderr, done.stdout + done.stderr
    assert not (tmp_path / "cuda.mk").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{"CUDA_HOME": "/nowhere"}, {"CUDA": "0"}],
                         ids=lambda settings: next(iter(settings)))
def test_a_build_without_cuda_says_why(settings, tmp_path):
    done = run(".ci/configure_cuda.sh", tmp_path / "cuda.mk", **{"CUDA": "auto", **settings})
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *CUDA +off \(.+\)$", done.stdout, re.M), done.stdout
    config = (tmp_path / "cuda.mk").read_text()
    assert "CUDA_STATE := off\n" in config and "CUDA_LIBS := \n" in config
