"""Tests the rule for files that an option names: only an earlier output of the option is replaced, and devices, pipes and
links stay what they are. tests/unit/output_file_test.cpp has the cases of the rule, src/base/output_file.h the rule."""

import json
import os
import subprocess
import sys
import threading

import pytest

import made_runs
from conftest import HANG_SECONDS, ROOT, checkpoints

sys.path.insert(0, str(ROOT / "results"))
from reporting import outputs  # noqa: E402
from reporting.errors import ReportError  # noqa: E402


class Pipe:
    """A named pipe, and what was written into it."""

    def __init__(self, path):
        os.mkfifo(path)
        self.path, self.text = path, ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        self.text = self.path.read_text()

    def got(self):
        self.reader.join(10)
        assert self.path.is_fifo()
        return self.text


def test_evaluate_replaces_its_own_results_alone(workshop):
    run = workshop.train("run", stop__steps=2)
    checkpoint, result = checkpoints(run)[-1], workshop.folder / "result.json"
    shards = sorted(workshop.folder.parent.glob("**/*-train-*.h5"))[:1]
    for file in checkpoint, run / "run.json", run / "experiment.yaml", *shards:
        before = file.read_bytes()
        done = workshop.run("evaluate", run, "--json", file, ranks=0)
        assert done.code == 1 and f"{file}: exists already, and is no result of ringtrain evaluate --json" in done.err, done
        assert "remove it first, or give another name" in done.err and file.read_bytes() == before
    link, pipe = workshop.folder / "link", Pipe(workshop.folder / "pipe")
    link.symlink_to(result)
    for file in result, result, link, pipe.path:
        assert workshop.run("evaluate", run, "--json", file, ranks=0).code == 0
    assert link.is_symlink() and json.loads(pipe.got())["step"] == json.loads(result.read_text())["step"] == 2


def test_train_writes_no_report_over_another_file(workshop):
    run = workshop.train("run", stop__steps=2)
    report, before = workshop.folder / "report.json", (run / "run.json").read_bytes()
    done = workshop.run("train", run, "--resume", "stop.steps=4", "--report", run / "run.json")
    assert done.code == 1 and "run.json: exists already, and is no report of ringtrain train" in done.err, done
    assert (run / "run.json").read_bytes() == before
    for steps in 4, 6:
        assert workshop.run("train", run, "--resume", f"stop.steps={steps}", "--report", report).code == 0
        assert json.loads(report.read_text())["end"] == "finished"


def test_export_replaces_its_own_files_and_others_only_with_force(workshop):
    run, out, pipe = workshop.train("run", stop__steps=2), workshop.folder / "w.safetensors", workshop.folder / "pipe.safetensors"
    out.write_text("mine")
    done = workshop.run("export", run, "--out", out, ranks=0)
    assert done.code == 1 and "exists already" in done.err and "--force" in done.err and out.read_text() == "mine", done
    assert workshop.run("export", run, "--out", out, "--force", ranks=0).code == 0
    assert workshop.run("export", run, "--out", out, ranks=0).code == 0
    out.write_bytes(b"")
    assert workshop.run("export", run, "--out", out, ranks=0).code == 0 and out.stat().st_size > 0
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    assert workshop.run("export", run, "--out", pipe, ranks=0).code == 0
    assert reader.communicate(timeout=10)[0] == out.read_bytes() and pipe.is_fifo()


# ---- results/*.py ---------------------------------------------------------------------------------------------------


def tool(name, *words, code=0):
    done = subprocess.run([sys.executable, ROOT / "results" / name, *map(str, words)], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == code, done
    return done


def a_run(folder):
    made_runs.write(folder, 32)
    return folder


@pytest.mark.parametrize("program, words, name", [
    ("table.py", ["--csv", "-o"], "t.csv"),
    pytest.param("report.py", ["-o"], "r.html", marks=pytest.mark.thorough),
    ("plot.py", ["-o"], "p.svg"),
])
def test_a_tool_replaces_its_own_output_alone(tmp_path, program, words, name):
    run, file, mine = a_run(tmp_path / "study" / "run").parent, tmp_path / name, tmp_path / f"mine{name[1:]}"
    subject = run / "run" if program == "plot.py" else run
    link = tmp_path / f"link{name[1:]}"
    link.symlink_to(file)
    for target in link, file:
        tool(program, subject, *words, target)
    assert link.is_symlink() and file.stat().st_size > 100
    mine.write_text("a,b\n1,2\n")
    error = tool(program, subject, *words, mine, code=1).stderr
    assert f"-o {mine}: exists already, and is no" in error and len(error.splitlines()) == 1, error
    assert mine.read_text() == "a,b\n1,2\n"


def test_a_table_goes_into_a_pipe(tmp_path):
    run, pipe = a_run(tmp_path / "run"), Pipe(tmp_path / "pipe")
    tool("table.py", run, "--csv", "-o", pipe.path)
    assert pipe.got() == tool("table.py", run, "--csv").stdout != ""


def test_folders_and_write_protected_files_are_refused(tmp_path):
    file = tmp_path / "f"
    for what, words in (tmp_path, "is a folder"), (file, "is write-protected"):
        if what == file:
            file.write_bytes(b"own")
            file.chmod(0o444)
        with pytest.raises(ReportError, match=words):
            outputs.expect(what, "-o", "output", lambda start: start == b"own")
