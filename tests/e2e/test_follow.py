"""Tests results/follow.py. Its output is read back with TensorBoard's reader, from wandb's files, and with MLPerf's
checker."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import made_runs
from conftest import HANG_SECONDS, ROOT

sys.path.insert(0, str(ROOT / "results"))
import follow as program_of_follow  # noqa: E402
from reporting import following, references, to_wandb, trackers  # noqa: E402

FOLLOW = ROOT / "results" / "follow.py"
SITE = trackers.FOLDERS[0]
# These two programs run in processes of their own, because their packages differ from those of the other tests.
READ_EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
reader.Reload()
tags = reader.Tags()["scalars"]
print(json.dumps({tag: [(e.step, e.value, e.wall_time) for e in reader.Scalars(tag)] for tag in tags}))
"""
READ_WANDB = """
import json, sys
sys.path.append(sys.argv[1])
from pathlib import Path
from wandb.proto import wandb_internal_pb2
from reporting import wandb_file
paths = sorted(Path(sys.argv[2]).glob("wandb/offline-run-*/*.wandb"))
found = [wandb_file.history(path, wandb_internal_pb2) for path in paths]
runs = [r.run for path in paths for r in wandb_file.records(path, wandb_internal_pb2) if r.WhichOneof("record_type") == "run"]
settings = [
    (run.project, run.run_id, run.display_name, run.run_group, {i.key: json.loads(i.value_json) for i in run.config.update})
    for run in runs
]
print(json.dumps([found, settings]))
"""


def installed(script, folder):
    if not folder.is_dir():
        subprocess.run(
            [ROOT / ".ci" / script], timeout=240, capture_output=True, env={**os.environ, "PYTHON": sys.executable}
        )
    if not folder.is_dir():
        pytest.skip(f".ci/{script} could not install its packages: PyPI is not reached")


@pytest.fixture(scope="module")
def packages():
    installed("trackers.sh", SITE)


@pytest.fixture(scope="module")
def mlperf():
    installed("mlperf_logging.sh", trackers.FOLDERS[1])


def follow(*words, code=0, program=FOLLOW, **env):
    env = {**os.environ, "WANDB_MODE": "offline", **env}
    done = subprocess.run(
        [sys.executable, program, *map(str, words)], capture_output=True, text=True, timeout=HANG_SECONDS, env=env
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def python(code, *words):
    env = {**os.environ, "PYTHONPATH": str(SITE)}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=HANG_SECONDS, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def events(folder):
    """Maps each tag to [(step, value, time)], as TensorBoard reads a folder."""
    return python(READ_EVENTS, folder)


def wandb_rows(folder):
    """Returns (the rows of all offline runs in order, their summaries, their settings)."""
    found, settings = python(READ_WANDB, ROOT / "results", folder)
    return [row for rows, _ in found for row in rows], [summary for _, summary in found], settings


def single(value):
    """The value rounded to 32 bits."""
    return struct.unpack("f", struct.pack("f", value))[0]


def records_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_events_are(folder, records, start=None):
    """Expects every number of every record exactly once, in order, and nothing else. `start` is the time of the only
    start, in seconds since 1970."""
    found = events(folder)
    expected = {}
    for record in records:
        for key, value in trackers.numbers(record).items():
            if key != "step":
                expected.setdefault(key, []).append((record["step"], single(value)))
    assert {tag: [(step, value) for step, value, _ in values] for tag, values in found.items()} == expected
    if start:
        times = {r["step"]: start + r["elapsed_seconds"] for r in records if "elapsed_seconds" in r}
        assert [t for _, _, t in found["loss"]] == pytest.approx(list(times.values()), abs=1e-3)


def say(folder, outcome, starts=None):
    record = json.loads((folder / "run.json").read_text())
    record.update(outcome=outcome, starts=starts or record["starts"])
    scratch = folder / "run.json.tmp"
    scratch.write_text(json.dumps(record))
    scratch.rename(folder / "run.json")


def replace_metrics(folder, records):
    scratch = folder / "metrics.jsonl.tmp"
    scratch.write_text("".join(json.dumps(r) + "\n" for r in records))
    scratch.rename(folder / "metrics.jsonl")


def append(folder, records):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(r) + "\n" for r in records))


class Live:
    """follow.py, running while the run is being written."""

    def __init__(self, *words):
        env = {**os.environ, "WANDB_MODE": "offline"}
        command = [sys.executable, FOLLOW, *map(str, words), "--interval", "0.05"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def waits_for(self, holds, what):
        deadline = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < deadline, f"no {what} after 30 s"
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.05)

    def ends(self, code=0):
        text = self.process.communicate(timeout=HANG_SECONDS)[0]
        assert self.process.returncode == code, text
        return text


@pytest.fixture
def run(tmp_path):
    return made_runs.write(tmp_path / "study" / "a", 64)


# ---- TensorBoard ---------------------------------------------------------------------------------------------------


def test_tensorboard_reads_every_number_of_a_run_once(packages, run, tmp_path):
    follow(run, "--tensorboard", tmp_path / "events", "--once")
    assert_events_are(tmp_path / "events" / "a", records_of(run), start=1767225600)
    files = sorted((tmp_path / "events" / "a").glob("events*"))
    follow(run, "--tensorboard", tmp_path / "events")  # the run has ended, so follow.py ends, too
    assert sorted((tmp_path / "events" / "a").glob("events*")) == files


@pytest.mark.thorough
def test_restarts_write_no_step_twice_and_a_half_line_waits(packages, run, tmp_path):
    records = records_of(run)
    say(run, "not ended")
    for end in (7, 8, 30, len(records)):
        replace_metrics(run, records[:end])
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(records[end - 1])[:-9])
        follow(run, "--tensorboard", tmp_path / "events", "--once")
        assert_events_are(tmp_path / "events" / "a", records[:end])


@pytest.mark.thorough
def test_a_resumed_run_replaces_the_steps_that_it_computes_again(packages, run, tmp_path):
    """Tests it once while follow.py runs, and once between two calls of follow.py."""
    records = records_of(run)
    again = [{**r, "loss": r["loss"] + 0.01} if "loss" in r else r for r in records]
    begun = json.loads((run / "run.json").read_text())["starts"][0]
    say(run, "not ended")
    replace_metrics(run, records[:40])
    folder = tmp_path / "events" / "a"
    with Live(run, "--tensorboard", tmp_path / "events") as live:
        live.waits_for(lambda: any(folder.glob("events*")) and len(events(folder).get("loss", [])) > 30, "events")
        replace_metrics(run, records[:20])
        append(run, again[20:35])
        append(run, again[35:50])
        say(run, "stopped by SIGTERM after 1 s", [begun, {**begun, "resumed_from_step": records[19]["step"]}])
        assert "records went to" in live.ends()
    assert_events_are(folder, records[:20] + again[20:50])
    replace_metrics(run, records[:30])
    append(run, records[30:45])
    say(run, "finished")
    follow(run, "--tensorboard", tmp_path / "events")
    assert_events_are(folder, records[:45])
    # The numbers are the same, but the run now ends earlier. The records after its end must be gone.
    replace_metrics(run, records[:41])
    follow(run, "--tensorboard", tmp_path / "events")
    assert_events_are(folder, records[:41])


@pytest.mark.thorough
def test_other_numbers_of_a_resumed_run_are_taken_as_they_come(packages, run, tmp_path):
    """A resumed run cuts its file back and then goes on step by step. follow.py looks in between."""
    records = [r for r in records_of(run) if "loss" in r][:40]
    evaluation = next(r for r in records_of(run) if "validation_loss" in r)
    again = [{**r, "loss": r["loss"] + 0.01} for r in records]
    say(run, "not ended")
    replace_metrics(run, records)
    folder = tmp_path / "events" / "a"

    def evaluated(step, loss):
        return {**evaluation, "step": step, "validation_loss": loss}

    def comes(record, key):
        return lambda: (record["step"], single(record[key])) in [e[:2] for e in map(tuple, events(folder).get(key, []))]

    with Live(run, "--tensorboard", tmp_path / "events") as live:
        live.waits_for(lambda: any(folder.glob("events*")) and comes(records[-1], "loss")(), "last step")
        first = evaluated(records[19]["step"], 1.0)
        replace_metrics(run, [*records[:20], first])
        live.waits_for(comes(first, "validation_loss"), "evaluation")
        append(run, again[20:30])
        live.waits_for(comes(again[29], "loss"), "step that was computed again")
        second = evaluated(again[29]["step"], 2.0)
        append(run, [second])
        live.waits_for(comes(second, "validation_loss"), "second evaluation")
        # Only the evaluation has another result: its step's update must stay.
        replace_metrics(run, [*records[:20], first, *again[20:30]])
        time.sleep(0.5)
        third = evaluated(again[29]["step"], 3.0)
        append(run, [third])
        live.waits_for(comes(third, "validation_loss"), "third evaluation")
        say(run, "finished")
        live.ends()
    assert_events_are(folder, [*records[:20], first, *again[20:30], third])


def test_a_line_is_taken_when_it_has_its_end(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:20])
    reader = following.RunFolder(run)
    assert reader.new_records() == (True, [json.loads(lines[0])])
    with open(run / "metrics.jsonl", "a") as file:
        file.write(lines[1][20:])
        file.flush()
        assert reader.new_records() == (False, [])
        file.write("\n" + lines[2] + "\n")
    assert reader.new_records() == (False, [json.loads(lines[1]), json.loads(lines[2])])


def test_the_time_of_a_record_is_that_of_its_own_start():
    starts = [{"started": "2026-01-01T00:00:00Z"}, {"started": "2026-01-02T00:00:00Z", "resumed_from_step": 20}]
    clock, day, first = following.Clock(), 86400, 1767225600
    assert clock.time_of({"step": 10, "elapsed_seconds": 5.0}, starts) == first + 5
    assert clock.time_of({"step": 20, "elapsed_seconds": 10.0}, starts) == first + 10
    assert clock.time_of({"step": 20, "validation_loss": 1, "evaluation_seconds": 2.0}, starts) == first + 12
    assert clock.time_of({"step": 21, "elapsed_seconds": 12.5}, starts) == first + day + 0.5


def test_trials_of_a_study_are_followed_as_they_appear(packages, tmp_path):
    study = tmp_path / "grid"
    study.mkdir()

    def tell(*states):
        trials = [{"name": name, "state": state} for name, state in zip("abc", states)]
        (study / "study.json.tmp").write_text(json.dumps({"name": "grid", "trials": trials}))
        (study / "study.json.tmp").rename(study / "study.json")

    tell("waiting", "waiting", "waiting")
    with Live(study, "--tensorboard", tmp_path / "events") as live:
        time.sleep(0.3)
        for number, name in enumerate("ab"):
            made_runs.write(study / name, 64, seed=number + 1)
            tell(*["finished"] * (number + 1), *["waiting"] * (2 - number))
            live.waits_for(lambda: any((tmp_path / "events" / name).glob("events*")), f"events of {name}")
        tell("finished", "finished", "failed")
        live.ends()
    for name in "ab":
        assert_events_are(tmp_path / "events" / name, records_of(study / name))


@pytest.mark.parametrize("interval", [2, 60])
def test_without_a_study_file_it_ends_half_a_minute_after_the_last_run_has_ended(run, monkeypatch, interval):
    """The clock is invented. The first run ends after 300 s, and 20 s later a second one begins, which is complete at
    once."""
    now = 0

    def sleep(seconds):
        nonlocal now
        before, now = now, now + seconds
        if before < 300 <= now:
            say(run, "finished")
        if before < 320 <= now:
            made_runs.write(run.parent / "b", 128)

    say(run, "not ended")
    monkeypatch.setattr(program_of_follow, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    followed = {}
    program_of_follow.follow(following.Source([run.parent]), [], followed, False, interval)
    assert sorted(path.name for path in followed) == ["a", "b"]
    assert 350 <= now <= 350 + 2 * interval


def test_a_second_follower_of_a_run_is_refused(run, tmp_path):
    first = trackers.Claim(following.RunFolder(run), "wandb's project p", tmp_path)
    with pytest.raises(trackers.ReportError, match=f"process {os.getpid()}"):
        trackers.Claim(following.RunFolder(run), "wandb's project p", tmp_path)
    other = trackers.Claim(following.RunFolder(run), "wandb's project q", tmp_path)
    first.release()
    trackers.Claim(following.RunFolder(run), "wandb's project p", tmp_path).release()
    other.release()


def test_a_step_with_another_rate_differs_and_one_with_other_times_does_not():
    written = trackers.Written()
    record = {"step": 3, "loss": 1.5, "lr": 0.1, "seconds": 0.2, "samples_per_second": 10.0}
    written.add(record)
    assert not written.differs({**record, "seconds": 0.3, "samples_per_second": 11.0})
    written.add({**record, "_step": 2, "_timestamp": 1.0, "_runtime": 5})  # as wandb's files give it back
    assert not written.differs(record)
    assert written.differs({**record, "lr": 0.05})
    assert written.differs({**record, "grad_norm": 1.0}), "a number that was not there"


def test_another_run_of_the_same_name_is_refused(packages, run, tmp_path):
    follow(run, "--tensorboard", tmp_path / "events", "--once")
    shutil.move(run, tmp_path / "elsewhere")
    other = made_runs.write(tmp_path / "other" / "a", 128)
    text = follow(other, "--tensorboard", tmp_path / "events", "--once", code=1).stderr
    assert "events of another run" in text and "give another --tensorboard DIR" in text


@pytest.mark.thorough
def test_a_training_that_is_killed_and_resumed_is_followed_to_its_end(packages, workshop):
    words = {"stop__epochs": 3, "checkpoint__every_steps": 5, "stop__steps": 0}
    run, job = workshop.start_training("run", **words)
    deadline = time.monotonic() + 30
    while not (run / "metrics.jsonl").is_file():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with Live(run, "--tensorboard", workshop.folder / "events") as live:
        while len((run / "metrics.jsonl").read_text().splitlines()) < 12 and job.process.poll() is None:
            time.sleep(0.01)
        job.kill()
        workshop.train("run", resume=True, **words)
        live.ends()
    # Steps that were computed again have the same values, so the times of their first computation stay.
    found, lasting = events(workshop.folder / "events" / "run"), ("loss", "lr", "grad_norm", "validation_loss")
    for key in lasting:
        assert [(s, v) for s, v, _ in found[key]] == [(r["step"], single(r[key])) for r in records_of(run) if key in r]


# ---- Weights & Biases ----------------------------------------------------------------------------------------------


def assert_rows_are(rows, records):
    assert [{k: v for k, v in row.items() if k[0] != "_"} for row in rows] == [trackers.numbers(r) for r in records]


@pytest.mark.thorough
def test_wandb_has_every_number_of_a_run_once(packages, run, tmp_path):
    records = records_of(run)
    say(run, "not ended")
    for end in (9, 33, len(records)):
        replace_metrics(run, records[:end])
        if end == len(records):
            say(run, "finished")
        follow(run, "--wandb", "made", "--wandb-dir", tmp_path, "--once")
    rows, summaries, settings = wandb_rows(tmp_path)
    assert_rows_are(rows, records)
    assert summaries[-1]["outcome"] == '"finished"' or summaries[-1]["outcome"] == "finished"
    assert {(project, name) for project, _, name, _, _ in settings} == {("made", "a")}
    assert len({run_id for _, run_id, _, _, _ in settings}) == 1
    assert settings[0][4]["batch"]["global"] == 64 and settings[0][4]["ranks"] == 1
    count = len(list(tmp_path.glob("wandb/offline-run-*")))
    follow(run, "--wandb", "made", "--wandb-dir", tmp_path)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == count
    listed = subprocess.run(
        [SITE.parents[2] / "bin" / "wandb", "sync", "--dry-run", *sorted(tmp_path.glob("wandb/offline-run-*"))],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=tmp_path,
        env={**os.environ, "WANDB_API_KEY": ""},
    )
    assert listed.returncode == 0 and settings[0][1] in listed.stdout + listed.stderr, listed


@pytest.mark.parametrize("end", [19, 20, 21, 22])
def test_wandb_goes_on_after_the_last_record_when_its_files_are_gone(run, tmp_path, end):
    """The server, which stands in for wandb, keeps a summary: the newest value of each key."""
    records, rows, summary = records_of(run), [], {}
    kinds = [following.is_evaluation(r) for r in records[18:22]]
    assert True in kinds and False in kinds

    class Server:
        folder, messages = tmp_path, None

        def begin(self, *_):
            return SimpleNamespace(summary=summary, log=lambda row: (rows.append(row), summary.update(row)))

    to_wandb.RunWriter(Server(), following.RunFolder(run)).take([(r, 0) for r in records[:end]], True)
    to_wandb.RunWriter(Server(), following.RunFolder(run)).take([(r, 0) for r in records], True)
    assert rows == [trackers.numbers(r) for r in records]


def test_wandb_takes_only_errors_for_failures():
    good = ("finished", "stopped by SIGTERM after 1 s", "paused after 1024 samples")
    assert [to_wandb.exit_code(outcome) for outcome in (*good, "error: step 3: the loss is NaN")] == [0, 0, 0, 1]


@pytest.mark.thorough
def test_trials_of_a_study_are_a_group_of_wandb(packages, tmp_path):
    study = made_runs.grid(tmp_path / "grid", batches=(512,), rates=(0.1,), seeds=(1, 2))
    (study / "study.json").write_text(
        json.dumps({"trials": [{"name": p.name, "state": "finished"} for p in study.iterdir()]})
    )
    follow(study, "--wandb", "made", "--wandb-dir", tmp_path / "w")
    rows, _, settings = wandb_rows(tmp_path / "w")
    names = {p.name for p in study.iterdir() if p.is_dir()}
    assert {(name, group) for _, _, name, group, _ in settings} == {(name, "grid") for name in names}
    assert len(rows) == sum(len(records_of(study / name)) for name in names)


# ---- MLPerf --------------------------------------------------------------------------------------------------------


def imagenet_run(folder, best=0.7605, outcome="finished", **changes):
    """Writes a run folder as a run of configs/imagenet_resnet50_mlperf.yaml would leave it."""
    (row,) = [r for r in references.read() if r.table.startswith("reference conv") and r.batch == 4096]
    tree = {}
    for key, value in {**references.recipe(row), **changes}.items():
        *sections, last = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = list(value) if isinstance(value, tuple) else value
    per_epoch, seconds, lines = 313, 0.2, []
    for epoch in [2, *range(6, 43, 4)]:
        accuracy = best - 0.01 * (42 - epoch)
        step = epoch * per_epoch
        shared = {"step": step, "epoch": epoch, "samples": epoch * 1281167}
        lines.append({**shared, "loss": 2.0, "lr": 1.0, "elapsed_seconds": step * seconds})
        lines.append({**shared, "validation_loss": 1.2, "validation_accuracy": accuracy, "evaluation_seconds": 9.0})
    record = made_runs.start(
        4096,
        64,
        lines[-2]["elapsed_seconds"],
        outcome,
        samples=1281167,
        total_steps=42 * per_epoch,
        steps_per_epoch=per_epoch,
    )
    record["batch"]["accumulation"] = 1
    record["validation"]["samples"] = 50000
    made_runs.write_files(folder, tree, record, lines)
    return folder


def checker(log):
    """Returns (accepted, output) of MLPerf's compliance checker."""
    env = {**os.environ, "PYTHONPATH": str(trackers.FOLDERS[1])}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mlperf_logging.compliance_checker",
            "--ruleset",
            "4.0.0",
            "--log_output",
            "/dev/null",
            log,
        ],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=env,
    )
    return done.returncode == 0, done.stdout + done.stderr


def test_mlperfs_checker_accepts_the_log_of_an_imagenet_run(mlperf, tmp_path):
    run, log = imagenet_run(tmp_path / "run"), tmp_path / "result_0.txt"
    words = follow(run, "--mllog", log, "--mllog-org", "Acme").stdout
    assert checker(log)[0], checker(log)[1]
    assert "To check" in words and "needs" not in words
    lines = [json.loads(line.split(" ", 1)[1]) for line in log.read_text().splitlines()]
    values = {line["key"]: line["value"] for line in lines}
    expected = {
        "lars_opt_base_learning_rate": 10,
        "lars_opt_learning_rate_warmup_epochs": 5,
        "global_batch_size": 4096,
        "lars_opt_learning_rate_decay_steps": 37 * 313,
        "train_samples": 1281167,
        "eval_samples": 50000,
        "seed": 1,
        "lars_opt_weight_decay": 0.0002,
        "model_bn_span": 64,
        "submission_org": "Acme",
        "opt_name": "lars",
    }
    assert {key: values[key] for key in expected} == expected
    reached = [line["metadata"]["epoch_num"] for line in lines if line["key"] == "eval_accuracy"]
    assert reached == [2, *range(6, 43, 4)]
    assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
    (stop,) = [line for line in lines if line["key"] == "run_stop"]
    assert stop["metadata"]["status"] == "success"
    assert stop["time_ms"] == 1000 * (1767225600 + 42 * 313 * 0.2 + 9)
    before = log.read_bytes()
    follow(run, "--mllog", log, "--mllog-org", "Acme")
    assert log.read_bytes() == before


@pytest.mark.thorough
def test_mlperfs_checker_accepts_sgd_and_refuses_what_we_say_it_refuses(mlperf, tmp_path):
    sgd = {"optimizer.kind": "sgd", "optimizer.weight_decay": 0.0001, "learning_rate.base": 10.0}
    follow(imagenet_run(tmp_path / "sgd", **sgd), "--mllog", tmp_path / "sgd.txt")
    assert checker(tmp_path / "sgd.txt")[0], checker(tmp_path / "sgd.txt")[1]
    bad = {
        "low": ({"best": 0.75}, "eval_accuracy of 0.759 or more; the best is 0.75"),
        "decay": (
            {"optimizer.weight_decay": 0.0003},
            "lars_opt_weight_decay 0.0001 times a power of two; this is 0.0003",
        ),
        "end": ({"learning_rate.end": 0.0}, "lars_opt_end_learning_rate 0.0001; this is 0"),
        "steps": (
            {"learning_rate.schedule": "step"},
            "lars_opt_end_learning_rate, lars_opt_learning_rate_decay_poly_power",
        ),
        "adam": ({"optimizer.kind": "adam"}, "opt_name lars or sgd"),
    }
    for name, (changes, expected) in bad.items():
        words = follow(imagenet_run(tmp_path / name, **changes), "--mllog", tmp_path / f"{name}.txt").stdout
        assert expected in words, words
        assert not checker(tmp_path / f"{name}.txt")[0], name


def test_another_run_gets_what_it_has_and_a_sentence(mlperf, run, tmp_path):
    say(run, "not ended")
    words = follow(run, "--mllog", tmp_path / "log.txt", "--once").stdout
    assert "is not a log of MLPerf's closed ResNet-50 benchmark" in words and "this is cnn on made-train" in words
    text = (tmp_path / "log.txt").read_text()
    accuracies = [e["validation_accuracy"] for e in records_of(run) if "validation_accuracy" in e]
    assert text.count('"eval_accuracy"') == len(accuracies) and f'"value": {accuracies[-1]}' in text
    assert "run_stop" not in text


def test_a_pipe_gets_the_log_once_and_a_link_stays(mlperf, tmp_path):
    run, log, link, pipe = imagenet_run(tmp_path / "run"), tmp_path / "log.txt", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(log)
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    for place in link, pipe:
        follow(run, "--mllog", place)
    got = reader.communicate(timeout=HANG_SECONDS)[0]
    assert link.is_symlink() and pipe.is_fifo()
    assert got.count("run_start") == log.read_text().count("run_start") == 1 and len(got.splitlines()) == len(log.read_text().splitlines())


def test_a_study_has_a_log_for_each_trial(mlperf, tmp_path):
    for seed in (1, 2):
        made_runs.write(tmp_path / "grid" / f"s{seed}", 64, seed=seed)
    follow(tmp_path / "grid", "--mllog", tmp_path / "logs" / "result.txt", "--once")
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == ["result-s1.txt", "result-s2.txt"]


# ---- Errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option, package", [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mllog", "mlperf-logging")]
)
def test_a_missing_package_is_one_error_with_the_command(run, tmp_path, option, package):
    shutil.copytree(ROOT / "results" / "reporting", tmp_path / "copy" / "results" / "reporting")
    program = shutil.copy(FOLLOW, tmp_path / "copy" / "results")
    blocked = tmp_path / "blocked"
    for name in ("tensorboard", "wandb", "mlperf_logging"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not here')")
    text = follow(run, f"--{option}", tmp_path / "x", "--once", code=1, program=program, PYTHONPATH=str(blocked)).stderr
    assert text.startswith("follow.py: error: ") and len(text.splitlines()) == 1, text
    assert f"-m pip install {package}" in text and "://" not in text


def test_bad_words_are_one_clear_error(mlperf, run, tmp_path):
    assert "nowhere does not exist" in follow(tmp_path / "nowhere", "--mllog", tmp_path / "x", "--once", code=1).stderr
    assert "say where to" in follow(run, "--once", code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "no run has begun" in follow(tmp_path / "empty", "--mllog", tmp_path / "x", "--once", code=1).stderr
    (tmp_path / "notes.txt").write_text("mine")
    text = follow(run, "--mllog", tmp_path / "notes.txt", "--once", code=1).stderr
    assert "is no MLPerf log" in text and (tmp_path / "notes.txt").read_text() == "mine"
