"""Tests the script that plants faults. `make lint` checks that the file of each fault has its line."""
import importlib.machinery
import importlib.util
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def module():
    loader = importlib.machinery.SourceFileLoader("plant_faults", str(ROOT / "tests" / "plant_faults"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("plant_faults", loader))
    sys.modules["plant_faults"] = module
    loader.exec_module(module)
    return module


def test_every_planted_fault_has_a_test_in_the_fast_tier(module):
    for program in module.UNIT, module.MPI:
        if not (ROOT / program).exists():
            pytest.skip(f"{program} is not built")
    # One pytest collects the tests of all files at once, because its start takes seconds.
    files = sorted({f"tests/e2e/{fault.tests.split()[0]}.py" for fault in module.FAULTS if fault.program == module.E2E})
    done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not thorough", *files],
                          cwd=ROOT, capture_output=True, text=True, timeout=300)
    collected = [line.lower() for line in done.stdout.splitlines() if "::" in line]
    assert len(collected) > 100, done.stdout + done.stderr
    lacking = []
    for fault in module.FAULTS:
        if fault.program == module.E2E:
            file, _, words = fault.tests.partition(" ")
            found = [name for name in collected if f"/{file}.py::" in name and words.lower() in name]
        else:
            found = module.fast_tests(fault)
        if not found:
            lacking.append(fault.name)
    assert not lacking


def test_a_python_that_is_not_there_is_passed_over(module, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHON", str(tmp_path / "python"))
    assert module.python_with_pytest() == sys.executable
