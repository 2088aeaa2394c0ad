"""Tests that the scripts of results/ leave out a run that cannot be read, and say in one line what is wrong with another file
or with their output."""

import json
import os
import subprocess
import sys

import pytest
import yaml

import made_runs
from conftest import HANG_SECONDS, ROOT

sys.path.insert(0, str(ROOT / "results"))
import follow  # noqa: E402
from reporting import following, runs, sections, tables  # noqa: E402
from reporting.errors import ReportError  # noqa: E402


def study_of(folder):
    """Writes a study of two short runs. The first one is the good one."""
    for name in ("good", "bad"):
        made_runs.write(folder / name, 64, need=5)
    return folder


def changed(section, key, value):
    """Returns a change of experiment.yaml."""

    def change(text):
        tree = yaml.safe_load(text)
        tree[section][key] = value
        return yaml.safe_dump(tree)

    return change


def started(**values):
    """Returns a change of run.json."""

    def change(text):
        record = json.loads(text)
        record["starts"][0].update(values)
        return json.dumps(record)

    return change


# What happens to a file of the run, and the words of the warning.
BAD = {
    "a word for the batch": ("experiment.yaml", changed("batch", "global", "abc"), "batch.global is abc, expected a number above 0"),
    "a batch of 0": ("experiment.yaml", changed("batch", "global", 0), "batch.global is 0, expected a number above 0"),
    "a list for the rate": ("experiment.yaml", changed("learning_rate", "base", [0.1]), "learning_rate.base is [0.1], expected a number"),
    "a list for a word": ("experiment.yaml", changed("model", "kind", ["cnn"]), "model.kind is a list, expected a text"),
    "a word for a list": ("experiment.yaml", changed("data", "mean", "grey"), "data.mean is grey, expected a list"),
    "an object in a list": ("experiment.yaml", changed("run", "new", [{"a": 1}]), "expected a text, a number or a list"),
    "a cut experiment": ("experiment.yaml", lambda text: text[: text.index("learning_rate")], "has no learning_rate.base"),
    "no YAML": ("experiment.yaml", lambda text: "a: [", "cannot be read as YAML"),
    "an empty run.json": ("run.json", lambda text: "", "cannot be read as JSON"),
    "thousands of brackets": ("run.json", lambda text: "[" * 100000, "cannot be read as JSON"),
    "thousands of digits": ("run.json", lambda text: '{"a": ' + "1" * 5000 + "}", "cannot be read as JSON"),
    "starts that are a number": ("run.json", lambda text: '{"starts": 3}', "'starts' is not a list"),
    "hosts that are a number": ("run.json", started(hosts=4), "'starts[0].hosts' is not an object"),
    "a text for seconds": ("run.json", started(elapsed_seconds="1"), "'starts[0].elapsed_seconds' is not a number"),
    "parts of ranks": ("run.json", started(rank_seconds=[{"input": None}]), "'starts[0].rank_seconds[0].input' is not a number"),
    "a trial of another type": ("trial.json", lambda text: '{"state": 3}', "'state' is not a text"),
}


def damage(run, name, change):
    path = run / name
    path.write_text(change(path.read_text() if path.exists() else ""))


@pytest.mark.parametrize("what", BAD)
def test_a_run_that_cannot_be_read_is_left_out_with_one_warning(tmp_path, capsys, what):
    study, (name, change, words) = study_of(tmp_path / "s"), BAD[what]
    damage(study / "bad", name, change)
    found = runs.read_all([study])
    assert [row["trial"] for row in tables.trials(found).rows] == ["good"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].endswith("; left out") and words in said[0] and str(study / "bad") in said[0], said
    with pytest.raises(ReportError, match="bad"):
        runs.read_all([study / "bad"])


@pytest.mark.parametrize("text", ["[1]", '{"trials": 3}', '{"trials": ["a"]}', '{"search": {"rungs": [3]}}'])
def test_a_study_file_that_cannot_be_read_is_left_out(tmp_path, capsys, text):
    study = study_of(tmp_path / "s")
    (study / "study.json").write_text(text)
    assert len(tables.trials(runs.read_all([study])).rows) == 2
    assert "study.json" in capsys.readouterr().err


@pytest.mark.thorough
def test_an_experiment_that_is_cut_off_anywhere_is_shown_or_left_out(tmp_path):
    study = study_of(tmp_path / "s")
    path = study / "bad" / "experiment.yaml"
    text = path.read_text()
    for length in range(0, len(text), 7):
        path.write_text(text[:length])
        assert tables.trials(runs.read_all([study])).rows[-1]["trial"] == "good"


@pytest.mark.parametrize("line, words", [
    ({"step": 7, "epoch": 1.0}, "no number 'samples'"),
    ({"step": float("nan"), "epoch": 1.0, "samples": 9}, "no number 'step'"),
    ({"step": 10**30, "epoch": 1.0, "samples": 9}, "no number 'step'"),
    ({"step": 7, "epoch": 1.0, "samples": 9, "validation_loss": "low"}, "'validation_loss' is no number"),
    ({"step": 7, "epoch": 1.0, "samples": 9, "validation_loss": 1.0, "evaluation_seconds": None}, "'evaluation_seconds' is no number"),
])
def test_a_line_with_a_value_that_is_no_number_is_left_out(tmp_path, capsys, line, words):
    run = study_of(tmp_path / "s") / "bad"
    rows = tables.trials(runs.read_all([run])).rows
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    assert tables.trials(runs.read_all([run])).rows == rows
    assert words in capsys.readouterr().err


def test_a_report_of_runs_with_huge_values_is_made(tmp_path):
    run = study_of(tmp_path / "s") / "bad"
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "epoch": 1.0, "samples": 9, "loss": 1e999, "seconds": 1e999, "grad_norm": ' + "9" * 400 + "}\n")
    assert sections.make(runs.read_all([run]))


def test_a_run_that_cannot_be_followed_is_left_out(tmp_path, capsys):
    study, followed = study_of(tmp_path / "s"), {}
    damage(study / "bad", "run.json", started(resumed_from_step="1"))
    follow.follow(following.Source([study]), [], followed, True, 0)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "bad/run.json: 'starts[0].resumed_from_step' is not a number; left out" in said[0], said
    with pytest.raises(ReportError, match="none of the runs can be read"):
        follow.follow(following.Source([study / "bad"]), [], {}, True, 0)


def tool(words, shell=""):
    """Runs a script with its output redirected as the shell's words say."""
    command = f'exec "$@" {shell}'
    line = ["sh", "-c", command, "sh", sys.executable, str(ROOT / "results" / words[0]), *map(str, words[1:])]
    return subprocess.run(line, capture_output=True, text=True, timeout=HANG_SECONDS)


def test_the_scripts_show_the_other_runs(tmp_path):
    study = study_of(tmp_path / "s")
    damage(study / "bad", *BAD["a word for the batch"][:2])
    for words in (["table.py", *sorted(study.iterdir())], ["report.py", study, "-o", tmp_path / "r.html"]):
        done = tool(words)
        assert done.returncode == 0 and done.stderr.count("\n") == 1 and "; left out" in done.stderr, done
    done = tool(["table.py", study / "bad"])
    assert done.returncode == 1 and done.stderr.startswith("table.py: error: ") and done.stderr.count("\n") == 1, done


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("shell", [">&-", ">/dev/full"])
def test_output_that_is_closed_or_full_is_one_error(tmp_path, monkeypatch, shell, unbuffered):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    run = study_of(tmp_path / "s") / "good"
    for words in (["table.py", run], ["plot.py", run, "-o", tmp_path / "a.png"], ["follow.py", "--help"], ["report.py", "--help"]):
        done = tool(words, shell)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done
        assert done.stderr.startswith(f"{words[0]}: error: ") and ("closed" in done.stderr or "No space left" in done.stderr), done


@pytest.mark.parametrize("kind", ["junk", "no kind", "no images", "a wrong label"])
def test_a_damaged_data_set_has_no_contact_sheet(tmp_path, kind):
    h5py, numpy = pytest.importorskip("h5py"), pytest.importorskip("numpy")
    path = tmp_path / "x-train-00000-of-00001.h5"
    path.write_bytes(b"junk")
    if kind != "junk":
        with h5py.File(path, "w") as file:
            file["labels"] = numpy.full(3, 9)
            if kind != "no kind":
                file.attrs["kind"] = "image"
            if kind == "a wrong label":
                file["class_names"] = ["a"]
                file["images"] = numpy.zeros((3, 8, 8, 3), "u1")
                file["images"].attrs["encoding"] = "raw"
    done = tool(["contact_sheet.py", tmp_path / "x", "-o", tmp_path / "a.png"])
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and f"{path}: " in done.stderr and "verify" in done.stderr, done
