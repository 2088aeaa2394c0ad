"""Tests cuDNN's plans that are built for a GPU on a machine without one (plan --save-plans). A process that plans for the
same GPU must load every saved plan."""
import json
import re
import subprocess

import pytest

from conftest import HANG_SECONDS, PROGRAM, ROOT, built_with_cuda

pytestmark = pytest.mark.thorough

DESCRIPTIONS = ROOT / "src/backend/cuda/device/descriptions"


@pytest.fixture(autouse=True)
def with_cuda():
    if not built_with_cuda():
        pytest.skip("this build has no CUDA")


def read_plan(path):
    """Returns the operation's key, whether there is a plan, and cuDNN's bytes."""
    line, _, content = path.read_bytes().partition(b"\n")
    key, _, size, found = line.decode().split("\t")[:4]
    assert len(content) == int(size), path
    return key, found == "found", content


def answers(gpu, questions):
    """What a process that plans for this GPU answers to "load"."""
    description = json.loads((DESCRIPTIONS / f"{gpu}.json").read_text())
    description.pop("origin", None)
    asked = b"".join(b"load %d %s\n%s" % (len(content), key.encode(), content) for key, content in questions)
    done = subprocess.run([PROGRAM, "cudnn-planner"], input=json.dumps(description).encode() + b"\n" + asked, capture_output=True, timeout=HANG_SECONDS)
    ready, _, rest = done.stdout.partition(b"\n")
    lines = []
    while rest:
        line, _, rest = rest.partition(b"\n")
        count, text = line.decode().split("\t", 1)
        lines.append(text)
        rest = rest[int(count):]  # the plan's bytes
    assert ready.startswith(b"ready ") and len(lines) == len(questions), (ready, lines, done.stderr)
    return lines


def loaded(gpu, folder):
    plans = [read_plan(path) for path in sorted(folder.glob("*.plan"))]
    return answers(gpu, [(key, content) for key, found, content in plans if found])


def test_saved_plans_load_and_are_kept(workshop):
    words = ["plan", workshop.experiment(), "--device", "h100", "--save-plans", workshop.folder / "plans"]
    first = workshop.run(*words, ranks=0, timeout=HANG_SECONDS)
    assert first.code == 0, first
    (folder,) = (workshop.folder / "plans").iterdir()
    found, refused = map(int, re.search(r"cuDNN's plans  (\d+), and (\d+) refusals, in " + re.escape(str(folder)), first.out).groups())
    files = sorted(folder.iterdir())
    assert found > 0 and found + refused == len(files), first
    lines = loaded("h100", folder)
    assert len(lines) == found and all(line.startswith("found") for line in lines), lines

    key, _, content = next(plan for plan in map(read_plan, files) if plan[1])
    refusal, whole = answers("h100", [(key, content[:len(content) // 2]), (key, content)])
    assert refusal.startswith("refused") and whole.startswith("found")

    times = [path.stat().st_mtime_ns for path in files]
    again = workshop.run(*words, ranks=0, timeout=HANG_SECONDS)
    assert again.code == 0 and [path.stat().st_mtime_ns for path in sorted(folder.iterdir())] == times


def test_what_is_missing_is_named(workshop):
    alone = workshop.run("plan", workshop.experiment(), "--save-plans", workshop.folder / "plans", ranks=0)
    assert alone.code != 0 and "--device" in alone.err, alone
    (workshop.folder / "file").write_text("")
    taken = workshop.run("plan", workshop.experiment(), "--device", "h100", "--save-plans", workshop.folder / "file", ranks=0)
    assert taken.code not in (0, 85) and str(workshop.folder / "file") in taken.err, taken


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_the_plans_of_the_kit_load(gpu):
    folders = [path for path in (ROOT / "build/gpu-plans").glob("*") if gpu in path.name.lower()]
    if not folders:
        pytest.skip("no plans have been made here (make gpu-plans)")
    for folder in folders:
        lines = loaded(gpu, folder)
        assert lines and all(line.startswith("found") for line in lines), [line for line in lines if not line.startswith("found")]
