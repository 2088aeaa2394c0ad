"""Tries the tests for GPUs on the host device: which tests run, and how they are counted, after one has lost the
device."""
import importlib.machinery
import importlib.util
import json
import subprocess

import pytest
from conftest import ROOT, environment

GPU_TESTS = ROOT / "build" / "tests" / "gpu_tests"
LOST = "GpuDeviceWatch.DISABLED_AnIllegalAddressLeavesTheDeviceUnusable"


def run(tests, report, *options, device="host"):
    if not GPU_TESTS.exists():
        pytest.skip("build/tests/gpu_tests is not built")
    return subprocess.run([GPU_TESTS, f"--gtest_filter={tests}", f"--gtest_output=json:{report}", *options], text=True,
                          capture_output=True, env=environment({"RINGTRAIN_TEST_DEVICE": device, "GTEST_COLOR": "no"}))


def outcomes(report):
    return {f"{suite['name']}.{test['name']}": "failed" if test.get("failures") else test["result"].lower()
            for suite in json.loads(report.read_text())["testsuites"] for test in suite["testsuite"]}


def test_tests_behind_one_that_lost_the_device_are_not_run_and_named(tmp_path):
    report = tmp_path / "report.json"
    done = run(f"{LOST}:CudaKernelsPool.Average*:CudaKernelsSequence.*", report, "--gtest_also_run_disabled_tests")
    found = outcomes(report)
    assert found[LOST] == "failed", done.stdout
    assert done.returncode == 75, done.stdout
    assert "after this test the device is unusable: " in done.stdout and "illegal address" in done.stdout
    left = list(found)[list(found).index(LOST) + 1:]
    assert left and {found[name] for name in left} == {"skipped"}
    assert {found[name] for name in list(found)[:-len(left) - 1]} <= {"passed", "completed"}
    assert f"device lost: {len(left)} tests were not run" in done.stdout
    for name in left:
        assert f"not run: {name}\n" in done.stdout


def test_without_it_all_are_run(tmp_path):
    done = run("CudaKernelsPool.Average*", tmp_path / "report.json")
    assert done.returncode == 0, done.stdout
    assert "device lost" not in done.stdout


def test_a_device_that_cannot_be_taken_into_use_is_one_failure_with_its_cause(tmp_path):
    report = tmp_path / "report.json"
    done = run("CudaKernelsPool.Average*:CudaKernelsSequence.*", report, device="lost")
    assert done.returncode == 1, done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED: ")]
    assert len(failed) == 1 and "cannot be taken into use: RINGTRAIN_TEST_DEVICE is 'lost'" in failed[0], done.stdout
    assert set(outcomes(report).values()) == {"skipped"}, done.stdout


def runner_with_reports_in(folder, monkeypatch):
    loader = importlib.machinery.SourceFileLoader("run_tests", str(ROOT / "tests" / "run_tests"))
    runner = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_tests", loader))
    loader.exec_module(runner)
    monkeypatch.setattr(runner, "REPORTS", folder)
    return runner


def test_a_program_that_ends_without_a_report_is_a_failure_that_names_its_last_test(tmp_path, monkeypatch):
    runner = runner_with_reports_in(tmp_path, monkeypatch)
    says = r"echo '[ RUN      ] A.Ends'; echo '[       OK ] A.Ends'; echo '[ RUN      ] B.Hangs'; echo 'ringtrain: no step was finished'; exit 86"
    _, counts, _, failures, _ = runner.run_suite("mpi on 3 ranks", "mpi", ["sh", "-c", says], [tmp_path / "none.xml"], 0)
    assert counts["failed"] == 1 and "exit code 86" in failures[0]
    assert failures[0].endswith("the last test that began is B.Hangs; it said: ringtrain: no step was finished")


def test_the_others_are_run_by_a_process_of_their_own(tmp_path, monkeypatch, capsys):
    """As in `make test`, there is one failure, and every other test has passed."""
    runner = runner_with_reports_in(tmp_path, monkeypatch)
    monkeypatch.setenv("RINGTRAIN_TEST_DEVICE", "host")
    monkeypatch.setenv("GTEST_ALSO_RUN_DISABLED_TESTS", "1")
    monkeypatch.setenv("GTEST_FILTER", f"{LOST}:CudaKernelsPool.Average*:CudaKernelsSequence.*")
    if not GPU_TESTS.exists():
        pytest.skip("build/tests/gpu_tests is not built")
    _, counts, _, failures, _ = runner.run_suite(*next(runner.suites(["gpu"], None)))
    shown = capsys.readouterr().out
    assert counts["failed"] == 1 and counts["skipped"] == 0 and counts["passed"] >= 4, shown
    assert len(failures) == 1 and LOST in failures[0]
    assert f"failed: {LOST}" in shown and "in a process of their own" in shown
