"""Tests tests/gpu/check.sh: how tests of gpu_tests are counted, what comes back, what runs beside the checks, and planted
faults with real processes. At the end the whole script runs with --dry. test_gpu_schedule.py tests the order, limits and
needs of the checks."""
import fnmatch
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from conftest import ROOT, environment
from made_up_gpu import (MadeUpClock, MadeUpProcesses, check_calls, check_report, check_run, check_schedule, perform, result_of, status,
                         text_of_tests)

import background
import check
import check_gtest
import kept_search

NO_BF16 = "avx512_bf16" not in Path("/proc/cpuinfo").read_text()


# ---- Tests of gpu_tests ------------------------------------------------------------------------------------------------

def test_without_a_gpu_nothing_runs_a_line_says_so_and_the_exit_code_is_not_0(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch, special={"nvidia-smi": (1, 9, "no driver")})
    assert {r["status"] for r in results} == {"not run"} and not processes.started and check_schedule.exit_code(results) == 2
    assert "there is no GPU" in check_report.line_of(results[0])


def test_a_program_that_is_not_built_is_not_run(tmp_path, monkeypatch):
    clock = MadeUpClock()
    run = check_run.Run(tmp_path, io.StringIO(), MadeUpProcesses(clock), clock, scratch=tmp_path / "scratch")
    monkeypatch.setattr(check_gtest, "GPU_TESTS", ROOT / "build/tests/never_built")
    results = check_schedule.run_checks(check_calls.FIRST_CALL[1:2], run, clock, 570, lambda result: None)
    assert results[0]["status"] == "not run" and "never_built is not built" in results[0]["why"]
    assert check_schedule.exit_code(results) == 2


def test_after_a_test_that_ends_its_process_the_others_run_in_a_new_one(tmp_path, monkeypatch):
    died = text_of_tests("CudaKernels.A") + text_of_tests("CudaKernels.B", result="RUN")
    names = "CudaKernels.\n  A\n  B\n  C\n  D/0  # GetParam() = 1\n"
    starts = []

    def gpu_tests(text):
        if "--gtest_list_tests" in text:
            return 1, 0, names
        starts.append(text)
        return (3, -6, died) if len(starts) == 1 else (3, 0, text_of_tests("CudaKernels.C", "CudaKernels.D/0"))
    results, _, _ = perform(tmp_path, monkeypatch, special={"CudaKernels*": gpu_tests, "CudaKernels.C": gpu_tests})
    result = result_of(results, "own kernels")
    assert [s.split("--gtest_filter=")[1] for s in starts] == ["CudaKernels*", "CudaKernels.C:CudaKernels.D/0"]
    assert result["tests"] == {"passed": 3, "failed": 1, "skipped": 0} and result["status"] == "failed"
    assert "2 processes" in result["why"] and result["notes"] == ["failed: CudaKernels.B"]


def test_a_test_that_fails_in_a_process_that_goes_on_is_run_once(tmp_path, monkeypatch):
    text = text_of_tests("CudaKernels.A", result="FAILED") + text_of_tests("CudaKernels.B") + \
        "[  PASSED  ] 1 test.\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] CudaKernels.A\n"
    starts = []

    def gpu_tests(command):
        if "--gtest_list_tests" in command:
            return 1, 0, "CudaKernels.\n  A\n  B\n"
        starts.append(command)
        return 3, 1, text
    results, _, _ = perform(tmp_path, monkeypatch, special={"CudaKernels*": gpu_tests})
    result = result_of(results, "own kernels")
    assert len(starts) == 1 and result["tests"] == {"passed": 1, "failed": 1, "skipped": 0} and result["status"] == "failed"


def test_tests_that_were_all_skipped_were_not_run(tmp_path, monkeypatch):
    skipped = "[ RUN      ] GpuHopper.A\ntests/gpu/main.cpp:3: Skipped\nthere is no library\n\n[  SKIPPED ] GpuHopper.A (1 ms)\n[  PASSED  ] 0 tests.\n"
    results, _, run = perform(tmp_path, monkeypatch, special={"GpuHopper": (1, 0, skipped), "GpuOperations*bf16": (1, 0, "nothing\n")})
    hopper = result_of(results, "CUTLASS's kernels")
    assert (hopper["status"], hopper["why"]) == ("not run", "there is no library") and not run.switched_off
    assert status(results, "operations bf16") == "failed"  # there is no test of that name
    assert check_schedule.exit_code([hopper]) == 2


def test_tests_that_a_lost_device_kept_from_running_run_in_a_new_process(tmp_path, monkeypatch):
    """Uses the real program. One of its tests leaves the host device unusable."""
    if not check_run.GPU_TESTS.exists():
        pytest.skip("build/tests/gpu_tests is not built")
    monkeypatch.setenv("GTEST_ALSO_RUN_DISABLED_TESTS", "1")
    run = check_run.Run(tmp_path, io.StringIO(), check_schedule.Processes(), check_schedule.Clock(), dry=True, scratch=tmp_path / "scratch")
    lost = check_gtest.gtest("GpuDeviceWatch.DISABLED_*:CudaKernelsSequence.*")(run, 60)
    alone = check_gtest.gtest("CudaKernelsSequence.*")(run, 60)
    assert alone["status"] == "passed" and alone["tests"]["passed"] > 1
    assert lost["status"] == "failed" and lost["tests"] == {**alone["tests"], "failed": 1}
    assert "2 processes" in lost["why"]


def test_every_test_that_is_asked_for_exists(tmp_path, monkeypatch):
    if not check_run.GPU_TESTS.exists():
        pytest.skip("build/tests/gpu_tests is not built")
    listing = subprocess.run([check_run.GPU_TESTS, "--gtest_list_tests"], capture_output=True, text=True, env=environment())
    there = check_gtest.listed_tests(listing.stdout)
    monkeypatch.setattr(shutil, "which", lambda name: name)  # compute-sanitizer
    asked = {check_run.PROBE_TEST}
    for call in check_calls.CALL_SECONDS:
        _, processes, _ = perform(tmp_path, monkeypatch, usual=0.1, call=call)
        asked |= {word.removeprefix("--gtest_filter=") for text in processes.texts() for word in text.split() if word.startswith("--gtest_filter=")}
    missing = {pattern for filter_ in asked for pattern in filter_.split(":") if not any(fnmatch.fnmatchcase(name, pattern) for name in there)}
    assert len(asked) > 15 and not missing


# ---- Rates -------------------------------------------------------------------------------------------------------------

def test_the_rates_of_both_sides_stand_beside_each_other_with_their_shares_worst_first(tmp_path, monkeypatch):
    results, _, run = perform(tmp_path, monkeypatch, special={"--precision bf16 --input jpeg": (1, 1, "failed")})
    lines = check_report.rate_lines(results, run)
    bf16 = next(line for line in lines if "ResNet-50 | 256 | bf16" in line)
    assert "| 6,000 | 46% | - | - | 5,000 | 38% | 1.20 | 23.2 | 13,165 | 8,000 |" in bf16
    lost = [float(line.split("|")[11]) for line in lines[2:]]
    assert lost == sorted(lost, reverse=True) and len(lost) > 2
    assert "6,000 images/s, 46% of the bound" in result_of(results, "ResNet-50 bf16 raw, shipped plans")["notes"]


def test_an_unknown_device_has_the_rates_that_pytorch_reached(tmp_path, monkeypatch):
    unknown = {"nvidia-smi": (1, 0, "GPU 0: NVIDIA X999 (UUID: GPU-1)")}
    results, _, run = perform(tmp_path, monkeypatch, special=unknown)
    assert "unknown" in next(line for line in check_report.rate_lines(results, run) if "ResNet-50 | 256 | bf16" in line)
    run.reached["bf16"] = 790e12, 4.3e12
    assert "13,165" in next(line for line in check_report.rate_lines(results, run) if "ResNet-50 | 256 | bf16" in line)


# ---- Carrying the results of a search -----------------------------------------------------------------------------------

def made_plans(folder, count=5):
    """A table and plans, of which a higher number is newer."""
    (folder / "GPU-cudnn-9").mkdir(parents=True)
    contents = {"fusions": b"key\tway\t0.1\tsite\t\n", **{f"GPU-cudnn-9/{i}.plan": os.urandom(1000) for i in range(count)}}
    for age, (name, content) in enumerate(contents.items()):
        (folder / name).write_bytes(content)
        os.utime(folder / name, (1_000_000 + age, 1_000_000 + age))
    return contents


def test_a_search_goes_out_in_pieces_and_comes_in_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_search, "PIECE_BYTES", 3000)
    plans, out = tmp_path / "plans", tmp_path / "out"
    contents = made_plans(plans)
    out.mkdir()
    pieces, left_out = kept_search.pack(plans, out)
    assert [p.name for p in pieces] == ["search.tar.gz", "search.tar.gz.2"] and left_out == 0
    for source in out, out / "search.tar.gz":
        assert kept_search.unpack(source, tmp_path / f"from-{source.name}") == 6
        assert {n: (tmp_path / f"from-{source.name}" / n).read_bytes() for n in contents} == contents
    assert kept_search.pack(tmp_path / "nothing", tmp_path) == ([], 0)


def test_when_space_is_short_the_newest_plans_are_kept_also_after_a_journey(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_search, "PIECE_BYTES", 3000)
    plans, out = tmp_path / "plans", tmp_path / "out"
    made_plans(plans)
    out.mkdir()
    kept_search.pack(plans, out)
    kept_search.unpack(out, tmp_path / "carried")
    for source in plans, tmp_path / "carried":
        pieces, left_out = kept_search.pack(source, out, most_pieces=1)  # too large: only the table and the plans that fit
        assert [p.name for p in pieces] == ["search.tar.gz"] and left_out > 0 and not (out / "search.tar.gz.2").exists()
        with tarfile.open(out / "search.tar.gz") as archive:
            kept = [member.name for member in archive]
        assert kept == ["fusions", *(f"GPU-cudnn-9/{i}.plan" for i in range(4, left_out - 1, -1))]


def test_plans_that_the_kit_brings_are_not_carried(tmp_path):
    plans = tmp_path / "plans"
    made_plans(plans)
    shipped = tmp_path / "shipped"
    shutil.copytree(plans, shipped)
    (plans / "GPU-cudnn-9/1.plan").write_bytes(b"another answer")
    kept_search.pack(plans, tmp_path, without=shipped)
    with tarfile.open(tmp_path / "search.tar.gz") as archive:
        assert archive.getnames() == ["fusions", "GPU-cudnn-9/1.plan"]


def test_a_search_that_cannot_be_taken_says_why(tmp_path):
    with pytest.raises(ValueError, match="holds no search.tar.gz"):
        kept_search.unpack(tmp_path, tmp_path / "plans")
    (tmp_path / "search.tar.gz").write_bytes(b"cut off")
    with pytest.raises(ValueError, match="are all pieces there"):
        kept_search.unpack(tmp_path, tmp_path / "plans")


# ---- What runs beside the checks ----------------------------------------------------------------------------------------

def running(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path)
        except OSError:
            pass  # it ended meanwhile
    return found


def gone(mark):
    deadline = time.monotonic() + 10
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(mark)


@pytest.mark.thorough
def test_processes_are_ended_with_all_that_they_started(tmp_path):
    mark = f"300.{os.getpid()}{time.time_ns()}"
    begin = time.monotonic()
    code, text = check_schedule.Processes().run(
        ["sh", "-c", f"echo begun; trap '' TERM; sleep {mark} & sleep {mark}"], 4, dict(os.environ), tmp_path)
    assert code is None and "begun" in text and time.monotonic() - begin < 10 and gone(mark)
    assert check_schedule.Processes().run(["/nonexistent/program"], 4, dict(os.environ), tmp_path)[0] == 127


def test_what_runs_beside_is_ended_also_by_exceptions(tmp_path, monkeypatch):
    mark = f"300.{os.getpid()}{time.time_ns()}"
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/bash\necho timestamp, clocks.sm; echo \"$@\"; exec sleep {mark}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(KeyError), background.Background(io.StringIO()) as beside:
        beside.record_clocks(tmp_path / "clocks.csv")
        deadline = time.monotonic() + 10
        while not running(mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert running(mark)
        raise KeyError
    assert gone(mark)
    said = (tmp_path / "clocks.csv").read_text()
    assert "timestamp" in said and "-lms 500" in said and "--query-gpu=timestamp,clocks.sm,clocks.mem,power.draw" in said


def test_what_runs_beside_a_killed_call_is_ended(tmp_path):
    mark = f"300.{os.getpid()}{time.time_ns()}"
    script = f"import sys, time; sys.path.insert(0, '{ROOT}/tests/gpu'); import background, subprocess\n" \
             "with background.Background(sys.stdout) as b: b.start(['sleep', sys.stdin.readline().strip()], subprocess.DEVNULL); print('begun', flush=True); time.sleep(60)"
    # The mark is no argument of the call itself, so that only the process that runs beside it is found by it.
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(mark + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "begun\n" and running(mark)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert gone(mark)


def test_the_libraries_that_are_read_are_those_that_programs_find_first(tmp_path, monkeypatch):
    for variable in ("CUDNN_HOME", "CUDA_HOME", "LD_LIBRARY_PATH", "RINGTRAIN_CUDA_LIBRARIES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(background, "USUAL_FOLDERS", [])
    for name in ("own/libcudnn.so.9", "site/nvidia/cudnn/lib/libcudnn.so.9", "site/nvidia/cudnn/lib/libcudnn_ops.so.9", "site/torch/lib/libtorch_cuda.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    relative = lambda: [str(path.relative_to(tmp_path)) for path in background.library_files([str(tmp_path / "site")])]
    assert relative() == ["site/nvidia/cudnn/lib/libcudnn.so.9", "site/nvidia/cudnn/lib/libcudnn_ops.so.9", "site/torch/lib/libtorch_cuda.so"]
    monkeypatch.setenv("RINGTRAIN_CUDA_LIBRARIES", str(tmp_path / "own"))
    assert relative()[0] == "own/libcudnn.so.9" and "site/nvidia/cudnn/lib/libcudnn.so.9" not in relative()


# ---- Planted faults, with processes -------------------------------------------------------------------------------------

# A gpu_tests whose tests hang, crash or fail by their names.
FAKE_TESTS = """#!/bin/bash
filter=$(printf '%s\\n' "$@" | sed -n 's/^--gtest_filter=//p')
passes() { printf '[ RUN      ] %s\\n[       OK ] %s (1 ms)\\n' "$1" "$1"; }
case "$* " in
  *--gtest_list_tests*) printf 'GpuGate.\\n  Device\\n  Plan\\n  Kernel\\nCudaKernels.\\n  A\\n  B\\n'; exit 0 ;;
esac
case $filter in
  FAULTS
  GpuGate.*Kernel*) passes GpuGate.Kernel ;;
  GpuGate*) echo "gate: device: made up"; passes GpuGate.Device; passes GpuGate.Kernel ;;
  *GpuGraphs*) passes F/GpuGraphs.Bits/ResNet_bf16; passes F/GpuGraphs.Bits/Lstm_bf16 ;;
  *) passes Suite.Test ;;
esac
echo "without: ${RINGTRAIN_HOPPER_LIBRARY:-nothing}"
"""
HANG = "printf '[ RUN      ] %s\\n' CudaKernels.A; exec sleep 300 ;;"


def run_with_faults(tmp_path, monkeypatch, faults, limits=None, checks=("gate", "own kernels", "CUTLASS's kernels", "operations bf16")):
    program = tmp_path / "gpu_tests"
    program.write_text(FAKE_TESTS.replace("FAULTS", faults))
    program.chmod(0o755)
    for module in (check_gtest, check_run):
        monkeypatch.setattr(module, "GPU_TESTS", program)
    monkeypatch.setattr(check_run.Run, "find_gpu", lambda self: "GPU 0: made up")
    monkeypatch.setattr(check_run.Run, "need", lambda self, *programs: None)
    out = tmp_path / "out"
    out.mkdir()
    log = io.StringIO()
    run = check_run.Run(out, log, check_schedule.Processes(), check_schedule.Clock(), plans=tmp_path / "plans", test_plans=tmp_path / "test_plans", scratch=tmp_path / "scratch")
    chosen = [c._replace(seconds=(limits or {}).get(c.name, 10)) for c in check_calls.FIRST_CALL if c.name in checks]
    results = check_schedule.run_checks(chosen, run, run.clock, 60, lambda result: None, run.probe)
    return results, log.getvalue()


def test_a_kernel_that_hangs_costs_its_limit_and_the_others_run(tmp_path, monkeypatch):
    results, _ = run_with_faults(tmp_path, monkeypatch, f"CudaKernels*) {HANG}", {"own kernels": 4})
    assert [r["status"] for r in results] == ["passed", "out of time", "passed", "passed"] and results[1]["seconds"] < 10
    assert check_schedule.exit_code(results) == 1


@pytest.mark.thorough
def test_a_lost_device_ends_the_call(tmp_path, monkeypatch):
    results, _ = run_with_faults(tmp_path, monkeypatch, f"GpuGate.*Kernel*|CudaKernels*) {HANG}", {"own kernels": 4})
    assert [r["status"] for r in results] == ["passed", "out of time", "not run", "not run"] and check_schedule.exit_code(results) == 3


def test_a_crash_is_one_failed_test_and_the_others_run(tmp_path, monkeypatch):
    results, _ = run_with_faults(tmp_path, monkeypatch, "CudaKernels\\*) printf '[ RUN      ] CudaKernels.A\\n'; kill -SEGV $$ ;; CudaKernels.B) passes CudaKernels.B ;;")
    assert [r["status"] for r in results] == ["passed", "failed", "passed", "passed"]
    assert results[1]["tests"] == {"passed": 1, "failed": 1, "skipped": 0} and "CudaKernels.A" in results[1]["notes"][0]


def test_a_plan_that_does_not_load_is_told_and_ends_nothing(tmp_path, monkeypatch):
    fault = "GpuGate.\\*) echo 'gate: plan: cuDNN refuses it (another version)'; passes GpuGate.Device; printf '[ RUN      ] GpuGate.Plan\\n[  FAILED  ] " \
            "GpuGate.Plan (1 ms)\\n'; passes GpuGate.Kernel; exit 1 ;;"
    results, _ = run_with_faults(tmp_path, monkeypatch, fault)
    assert [r["status"] for r in results] == ["failed", "passed", "passed", "passed"]
    assert any("another version" in line for line in results[0]["said"]) and check_schedule.exit_code(results) == 1


@pytest.mark.thorough
def test_a_cutlass_kernel_that_hangs_is_left_out_afterwards(tmp_path, monkeypatch):
    results, log = run_with_faults(tmp_path, monkeypatch, f"*GpuHopper*) {HANG}", {"CUTLASS's kernels": 4})
    assert [r["status"] for r in results] == ["passed", "passed", "out of time", "passed"]
    assert results[3]["switched_off"] == ["CUTLASS"] and "without: none" in log.split("GpuOperations")[1]


@pytest.mark.thorough
def test_a_search_that_is_killed_leaves_what_it_has_found(tmp_path, monkeypatch):
    fault = "*GpuFusions*) mkdir -p $RINGTRAIN_PLAN_CACHE; printf 'site\\tway\\t0.1\\n' > $RINGTRAIN_PLAN_CACHE/fusions; " + HANG
    results, _ = run_with_faults(tmp_path, monkeypatch, fault, {"search bf16": 4}, ("gate", "search bf16"))
    assert results[1]["status"] == "out of time" and results[1]["usable"]
    assert kept_search.unpack(tmp_path / "out", tmp_path / "next") == 1 and (tmp_path / "next/fusions").read_text() == "site\tway\t0.1\n"


# ---- All of it, dry -----------------------------------------------------------------------------------------------------

def test_what_is_asked_wrongly_is_refused(tmp_path):
    for options, started, why in ((["--resume", tmp_path / "check-1.json"], "", "cannot be resumed"), ([], "0", "CHECK_STARTED was")):
        done = subprocess.run([ROOT / "tests/gpu/check.sh", "--dry", *options], capture_output=True, text=True,
                              env=environment({"OUT": str(tmp_path), "PYTHON": sys.executable, "CHECK_STARTED": started}))
        assert done.returncode == 1 and why in done.stderr, done.stdout + done.stderr


def test_shipped_plans_are_copied_and_newer_ones_stay(tmp_path, monkeypatch):
    shipped, plans = tmp_path / "shipped", tmp_path / "plans"
    made_plans(shipped, 2)
    (plans / "GPU-cudnn-9").mkdir(parents=True)
    (plans / "GPU-cudnn-9/0.plan").write_text("found here")
    monkeypatch.setattr(check_run, "SHIPPED_PLANS", shipped)
    check.take_shipped_plans(check_run.Run(tmp_path, io.StringIO(), MadeUpProcesses(MadeUpClock()), MadeUpClock(), plans=plans, scratch=tmp_path / "scratch"))
    assert (plans / "GPU-cudnn-9/0.plan").read_text() == "found here"
    assert (plans / "GPU-cudnn-9/1.plan").read_bytes() == (shipped / "GPU-cudnn-9/1.plan").read_bytes()


@pytest.mark.thorough
def test_dry_calls_run_the_same_checks_in_the_same_order(tmp_path):
    if not check_run.GPU_TESTS.exists():
        pytest.skip("build/tests/gpu_tests is not built")
    for call, resume in ((1, []), (2, ["--resume", tmp_path / "check-1.json"])):
        begin = time.time()
        done = subprocess.run([ROOT / "tests/gpu/check.sh", "--dry", "--call", str(call), *resume], capture_output=True, text=True,
                              env=environment({"OUT": str(tmp_path), "PYTHON": sys.executable, "CHECK_STARTED": str(int(begin))}))
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads((tmp_path / f"check-{call}.json").read_text())
        results = {r["name"]: r for r in report["checks"]}
        before = json.loads((tmp_path / "check-1.json").read_text())["checks"] if resume else ()
        assert list(results) == [c.name for c in check_calls.checks_of(call, before)]
        assert all("needs a GPU" in line for line in done.stdout.splitlines() if line.startswith("left out"))
        firm = {r["status"] for r in results.values() if not r.get("spare")}
        assert firm <= {"passed", "left out"}, done.stdout
        assert all(r["status"] in ("passed", "left out") or r.get("no_time") for r in results.values()), done.stdout
        assert len(list(tmp_path.iterdir())) <= 8 and (tmp_path / f"check-{call}.md").exists()
        if call == 1:
            left_out = {name for name, r in results.items() if r["status"] == "left out" and not r.get("spare")}
            speed = {"ResNet-50 bf16 raw, shipped plans", "ResNet-50 bf16 raw, its choices", "ResNet-50 bf16 jpeg, its choices", "LSTM 4x512 bf16",
                     "LSTM 4x128 bf16"}
            assert left_out == {"CUTLASS's kernels", check_calls.PYTORCH_RESNET, "PyTorch, LSTM in CUDA graphs", "ResNet-50 fp16 raw",
                                "LSTM 4x512 fp16"} | (speed if NO_BF16 else set())
            with tarfile.open(tmp_path / "tables.tar.gz") as tables:
                assert {"operations.csv", "kernels.csv"} <= set(tables.getnames())
                assert b"backward" in tables.extractfile("kernels.csv").read()
            assert NO_BF16 or "images/s" in done.stdout and "characters/s" in done.stdout
        print(f"call {call}: {time.time() - begin:.0f} s")
