"""Tests the table of planted faults. Each fault names a line that its file must have exactly once."""
import importlib.machinery
import importlib.util
import sys

from conftest import ROOT


def test_every_planted_fault_has_its_line():
    loader = importlib.machinery.SourceFileLoader("plant_faults", str(ROOT / "tests" / "plant_faults"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("plant_faults", loader))
    sys.modules["plant_faults"] = module
    loader.exec_module(module)
    occurrences = {fault.name: (ROOT / fault.file).read_text().count(fault.line) for fault in module.FAULTS}
    assert len(occurrences) == len(module.FAULTS) > 40, "a name is used twice"
    assert {name: count for name, count in occurrences.items() if count != 1} == {}
