"""Tests that `make simulate` still links: every function that the simulation calls is in its list of sources. No SimGrid is
needed, because the files of the list are compiled with the MPI of the ordinary build."""
import importlib.util
import re
import shlex
import subprocess

import pytest

from conftest import ROOT

CONFIG = ROOT / "build" / "config.mk"


def sources():
    spec = importlib.util.spec_from_file_location("simulate_run", ROOT / "tests" / "simulate" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SOURCES


def symbols(objects, which):
    """The program's own symbols that the objects define (--defined-only) or need (--undefined-only)."""
    text = subprocess.run(["nm", "-C", which, *objects], capture_output=True, text=True, check=True).stdout
    return {name for name in re.findall(r"^[0-9a-f ]{17}[a-zA-Z] (.*)$", text, re.MULTILINE) if "ringtrain::" in name}


def compiled_without_simgrid(name, files, folder):
    """Compiles files of one folder together. `make simulate` compiles them with SimGrid's MPI, and this test with the
    build's MPI."""
    unit, made = folder / f"{name}.cpp", folder / f"{name}.o"
    unit.write_text("".join(f'#include "{file}"\n' for file in files))
    flags = re.findall(r"^(?:MPI|UTF8PROC)_CFLAGS := (.*)$", CONFIG.read_text(), re.MULTILINE)
    subprocess.run(["g++", "-std=c++20", "-O0", "-w", f"-I{ROOT}/src", f"-I{ROOT}/build/generated",
                    "-include", ROOT / "tests" / "simulate" / "waits.h", *shlex.split(" ".join(flags)), "-c", unit, "-o", made],
                   check=True)
    return made


@pytest.mark.thorough
@pytest.mark.skipif(not CONFIG.exists(), reason="the build is not here")
def test_the_list_of_sources_has_all_that_the_simulation_calls(tmp_path):
    folders = {}
    for source in map(ROOT.joinpath, sources()):
        assert source.exists(), source
        if source.is_relative_to(ROOT / "src") or "simgrid" not in source.read_text():
            folders.setdefault(source.parent.name, []).append(source)
        else:  # waits.cpp and memory.cpp call SimGrid, and nothing of the program
            assert "ringtrain" not in source.read_text(), f"{source} calls the program: compile it here too"
    objects = [compiled_without_simgrid(name, files, tmp_path) for name, files in folders.items()]
    missing = symbols(objects, "--undefined-only") - symbols(objects, "--defined-only")
    assert not missing, f"tests/simulate/run.py: SOURCES lacks the files that define {sorted(missing)}"
