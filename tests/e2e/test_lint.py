"""Tests tests/lint: each check says nothing about a good tree, and names the place of each fault in a bad one."""
import importlib.machinery
import importlib.util
import subprocess

import pytest

from conftest import ROOT

LOADER = importlib.machinery.SourceFileLoader("lint", str(ROOT / "tests" / "lint"))
lint = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint", LOADER))
LOADER.exec_module(lint)

GOOD = {
    "src/base/a.h": "// Says why. src/main.cpp uses it.\n#pragma once\n",
    "src/main.cpp": '#include "base/a.h"\nnamespace one {\nnamespace {\nclass Local {};\n}\nstruct Run {};\nclass A;\n}\n',
    "src/run.h": "#pragma once\nnamespace two {\nclass Run final : public Base {\n  struct Local {};\n};\nstruct Local {};\n}\n",
    "src/cluster/nccl_library.cpp": "#include <nccl.h>\n",
    "README.md": "# First title\n\n[other](results/page.md#a-heading-of-it) [here](#first-title) <https://x.org/>\n",
    "results/page.md": "## A heading of `it`\n\nYour runs are in results/names/run.json or results/NAME/report.md.\n",
    "tests/tool.py": "import os\n\nprint(os.name)\n",
    "tests/tool.sh": "echo $((1 + 1))\n",
    ".ci/apptainer.def": "".join(f"%{part}\ntrue\n" for part in ("setup", "post", "environment", "test", "runscript")),
    ".ci/configure.sh": "find_library MPI_HOME\n",
    lint.SPACK_RECIPE: 'env = ["MPI_HOME"]\n',
    "results/reporting/keys.py": 'HOW_IT_RUNS = ["seed"]\nSECTIONS_OF_THE_MACHINE = ("run.",)\n',
    "src/config/schema.cpp": "FIELD(seed).how_it_runs()\nFIELD(run.dir).how_it_runs()\nFIELD(name)\n#undef FIELD\n",
    "results/study.sh": 'twins="names"\n',
    "configs/studies/twin_names.yaml": "# A twin of x\n# Source y\n# Scaled z\n# To see a\n# Run b\nname: twin_names\n",
    "tests/plant_faults": "from types import SimpleNamespace\nFAULTS = [SimpleNamespace(name='one', file='src/main.cpp', line='#include')]\n",
}
BAD = {
    lint.gpu_headers: ("src/main.cpp", "#include <cuda_runtime.h>\n", "src/main.cpp:1: #include <cuda_runtime.h>"),
    lint.links: ("README.md", "[a](nothing.md)\n", "README.md:1: the link leads to nothing.md"),
    lint.named_files: ("src/main.cpp", "// see src/base/b.h\n", "src/main.cpp:1: src/base/b.h does not exist"),
    lint.scripts: ("tests/tool.py", "import os\n", "tests/tool.py:1: os is imported and not used"),
    lint.container: (".ci/apptainer.def", "%setup\nif\n", ".ci/apptainer.def: %setup"),
    lint.spack: (".ci/configure.sh", "find_library HDF5_HOME\n", "HDF5_HOME is missing"),
    lint.machine_keys: ("src/config/schema.cpp", "FIELD(name).how_it_runs()\n#undef", "keys.py: name is missing in HOW_IT_RUNS"),
    lint.twins: ("results/study.sh", 'twins="names digits"\n', "twin digits is listed"),
    lint.planted_faults: ("src/main.cpp", "", "src/main.cpp has its line 0 times"),
    lint.code_style: ("src/base/a.h", "int a; \n", "src/base/a.h:1: spaces at the end"),
    lint.one_class_of_a_name: ("src/two.cpp", "// a Run\nnamespace one {\ntemplate <class T>\nstruct Run {\n};\n}\n",
                               "src/two.cpp:4: one::Run is also the name of a class at src/main.cpp:6"),
    lint.sizes: ("results/studies/x/a.csv", " " * (3 << 20), "results/studies/x: 3.00 MiB"),
}
OTHERS = [
    (lint.one_class_of_a_name, "src/b.h", "namespace two {\nenum class Local { a };\n}\n", "src/run.h:6: two::Local is also the name of a class at src/b.h:2"),
    (lint.links, "README.md", "[a](results/page.md#nothing)\n", "results/page.md has no heading #nothing"),
    (lint.named_files, "README.md", "results/gone.py draws it\n", "README.md:1: results/gone.py does not exist"),
    (lint.scripts, "tests/tool.sh", "if\n", "tests/tool.sh: line 2: syntax error"),
    (lint.scripts, "tests/tool.py", "import = 1\n", "tests/tool.py:1: "),
    (lint.code_style, "src/base/a.h", "// no guard\n", "src/base/a.h:1: expected #pragma once"),
    (lint.code_style, "src/main.cpp", "//" + "x" * 119 + "\n", "src/main.cpp:1: 121 columns"),
    (lint.code_style, "src/main.cpp", "\tint a;\n", "src/main.cpp:1: a tab"),
    (lint.twins, "configs/studies/twin_names.yaml", "name: twin_names\n", "has no line '# A twin of ...'"),
    (lint.sizes, "src/large.csv", " " * (11 << 20), "expected at most 10; the largest files are src/large.csv"),
]


def tree_of(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return lint.Tree(folder)


def test_this_checkout_has_no_findings():
    done = subprocess.run([ROOT / "tests" / "lint"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_good_tree_has_no_findings(tmp_path):
    tree = tree_of(tmp_path, GOOD)
    assert {check.__name__: list(check(tree)) for check in lint.CHECKS} == {check.__name__: [] for check in lint.CHECKS}
    assert set(lint.CHECKS) == set(BAD) | {lint.commits}, "a check has no test"


@pytest.mark.fast_cases()  # each case is the only test of its check, and takes milliseconds
@pytest.mark.parametrize("check, name, text, said", [(check, *bad) for check, bad in BAD.items()] + OTHERS,
                         ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_found_at_its_place(tmp_path, check, name, text, said):
    found = list(check(tree_of(tmp_path, GOOD | {name: text})))
    assert any(said in line for line in found), found


def test_pages_name_only_commits_of_the_history(tmp_path):
    def git(*words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, text=True,
                              capture_output=True, check=True).stdout
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    known = git("rev-parse", "--short=7", "HEAD").strip()
    while not known.strip("0123456789") or not known.strip("abcdef"):  # a number or a word is not taken for a commit
        git("commit", "-q", "--allow-empty", "--amend", "-m", known)
        known = git("rev-parse", "--short=7", "HEAD").strip()
    tree = tree_of(tmp_path, {"README.md": f"made at {known}, not at 12ab34d; 1234567 is a number\n"})
    assert list(lint.commits(tree)) == ["README.md:1: the history has no commit 12ab34d"]
