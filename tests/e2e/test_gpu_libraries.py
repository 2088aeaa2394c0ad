"""Tests which cuDNN the checks of tests/gpu use (check_libraries.py), with made-up folders of Python packages and of plans. One
test starts a program with a copy of the installed cuDNN."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HANG_SECONDS, PROGRAM, ROOT, built_with_cuda
from made_up_gpu import check_report, perform, text_of_tests

import background
import check
import check_libraries
from check_libraries import Choice


def put(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def plans_for(folder, *versions):
    put(folder, *(f"NVIDIA-H{number}00-cudnn-{version}/1.plan" for number, version in enumerate(versions, 1)))
    return folder


def packages_with(folder, version, proof="package"):
    """A folder of Python packages as PyTorch's for CUDA 13 are laid out. Its cuDNN has this version."""
    put(folder, "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn/lib/libcudnn_graph.so.9", "nvidia/cu13/lib/libcublasLt.so.13",
        "nvidia/nccl/lib/libnccl.so.2", "nvidia/cusparselt/lib/libcusparseLt.so.0")
    if proof == "file":
        put(folder, f"nvidia/cudnn/lib/libcudnn.so.{version}")
    elif proof == "header":
        put(folder, "nvidia/cudnn/include/cudnn_version.h")
        text = "".join(f"#define CUDNN_{name} {part}\n" for name, part in zip(("MAJOR", "MINOR", "PATCHLEVEL"), version.split(".")))
        (folder / "nvidia/cudnn/include/cudnn_version.h").write_text(text + "#define CUDNN_VERSION (CUDNN_MAJOR * 10000)\n")
    elif proof == "package":
        put(folder, f"nvidia_cudnn_cu13-{version}.56.dist-info/METADATA", "nvidia_cudnn_frontend-1.18.0.dist-info/METADATA")
    return folder


@pytest.mark.parametrize("proof", ["package", "header", "file"])
def test_the_cudnn_for_which_there_are_plans_goes_first_with_what_it_needs(tmp_path, proof):
    other, site = packages_with(tmp_path / "other", "9.14.0"), packages_with(tmp_path / "site", "9.19.0", proof)
    choice = check_libraries.choose(plans_for(tmp_path / "plans", "9.19.0", "9.19.0"), [other, site], {})
    assert choice.version == "9.19.0" and f"9.19.0 in {site}/nvidia/cudnn/lib, because the kit has plans for it" == choice.line
    assert choice.folders == [site / "nvidia/cudnn/lib", site / "nvidia/cu13/lib", site / "nvidia/nccl/lib"]
    variables = {}
    check_libraries.use(choice, variables)
    assert variables == {"RINGTRAIN_CUDA_LIBRARIES": ":".join(map(str, choice.folders))}
    variables = {"LD_LIBRARY_PATH": "/system"}  # it goes before the folder of a library that opens another one
    check_libraries.use(choice, variables)
    assert variables["LD_LIBRARY_PATH"] == f"{site}/nvidia/cudnn/lib:/system"


@pytest.mark.parametrize("versions, there, said", [
    (["9.19.0"], "9.14.0", "the kit's plans are for 9.19.0, and Python's packages have 9.14.0 in"),
    (["9.19.0"], None, "the kit's plans are for 9.19.0, and Python's packages have none"),
    ([], "9.19.0", "there is no kit with plans")])
def test_without_that_cudnn_programs_take_the_first_one_and_a_line_says_why(tmp_path, versions, there, said):
    packages = [packages_with(tmp_path / "site", there)] if there else []
    choice = check_libraries.choose(plans_for(tmp_path / "plans", *versions), packages, {})
    assert choice.folders == [] and choice.version == "" and said in choice.line
    variables = {}
    check_libraries.use(choice, variables)
    assert variables == {}


def test_what_the_caller_has_set_stays(tmp_path):
    variables = {"RINGTRAIN_CUDA_LIBRARIES": "/mine"}
    choice = check_libraries.choose(plans_for(tmp_path / "plans", "9.19.0"), [packages_with(tmp_path / "site", "9.19.0")], variables)
    check_libraries.use(choice, variables)
    assert variables == {"RINGTRAIN_CUDA_LIBRARIES": "/mine"} and "the caller has set it" in choice.line


def test_of_several_versions_with_plans_the_newest_one_that_is_there_is_taken(tmp_path):
    plans = plans_for(tmp_path / "plans", "9.9.0", "9.19.0", "9.20.1")
    (plans / "NVIDIA-H200-cudnn-9.21.0").mkdir()  # without plans
    packages = [packages_with(tmp_path / name, version) for name, version in (("a", "9.9.0"), ("b", "9.19.0"), ("c", "9.21.0"))]
    assert check_libraries.choose(plans, packages, {}).version == "9.19.0"


def test_the_files_that_are_read_beside_the_checks_are_those_of_the_chosen_cudnn(tmp_path, monkeypatch):
    site = packages_with(tmp_path / "site", "9.19.0")
    put(tmp_path, "system/libcudnn.so.9")
    monkeypatch.setattr(background, "USUAL_FOLDERS", [str(tmp_path / "system")])
    for variable in "CUDNN_HOME", "CUDA_HOME", "LD_LIBRARY_PATH":
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RINGTRAIN_CUDA_LIBRARIES", "")
    assert background.library_files([str(site)])[0] == tmp_path / "system/libcudnn.so.9"
    check_libraries.use(check_libraries.choose(plans_for(tmp_path / "plans", "9.19.0"), [site]))
    assert background.library_files([str(site)])[0] == site / "nvidia/cudnn/lib/libcudnn.so.9"


def test_the_gate_says_when_another_cudnn_is_used_than_the_chosen_one(tmp_path, monkeypatch):
    gate = "gate: cuDNN: {}\ngate: library: /site/cudnn/lib/libcudnn.so.9\ngate: library: {}/libcudnn_graph.so.9\n" + text_of_tests("GpuGate.Facts")
    take = lambda run: setattr(run, "cudnn", Choice("9.19.0", [Path("/site/cudnn/lib")], ""))
    notes = []
    for words in ("9.19.0", "/site/cudnn/lib"), ("9.14.0", "/site/cudnn/lib"), ("9.19.0", "/system"):
        results, _, _ = perform(tmp_path, monkeypatch, special={"GpuGate": (3, 0, gate.format(*words))}, take=take)
        notes.append(results[0]["notes"])
    assert notes == [["cuDNN 9.19.0"], ["cuDNN 9.14.0", "cuDNN 9.19.0 was chosen, and the program has opened 9.14.0"],
                     ["cuDNN 9.19.0", "files of cuDNN come from several folders: /site/cudnn/lib, /system"]]


@pytest.mark.parametrize("earlier, told", [("9.14.0", True), ("9.19.0", False)])
def test_a_call_that_resumes_one_with_another_cudnn_says_so(tmp_path, monkeypatch, earlier, told):
    _, _, run = perform(tmp_path, monkeypatch, special={"GpuGate": (3, 0, f"gate: cuDNN: {earlier}\n" + text_of_tests("GpuGate.Facts"))})
    run.cudnn = Choice("9.19.0", [], "")
    line = check.take_earlier(run, check_report.read_results(run.out / "check-1.json"), run.out / "check-1.json")
    assert line.startswith("resumed from") and (f"that call used cuDNN {earlier}" in line) == told


def test_plans_are_in_the_folder_that_programs_name():
    assert check_libraries.plan_folder("NVIDIA H100 80GB HBM3", "9.19.0") == "NVIDIA-H100-80GB-HBM3-cudnn-9.19.0"


FAKE_TESTS = """#!/bin/bash
echo "gate: cuDNN: 9.19.0"
echo "gate: variable: $RINGTRAIN_CUDA_LIBRARIES"
printf '[ RUN      ] GpuGate.Facts\\n[       OK ] GpuGate.Facts (1 ms)\\n'
"""


def test_a_call_gives_the_choice_to_its_programs_prints_it_and_records_it(tmp_path):
    kit, site = tmp_path / "kit", packages_with(tmp_path / "venv/lib/python3.12/site-packages", "9.19.0")
    for folder in "gpu", "bench":
        shutil.copytree(ROOT / "tests" / folder, kit / "tests" / folder, ignore=shutil.ignore_patterns("*.cpp", "*.h", "__pycache__"))
    plans_for(kit / "plans", "9.19.0")
    for name, text in (("kit/build/tests/gpu_tests", FAKE_TESTS), ("path/nvidia-smi", "#!/bin/bash\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    variables = {key: value for key, value in os.environ.items() if key not in ("RINGTRAIN_CUDA_LIBRARIES", "LD_LIBRARY_PATH", "RINGTRAIN_TEST_DEVICE")}
    done = subprocess.run([kit / "tests/gpu/check.sh", "--only", "gate"], capture_output=True, text=True, timeout=HANG_SECONDS, env={
        **variables, "PATH": f"{tmp_path}/path:{os.environ['PATH']}", "VIRTUAL_ENV": str(tmp_path / "venv"), "OUT": str(tmp_path / "out"), "PYTHON": sys.executable,
        "CHECK_STARTED": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    said = f"9.19.0 in {site}/nvidia/cudnn/lib, because the kit has plans for it"
    assert f"cuDNN: {said}" in done.stdout.splitlines() and f"gate: variable: {site}/nvidia/cudnn/lib:{site}/nvidia/cu13/lib:" in done.stdout
    report = json.loads((tmp_path / "out/check-1.json").read_text())
    assert report["cudnn"] == said and "cuDNN 9.19.0" in report["checks"][0]["notes"]
    assert f"- cudnn: {said}" in (tmp_path / "out/check-1.md").read_text().splitlines()


# ---- With a program ----------------------------------------------------------------------------------------------------

def installed_cudnn():
    """The folder and version of the cuDNN with which this checkout was built."""
    for folder in map(Path, ("/usr/local/cuda/lib", "/usr/local/cuda/lib64", *background.USUAL_FOLDERS)):
        if (folder / "libcudnn.so.9").exists() and check_libraries.version_in(folder.resolve()):
            return folder.resolve(), check_libraries.version_in(folder.resolve())
    return None, ""


def opened_files(variables):
    """The files of cuDNN that a process has open after it has made a plan."""
    description = json.loads((ROOT / "src/backend/cuda/device/descriptions/h200.json").read_text())
    description.pop("origin")
    process = subprocess.Popen([PROGRAM, "cudnn-planner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
    try:
        process.stdin.write(json.dumps(description) + "\nplan 1 conv bf16 n4 c64 14x14 k64 r3 s1 p1\n")
        process.stdin.flush()
        said = process.stdout.readline() + process.stdout.readline()
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    finally:
        process.kill()
        process.wait()
    assert "found" in said, said
    return {Path(line.split()[-1]) for line in maps.splitlines() if "libcudnn" in line}


@pytest.mark.thorough
@pytest.mark.parametrize("also", [{}, {"LD_LIBRARY_PATH": "the system's"}], ids=["alone", "beside LD_LIBRARY_PATH"])
def test_a_program_opens_all_files_of_the_chosen_cudnn(tmp_path, also):
    source, version = installed_cudnn()
    if not built_with_cuda() or not source:
        pytest.skip("this build has no CUDA, or cuDNN was not found")
    site = tmp_path / "site/nvidia/cudnn/lib"
    site.mkdir(parents=True)
    for file in source.glob("libcudnn*.so.9*"):
        shutil.copy(file, site / file.name)
    variables = {name: str(source) for name in also}
    put(tmp_path / "site", f"nvidia_cudnn_cu13-{version}.0.dist-info/METADATA")
    check_libraries.use(check_libraries.choose(plans_for(tmp_path / "plans", version), [tmp_path / "site"], variables), variables)
    files = opened_files(variables)
    assert {file.parent for file in files} == {site}, files
    assert {"libcudnn.so.9", "libcudnn_graph.so.9"} <= {file.name for file in files}
