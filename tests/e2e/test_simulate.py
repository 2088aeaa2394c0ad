"""Tests that `make simulate` still links: every function that the simulation calls is in its list of sources. No SimGrid is
needed, because the list is compared with the objects of the ordinary build."""
import importlib.util
import re
import shlex
import subprocess

import pytest

from conftest import ROOT

OBJECTS = ROOT / "build" / "obj"
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


def compiled_without_simgrid(source, folder):
    """Compiles one of the simulation's own files. `make simulate` compiles it with SimGrid's MPI, and this test with the
    build's MPI."""
    made = folder / f"{source.stem}.o"
    mpi = re.search(r"^MPI_CFLAGS := (.*)$", CONFIG.read_text(), re.MULTILINE).group(1)
    subprocess.run(["g++", "-std=c++20", "-O0", "-w", f"-I{ROOT}/src", "-include", ROOT / "tests" / "simulate" / "waits.h",
                    *shlex.split(mpi), "-c", source, "-o", made], check=True)
    return made


@pytest.mark.skipif(not CONFIG.exists() or not OBJECTS.exists(), reason="the objects of the build are not here")
def test_the_list_of_sources_has_all_that_the_simulation_calls(tmp_path):
    objects = []
    for source in map(ROOT.joinpath, sources()):
        assert source.exists(), source
        if source.is_relative_to(ROOT / "src"):
            objects.append(OBJECTS / source.relative_to(ROOT / "src").with_suffix(".o"))
            assert objects[-1].exists(), objects[-1]
        elif "simgrid" not in source.read_text():  # waits.cpp and memory.cpp call SimGrid, and nothing of the program
            objects.append(compiled_without_simgrid(source, tmp_path))
        else:
            assert "ringtrain" not in source.read_text(), f"{source} calls the program: compile it here too"
    missing = symbols(objects, "--undefined-only") - symbols(objects, "--defined-only")
    assert not missing, f"tests/simulate/run.py: SOURCES lacks the files that define {sorted(missing)}"
