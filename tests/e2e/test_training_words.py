"""Tests what plan and train say of data and settings that would give a useless model, and that both say it alike."""

import json
import os
import subprocess

import h5py
import numpy
import pytest
import yaml

from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, PROGRAM, ROOT, environment

EXPERIMENT = {
    "name": "words",
    "model": {"kind": "cnn"},
    "data": {"train": "toy-train", "validation": "toy-validation", "image_size": 8, "resize": 8, "augmentation": "none", "flip": False},
    "batch": {"global": 16, "worker": 8},
    "optimizer": {"kind": "sgd"},
    "learning_rate": {"base": 0.05},
    "stop": {"epochs": 10},
    "run": {"threads": 1},
}


def call(folder, *words, cwd=None):
    return subprocess.run([str(w) for w in words], cwd=cwd or folder, capture_output=True, env=environment(), timeout=HANG_SECONDS)


def text_of(result):
    return (result.stdout + result.stderr).decode(errors="replace")


def make_data(folder, first_label, classes=3):
    rng = numpy.random.default_rng(1)
    labels = numpy.arange(96, dtype="i4") % classes + first_label
    pictures = rng.integers(0, 256, (96, 8, 8, 3), dtype="u1")
    with h5py.File(folder / "toy.h5", "w") as file:
        file["x"], file["y"] = pictures, labels
    done = call(folder, CONVERTER, "import", "toy.h5", "--images", "x", "--labels", "y", "--validation", "0.2", "--out", "toy")
    assert done.returncode == 0, text_of(done)
    (folder / "toy.yaml").write_text(yaml.safe_dump(EXPERIMENT), encoding="utf-8")
    return text_of(done)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    assert "warning" not in make_data(folder, 0)
    return folder


def test_labels_from_one_are_named_by_import_plan_and_train(tmp_path):
    assert "class 0 has no pictures" in make_data(tmp_path, 1)
    for words in (["plan", "toy.yaml"], ["train", "toy.yaml", "stop.epochs=0", "stop.steps=1"]):
        told = text_of(call(tmp_path, PROGRAM, *words))
        assert told.count("class 0 ('0') has no pictures in toy-train") == 1, told


def test_classes_that_a_share_leaves_out_are_named(toy):
    few = ["plan", "toy.yaml", "batch.global=1", "batch.worker=1"]
    told = text_of(call(toy, PROGRAM, *few, "data.share=0.013"))  # one picture of 77
    assert "data.share 0.013 leaves no pictures of 2 of 3 classes" in told, told
    assert "leaves no pictures" not in text_of(call(toy, PROGRAM, *few, "data.share=0.5"))


def test_good_labels_have_no_warning(toy):
    assert "no pictures" not in text_of(call(toy, PROGRAM, "plan", "toy.yaml"))


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_norm_over_one_value_is_refused(toy, command):
    resnet = ["model.kind=resnet", "model.depth=18", "model.width=16", "model.stem=small"]
    refused = call(toy, PROGRAM, command, "toy.yaml", *resnet, "batch.worker=1", "run.id=norm")
    assert refused.returncode == 1
    assert "batch norm layer4.0" in text_of(refused) and "batch.worker to 2 or more" in text_of(refused)
    assert not (toy / "results/words/norm").exists()
    two = text_of(call(toy, PROGRAM, "plan", "toy.yaml", *resnet, "batch.worker=2"))
    assert "normalises only 2 values" in two
    assert "normalises" not in text_of(call(toy, PROGRAM, "plan", "toy.yaml", *resnet, "batch.worker=4"))


def test_a_fixed_order_asks_for_threads(toy):
    told = text_of(call(toy, PROGRAM, "plan", "toy.yaml", "communication.order=fixed", "run.threads=0"))
    assert "Set run.threads to the number of threads" in told and "order=any" not in told


def diverging(folder, *more, ranks=1):
    launcher = [LAUNCHER, ranks] if ranks > 1 else []
    return call(folder, *launcher, PROGRAM, "train", "toy.yaml", "optimizer.kind=adam", "learning_rate.base=30", "checkpoint.every_epochs=2", *more)


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_a_run_ends_when_its_loss_stays_above_the_first_one(toy):
    ended = diverging(toy, "run.id=high")
    found = losses(toy / "results/words/high")
    assert ended.returncode == 1 and "the run has diverged" in text_of(ended), text_of(ended)
    assert len(found) < 40, "40 steps are the whole run"
    assert all(loss > found[0] for loss in found[-9:])
    again = call(toy, PROGRAM, "train", "results/words/high", "--resume")
    assert "the run has diverged" in text_of(again), "a resumed run decides alike"
    assert len(losses(toy / "results/words/high")) == len(found)


def test_a_share_of_zero_trains_on_and_a_good_run_is_left_alone(toy):
    assert "has diverged" not in text_of(diverging(toy, "run.id=off", "stop.diverged_share=0"))
    good = call(toy, PROGRAM, "train", "toy.yaml", "run.id=good")
    assert good.returncode == 0 and len(losses(toy / "results/words/good")) > 30


def test_a_path_that_is_not_utf8_is_refused_at_the_start(toy):
    name = b"caf\xe9"
    command = [os.fsencode(PROGRAM), b"train", b"toy.yaml", b"run.dir=" + name]
    refused = subprocess.run(command, cwd=toy, capture_output=True, env=environment(), timeout=HANG_SECONDS)
    told = text_of(refused)
    assert refused.returncode == 1 and "run.dir has the byte 0xe9" in told and "ln -s" in told, told
    assert not os.path.exists(os.fsencode(toy) + b"/" + name)


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\x7fb"])
def test_a_path_with_a_control_character_is_refused_by_that_name(toy, name):
    refused = call(toy, PROGRAM, "train", "toy.yaml", f"run.dir={name}")
    told = text_of(refused)
    assert refused.returncode == 1 and f"run.dir has the byte {ord(name[1]):#04x}" in told and "after 'a'" in told, told
    assert not (toy / name).exists()


BAD_STUDIES = {  # what a study names, with a place for a path that cannot be kept
    "the value of a trial": "vary: {{data.train: [toy-train, {}]}}\n",
    "a fixed value": "vary:\n  which:\n    one: {{data.train: {}}}\n",
}


@pytest.mark.parametrize("what", BAD_STUDIES)
def test_a_study_with_a_path_of_two_lines_is_refused_at_the_start(toy, what):
    (toy / "study.yaml").write_text("name: bad-study\nexperiment: toy.yaml\n" + BAD_STUDIES[what].format('"a\\nb"'))
    for words in (["--plan"], []):
        refused = call(toy, PROGRAM, "study", "study.yaml", *words)
        told = text_of(refused)
        assert refused.returncode == 1 and "data.train has the byte 0x0a (a new line) after 'a'" in told, told
    assert not (toy / "results" / "bad-study").exists()


@pytest.mark.parametrize("name", [b"two\nlines", b"caf\xe9"])
@pytest.mark.thorough
def test_a_study_works_in_a_folder_of_any_name(toy, name):
    """The study file, the experiment beside it and the study's own results are in the folder."""
    folder = os.path.join(os.fsencode(toy), name)
    os.mkdir(folder)
    for file in toy.glob("*.h5"):
        os.symlink(file, os.path.join(folder, os.fsencode(file.name)))
    with open(os.path.join(folder, b"toy.yaml"), "wb") as out:
        out.write((toy / "toy.yaml").read_bytes())
    with open(os.path.join(folder, b"study.yaml"), "wb") as out:
        out.write(b"name: odd-study\nexperiment: toy.yaml\nvary: {learning_rate.base: [0.01, 0.02]}\nlimits: {samples: 128}\n")
    done = subprocess.run([os.fsencode(PROGRAM), b"study", os.path.join(folder, b"study.yaml")], cwd=folder, capture_output=True,
                          env=environment(), timeout=HANG_SECONDS)
    assert done.returncode == 0, done
    table = subprocess.run([b"/usr/bin/python3", os.fsencode(ROOT / "results/table.py"), os.path.join(folder, b"results/odd-study")],
                           capture_output=True, timeout=HANG_SECONDS)
    assert table.returncode == 0 and table.stdout.count(b"finished") >= 2, table


@pytest.mark.thorough
def test_a_run_in_a_folder_that_is_not_utf8_is_shown_in_a_table(toy):
    call(toy, PROGRAM, "train", "toy.yaml", "run.id=moved", "stop.epochs=0", "stop.steps=2")
    target = os.path.join(os.fsencode(toy), b"moved-\xe9")
    os.rename(os.fsencode(toy / "results/words/moved"), target)
    table = subprocess.run([b"/usr/bin/python3", os.fsencode(ROOT / "results/table.py"), target], capture_output=True, timeout=HANG_SECONDS)
    assert table.returncode == 0 and rb"moved-\xe9" in table.stdout, table
