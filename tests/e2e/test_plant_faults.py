"""Tests the script that plants faults. `make lint` checks that the file of each fault has its line."""
import importlib.machinery
import importlib.util
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


def test_a_python_that_is_not_there_is_passed_over(module, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHON", str(tmp_path / "python"))
    assert module.python_with_pytest() == sys.executable
