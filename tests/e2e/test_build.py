"""Tests what the build promises: vectorised kernels for each instruction set, and errors that name the variable."""
import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT

KERNELS = ROOT / "build" / "obj" / "backend" / "cpu"
# Maps each instruction set to the registers that its inner loops must use.
REGISTERS = {"baseline": "xmm", "avx2": "ymm", "avx512": "zmm", "avx512_bf16": "zmm"}
HOT = ["lstm_forward_row", "lstm_backward_row", "cross_entropy", "adam", "sgd", "lamb", "rmsprop", "schedule_free", "dropout_mask"]

needs_x86_objects = pytest.mark.skipif(not (KERNELS / "kernels.avx2.o").exists() or shutil.which("objdump") is None,
                                       reason="no x86 kernel objects, or no objdump")


@needs_x86_objects
@pytest.mark.parametrize("isa", REGISTERS)
def test_no_kernel_calls_the_standard_librarys_exp_or_tanh(isa):
    undefined = subprocess.run(["nm", "-u", KERNELS / f"kernels.{isa}.o"], text=True, capture_output=True, check=True).stdout
    names = set(re.findall(r"U (\w+)", undefined))
    assert not {n for n in names if re.match(r"(exp|tanh|sqrt|erf|pow)", n)}, names


@needs_x86_objects
@pytest.mark.parametrize("isa", REGISTERS)
def test_hot_loops_use_the_full_registers_of_their_instruction_set(isa):
    text = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", KERNELS / f"kernels.{isa}.o"], text=True,
                          capture_output=True, check=True).stdout
    functions = re.split(r"\n(?=[0-9a-f]{16} <)", text)
    for name in HOT:
        if name == "dropout_mask" and isa == "baseline":
            continue  # GCC does not vectorise with SSE2's widening multiplication
        bodies = [f for f in functions if re.search(r"^[0-9a-f]{16} <[^\n]*::%s" % name, f)]
        # Small functions are inlined into their callers, which are in the list, too.
        if not bodies and name.endswith("_row"):
            bodies = [f for f in functions if re.search(r"^[0-9a-f]{16} <[^\n]*::%s" % name[:-4], f)]
        assert bodies, name
        operation = r"\bv?(?:mul|add|sub|div|fmadd|fnmadd|fmsub|pmulu|pxor)\w*\s[^\n]*%" + REGISTERS[isa]
        packed = sum(len(re.findall(operation, body)) for body in bodies)
        assert packed >= 2, f"{name} for {isa}: {packed} packed operations"


@pytest.mark.parametrize("setting, named", [("HDF5_HOME=/nowhere", "HDF5_HOME"), ("MPI_HOME=/nowhere", "MPI_HOME"),
                                            ("DNNL_HOME=/nowhere", "DNNL_HOME"), ("YAML_CPP_HOME=/nowhere", "YAML_CPP_HOME"),
                                            ("CUDA=yes", "CUDA"), ("CUDA=1 CUDA_HOME=/nowhere", "CUDA_HOME"), ("GTEST_HOME=/nowhere", "GTEST_HOME")])
def test_a_library_that_is_missing_where_it_was_asked_for_is_an_error_that_names_the_variable(setting, named, tmp_path):
    words = dict(w.split("=") for w in setting.split())
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "CXX": "g++", "CUDA": "auto"}
    part = {"CUDA": "_cuda", "GTEST": "_gtest"}.get(named.split("_")[0], "")
    done = subprocess.run([ROOT / ".ci" / f"configure{part}.sh", tmp_path / "config.mk"], cwd=ROOT, env={**clean, **words}, text=True, capture_output=True)
    assert done.returncode != 0
    assert named in done.stderr, done.stderr
    assert not (tmp_path / "config.mk").exists()


@pytest.mark.fast_cases("1.10.5-False")
@pytest.mark.parametrize("version, is_new_enough", [("1.10.5", False), ("1.8.23", False), ("1.10.6", True), ("1.10.11", True), ("2.0.0", True)])
def test_an_older_hdf5_is_refused_by_its_version(version, is_new_enough, tmp_path):
    for folder in "include", "lib":
        (tmp_path / folder).mkdir()
    names = zip(("MAJOR", "MINOR", "RELEASE"), version.split("."), strict=True)
    (tmp_path / "include" / "hdf5.h").write_text("".join(f"#define H5_VERS_{name} {number}\n" for name, number in names))
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "lib" / "libhdf5.so"], check=True)
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "CXX": "g++", "CUDA": "0", "HDF5_HOME": str(tmp_path)}
    done = subprocess.run([ROOT / ".ci" / "configure.sh", tmp_path / "config.mk"], cwd=ROOT, env=clean, text=True, capture_output=True)
    assert (done.returncode == 0) == is_new_enough, done
    assert is_new_enough or f"HDF5 1.10.6 or later is needed, and hdf5.h is of {version}" in done.stderr, done
    assert done.stderr.count("error:") == (0 if is_new_enough else 1), done


def test_a_download_that_reaches_no_server_says_why(tmp_path):
    def why(text):
        (tmp_path / "log").write_text(text)
        return subprocess.run(["bash", "-c", '. .ci/probes.sh; why_not_fetched "$0"', tmp_path / "log"], cwd=ROOT, text=True,
                              capture_output=True).stdout.strip()
    end = "ERROR: No matching distribution found for nvidia-cudnn-frontend==1.32.0\n"
    told = "Could not fetch URL https://pypi.org/simple/x/: exceeded with url: /simple/x/ (Caused by SSLError(SSLCertVerificationError(1, " \
           "'[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain (_ssl.c:992)'))) - skipping\n"
    assert why(told + end).startswith("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert why(end) == end.strip()


def makefile_alone(folder):
    """Makes a folder with the Makefile, without sources, whose scripts find every library. Returns the environment for
    make."""
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())
    (folder / ".ci").mkdir()
    for name in "configure", "configure_cuda", "configure_gtest", "configure_hopper", "probes", "cudnn_frontend", "cutlass", "setup":
        (folder / ".ci" / f"{name}.sh").write_text('#!/bin/bash\n[ -z "${1:-}" ] || touch "$1"\n')
        (folder / ".ci" / f"{name}.sh").chmod(0o755)
    # `make test` exports the variables that a build remembers. In a test they would override the remembered ones.
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("CUDA", "MAKE", "MFLAGS")) and not name.endswith("_HOME") and name not in ("CXX", "OPTIMISE", "WARNINGS")}


def test_googletest_that_is_installed_after_the_programs_were_built_is_found(tmp_path):
    clean = makefile_alone(tmp_path)
    script = tmp_path / ".ci" / "configure_gtest.sh"
    found = script.read_text()
    script.write_text("#!/bin/bash\necho 'error: gtest was not found' >&2\nexit 1\n")

    def build(goal):
        return subprocess.run(["make", goal], cwd=tmp_path, env=clean, text=True, capture_output=True)

    assert build("build/config.mk").returncode == 0, "the programs need no GoogleTest"
    without = build("check-headers")
    assert without.returncode != 0 and "gtest was not found" in without.stderr, without
    script.write_text(found)
    assert build("check-headers").returncode == 0


@pytest.mark.parametrize("purpose, with_cuda, installs_pip", [("demo", "", False), ("demo", "yes", True), ("study", "yes", True), ("all", "", True)])
def test_where_the_part_for_gpus_is_built_pip_is_installed_which_fetches_cudnns_front_end(purpose, with_cuda, installs_pip, tmp_path):
    for name, code in {"nvcc": 0, "python3": 1, "dpkg-query": 1, "apt-get": 0, "sudo": 0}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    clean = {"PATH": f"{tmp_path}:/usr/bin:/bin", "WITH_CUDA": with_cuda}
    done = subprocess.run([ROOT / ".ci" / "setup.sh", purpose], env=clean, text=True, capture_output=True)
    assert done.returncode == 0, done
    assert ("python3-pip" in done.stdout) == installs_pip, done.stdout


def test_a_build_keeps_the_variables_that_were_given_on_the_command_line(tmp_path):
    clean = makefile_alone(tmp_path)

    def inputs():
        return "".join((tmp_path / "build" / name).read_text() for name in ("inputs", "cuda-inputs"))

    def build(*words, **variables):
        done = subprocess.run(["make", "build/config.mk", "build/cuda.mk", *words], cwd=tmp_path, env={**clean, **variables}, text=True, capture_output=True)
        assert done.returncode == 0, done
        return inputs(), done.stdout

    default, said = build()
    assert "CUDA=auto" in default and "as in the last build" not in said
    chosen, said = build("CUDA=0", "MPI_HOME=/my mpi")
    assert "CUDA=0" in chosen and "as in the last build" not in said
    again, said = build()
    assert again == chosen and said.count("as in the last build: CUDA=0 MPI_HOME=/my mpi") == 1, said
    assert "CUDA=1" in build(CUDA="1")[0] and build()[0] == chosen, "the environment wins, for this once"
    done = subprocess.run(["make", "-n", "demo"], cwd=tmp_path, env=clean, text=True, capture_output=True)
    assert done.stdout.count("as in the last build") == 1, done
    assert inputs() == chosen, "also in the make of a make"
    assert build("CUDA=auto", "MPI_HOME=")[0] == default
    default_again, said = build()
    assert default_again == default and "as in the last build" not in said
    subprocess.run(["make", "-n", "UNITY=1", "build/config.mk"], cwd=tmp_path, env=clean, capture_output=True, check=True)
    assert "as in the last build" not in build()[1], "make -n changes nothing"
