"""Tests that save and resume equal an uninterrupted run. Whatever interrupts a run, the files on disk stay whole."""
import fcntl
import json
import os
import random
import shutil
import subprocess
import time

import h5py
import pytest
import yaml

from conftest import (arrays, assert_close, assert_same_bits, checkpoints, curve, evaluations, is_alive, last_step,
                      make_names, records, steps)


def steps_per_epoch(run_dir):
    return round(1 / steps(run_dir)[0]["epoch"])


@pytest.fixture(scope="module")
def epoch_length(tmp_path_factory, names):
    """The steps per epoch of the names, from a run of one step."""
    from conftest import Workshop
    shop = Workshop(tmp_path_factory.mktemp("epoch"), names)
    return steps_per_epoch(shop.train("run", stop__steps=1))


@pytest.mark.fast_cases(
    "adam-inside an epoch", "sgd-at an epoch's end", "muon-inside an epoch", "schedule-free adamw-after one step")
@pytest.mark.parametrize("where", ["at an epoch's end", "inside an epoch", "after one step"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lars", "lamb", "rmsprop", "rmsprop_to_sgd", "muon",
                                       "schedule-free sgd", "schedule-free adamw"])
def test_resuming_on_the_same_ranks_continues_bit_for_bit(workshop, epoch_length, where, optimizer):
    cut = {"at an epoch's end": epoch_length, "inside an epoch": epoch_length + 5, "after one step": 1}[where]
    end = epoch_length + 9
    keys = {"kind": optimizer.split()[-1], "schedule_free": optimizer.startswith("schedule-free")}
    common = dict(ranks=2, optimizer=keys, model__dropout=0.3)
    whole = workshop.train("whole", stop__steps=end, **common)
    workshop.train("parts", stop__steps=cut, **common)
    assert last_step(workshop.folder / "parts") == cut
    parts = workshop.train("parts", stop__steps=end, resume=True, **common)
    assert_same_bits(whole, parts)
    assert evaluations(whole)[-1]["validation_loss"] == evaluations(parts)[-1]["validation_loss"]


def test_resuming_carries_the_hidden_state_of_streams(workshop, text):
    workshop.data = text
    common = dict(ranks=2, data__order="streams", data__sequence=12, batch={"global": 16, "worker": 4})
    whole = workshop.train("whole", stop__steps=11, **common)
    workshop.train("parts", stop__steps=4, **common)
    assert "state/lstm" in arrays(checkpoints(workshop.folder / "parts")[-1])
    assert_same_bits(whole, workshop.train("parts", stop__steps=11, resume=True, **common))


@pytest.mark.parametrize("data", ["names", "text"])
@pytest.mark.thorough
def test_resuming_on_another_number_of_ranks_continues_within_rounding(workshop, text, data):
    common = {}
    if data == "text":
        workshop.data = text
        common = dict(data__order="streams", data__sequence=12, batch={"global": 16, "worker": 4})
    whole = workshop.train("whole", stop__steps=20, ranks=2, **common)
    for ranks in 1, 4:
        run = f"parts-{ranks}"
        workshop.train(run, stop__steps=10, ranks=2, **common)
        assert_close(whole, workshop.train(run, stop__steps=20, ranks=ranks, resume=True, **common))


def test_metrics_are_cut_back_to_the_checkpoint(workshop):
    whole = workshop.train("whole", stop__steps=14)
    run = workshop.train("run", stop__steps=10)
    with open(run / "metrics.jsonl", "a") as file:  # written by a killed job after its last checkpoint
        file.write('{"step": 11, "epoch": 1, "samples": 352, "loss": 99}\n{"step": 12, "epo')
    workshop.train("run", stop__steps=14, resume=True)
    assert_same_bits(whole, run)


@pytest.mark.parametrize("ranks", [1, 2])
def test_metrics_that_are_removed_while_a_run_trains_end_it_with_a_whole_checkpoint(workshop, ranks):
    run, job = workshop.start_training("run", ranks=ranks, stop__steps=10**6, checkpoint={"every_steps": 20}, evaluate={"every_epochs": 0})
    job.wait_for_step(run, 3)
    (run / "metrics.jsonl").unlink()
    result = job.wait()
    assert result.code != 0 and "metrics.jsonl: was removed, moved or replaced" in result.err and "--resume" in result.err, result
    step = int(checkpoints(run)[-1].stem.split("-")[1])
    resumed = workshop.start_training("run", ranks=ranks, resume=True, stop__steps=step + 2, evaluate={"every_epochs": 0})[1].wait()
    assert resumed.code == 0 and f"metrics.jsonl: has no records of steps 1 to {step}, so" in resumed.err, resumed
    assert [r["step"] for r in steps(run)] == [step + 1, step + 2]


def test_metrics_that_lack_an_evaluation_or_steps_are_named_by_a_resume(workshop):
    run = workshop.train("run", stop__steps=6, evaluate={"every_epochs": 0})
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2] + lines[3:6]))
    resumed = workshop.start_training("run", resume=True, stop__steps=8)[1].wait()
    assert resumed.code == 0 and "has no records of step 3, the evaluation after step 6, so" in resumed.err, resumed


def kill_at(workshop, run, step, delay, **arguments):
    """Starts or continues the run and kills it with SIGKILL after this step. Returns False if it had ended before."""
    env = {"OMPI_MCA_orte_tmpdir_base": str(workshop.folder)}  # a killed mpirun leaves its files there
    run_dir, job = workshop.start_training(run, resume=(workshop.folder / run).exists(), env=env, **arguments)
    deadline = time.monotonic() + 60
    while last_step(run_dir) < step and job.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(delay)
    running = job.process.poll() is None
    job.kill()
    for pid in job.pids.values():
        while is_alive(pid):
            time.sleep(0.01)
    return running


@pytest.mark.thorough
def test_kill_9_at_random_moments_then_resume_ends_in_the_same_place(workshop):
    common = dict(ranks=2, stop__steps=1200, checkpoint={"every_steps": 20, "keep": 2}, evaluate={"every_steps": 100})
    whole = workshop.train("whole", **common)
    seed = random.randrange(1 << 30)
    generator = random.Random(seed)
    print(f"seed of the kills: {seed}")
    kills = 0
    for step in sorted(generator.sample(range(1, 1100), 4)):
        kills += kill_at(workshop, "killed", step, generator.uniform(0, 0.05), **common)
    kills += kill_at(workshop, "killed", 0, generator.uniform(0, 1), **common)  # at any time during the start
    print(f"{kills} kills hit the run")
    assert kills >= 2, "too few kills hit the run"
    killed = workshop.train("killed", resume=True, **common)
    assert_same_bits(whole, killed)
    assert [e["validation_loss"] for e in evaluations(killed)] == [e["validation_loss"] for e in evaluations(whole)]
    assert not list((killed / "checkpoints").glob("*.tmp"))


@pytest.mark.thorough
def test_a_killed_first_start_can_be_resumed_without_a_checkpoint(workshop):
    whole = workshop.train("whole", stop__steps=6)
    empty = workshop.folder / "empty"
    empty.mkdir()
    assert_same_bits(whole, workshop.train("empty", stop__steps=6, resume=True))
    run, job = workshop.start_training("run", stop__steps=10**6, checkpoint={"every_epochs": 0},
                                       evaluate={"every_epochs": 0})
    job.wait_for_step(run, 3)
    job.kill()
    assert not checkpoints(run)
    before = [r["step"] for r in steps(run)]
    assert_same_bits(whole, workshop.train("run", stop__steps=6, resume=True))
    kept, = run.glob("metrics-steps-*.jsonl")
    assert [json.loads(line)["step"] for line in kept.read_text().splitlines()] == before


def test_a_finished_run_that_has_lost_its_checkpoints_loses_no_records(workshop):
    run = workshop.train("run", stop__steps=8)
    before = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints")
    result = workshop.start_training("run", resume=True, stop__steps=2)[1].wait()
    assert result.code == 0 and "metrics-steps-1-to-8.jsonl" in result.out, result
    assert (run / "metrics-steps-1-to-8.jsonl").read_bytes() == before
    assert [r["step"] for r in steps(run)] == [1, 2]


@pytest.mark.parametrize("rate, kept", [(0.01, []), (0.02, ["metrics-steps-5-to-6.jsonl"])])
def test_records_that_will_not_be_computed_again_are_kept(workshop, rate, kept):
    run = workshop.train("run", stop__steps=6, checkpoint={"every_steps": 4}, evaluate={"every_epochs": 0})
    checkpoints(run)[-1].unlink()  # as if the run had been killed between steps 6 and 8
    (run / "checkpoints" / "best.h5").unlink(missing_ok=True)
    workshop.train("run", stop__steps=6, resume=True, learning_rate__base=rate)
    assert [path.name for path in run.glob("metrics-*.jsonl")] == kept
    assert [r["step"] for r in steps(run)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.thorough
def test_records_of_a_start_with_other_keys_are_kept(workshop):
    """The start that wrote the newest records had another rate than the checkpoint and than this start."""
    quiet = dict(checkpoint={"every_epochs": 0}, evaluate={"every_epochs": 0})
    run = workshop.train("run", stop__steps=4, **quiet)
    _, job = workshop.start_training("run", resume=True, stop__steps=10**6, learning_rate__base=0.02, **quiet)
    job.wait_for_step(run, 8)
    job.kill()
    lost = [line for line in (run / "metrics.jsonl").read_text().splitlines() if json.loads(line)["step"] > 4]
    result = workshop.start_training("run", resume=True, stop__steps=4, **quiet)[1].wait()
    assert result.code == 0 and "changed since the last start: learning_rate.base: 0.02 -> 0.01" in result.out, result
    kept, = run.glob("metrics-steps-5-to-*.jsonl")
    assert kept.read_text().splitlines() == lost and len(lost) >= 4
    assert [r["step"] for r in steps(run)] == [1, 2, 3, 4]


def test_a_folder_with_a_run_is_never_overwritten(workshop):
    run = workshop.train("run", stop__steps=3)
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = workshop.train_badly("run", stop__steps=3, ranks=2)
    assert result.err.count("not empty") == 1 and "--resume" in result.err, result
    assert before == {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_resuming_what_is_not_there_is_an_error(workshop):
    result = workshop.train_badly("none", resume=True, ranks=2)
    assert result.err.count("no such run folder") == 1, result
    assert not (workshop.folder / "none").exists()


@pytest.mark.thorough
def test_two_jobs_cannot_work_in_one_folder(workshop):
    run, job = workshop.start_training("run", stop__steps=10**6)
    job.wait_for_step(run, 1)
    result = workshop.train_badly("run", resume=True)
    assert "another job works in this run folder" in result.err, result
    assert job.process.poll() is None, "the first job must not notice"


def test_nothing_is_read_in_a_folder_before_it_is_locked(workshop):
    """The job that holds the lock may write a newer checkpoint until it ends. Anything read before that would be
    old."""
    run = workshop.train("run", stop__steps=3)
    for path in (run / "checkpoints").glob("*.h5"):
        path.write_bytes(b"")  # reading it gives an error
    with open(run / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = workshop.train_badly("run", resume=True, ranks=2)
    assert result.err.count("another job works in this run folder") == 1, result
    assert "checkpoint skipped" not in result.err, result


@pytest.mark.parametrize("change, words", [
    (dict(model__hidden=24), ["model.hidden is 24, was 16"]),
    (dict(model__layers=3), ["model.layers is 3, was 2"]),
    (dict(batch__worker=4), ["batch.worker is 4, was 8"]),
    (dict(seed=2), ["seed is 2, was 1"]),
    (dict(optimizer={"kind": "sgd"}), ["optimizer.kind is sgd, was adam"]),
    (dict(optimizer={"kind": "adam", "beta2": 0.99}), ["optimizer.beta2 is 0.99, was 0.999"]),
    (dict(optimizer={"kind": "adamw", "schedule_free": True}), ["optimizer.schedule_free is true, was false"]),
])
@pytest.mark.thorough
def test_a_checkpoint_of_another_experiment_is_one_clear_error_on_all_ranks(workshop, change, words):
    run = workshop.train("run", stop__steps=3, ranks=2)
    before = checkpoints(run)[-1].read_bytes()
    result = workshop.train_badly("run", stop__steps=6, ranks=4, resume=True, **change)
    assert result.err.count("ringtrain: error") == 1, result
    assert all(word in result.err for word in words) and ".h5" in result.err, result
    assert checkpoints(run)[-1].read_bytes() == before


def test_the_place_of_the_average_stays_over_a_schedule_free_run(workshop):
    keys = {"kind": "sgd", "schedule_free": True}
    workshop.train("run", stop__steps=3, optimizer=keys)
    result = workshop.train_badly("run", stop__steps=6, resume=True, optimizer={**keys, "momentum": 0.8})
    assert "optimizer.momentum is 0.8, was 0.9" in result.err, result


def test_a_data_set_that_has_changed_is_an_error(workshop):
    workshop.data = make_names(workshop.folder / "changing")
    workshop.train("run", stop__steps=3)
    for path in workshop.folder.glob("changing-*.h5"):
        path.unlink()
    make_names(workshop.folder / "changing", seed=2)
    result = workshop.train_badly("run", stop__steps=6, ranks=2, resume=True)
    assert result.err.count("ringtrain: error") == 1 and "has changed" in result.err, result


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(workshop, damage):
    common = dict(checkpoint={"every_steps": 4, "keep": 2})
    whole = workshop.train("whole", stop__steps=12, **common)
    run = workshop.train("run", stop__steps=8, **common)
    newest = checkpoints(run)[-1]
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        with h5py.File(newest, "r") as file:
            offset = file["weights/" + sorted(file["weights"])[0]].id.get_offset()
        content[offset + 5] ^= 0x10
    newest.write_bytes({"cut": content[: len(content) // 2], "flipped": content, "emptied": b""}[damage])
    (run / "checkpoints" / "best.h5").unlink(missing_ok=True)
    experiment = workshop.experiment(run__dir=str(run), stop__steps=12, **common)
    result = workshop.run("train", experiment, "--resume")
    assert result.code == 0 and "checkpoint skipped" in result.err and newest.name in result.err, result
    assert "resuming after step 4" in result.out, result
    assert_same_bits(whole, run)


def test_when_all_checkpoints_are_damaged_a_resume_is_an_error_that_changes_nothing(workshop):
    """A run that began again would remove them, though their owner may still mend one or have a copy."""
    whole = workshop.train("whole", stop__steps=6)
    run = workshop.train("run", stop__steps=4, checkpoint={"every_steps": 2})
    damaged = sorted((run / "checkpoints").glob("*.h5"))
    for path in damaged:
        content = path.read_bytes()[:1000]
        path.unlink()  # best.h5 may be a link to another one
        path.write_bytes(content)
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"}
    result = workshop.train_badly("run", stop__steps=6, resume=True, ranks=2)
    assert result.err.count("none of the checkpoints can be read") == 1 and "remove these files" in result.err, result
    assert len(damaged) >= 2 and all(f"{path.name}: " in result.err for path in damaged), result
    assert before == {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"}
    for path in damaged:
        path.unlink()
    workshop.train("run", stop__steps=6, resume=True)
    assert_same_bits(whole, run)


def test_only_the_newest_checkpoints_and_the_best_stay(workshop):
    run = workshop.train("run", stop__steps=12, checkpoint={"every_steps": 2, "keep": 3}, evaluate={"every_steps": 4})
    assert [path.name for path in checkpoints(run)] == [f"step-{step:09d}.h5" for step in (8, 10, 12)]
    best = min(evaluations(run), key=lambda e: e["validation_loss"])
    with h5py.File(run / "checkpoints" / "best.h5", "r") as file:
        assert file.attrs["step"] == best["step"]


@pytest.mark.thorough
def test_a_best_checkpoint_that_a_killed_process_did_not_publish_is_published(workshop):
    """The process was killed after the checkpoint of step 8, the best one, and before its copy was called best.h5."""
    keys = {"evaluate": {"every_steps": 4}, "checkpoint": {"every_steps": 4}}
    run = workshop.train("run", stop__steps=4, **keys)
    best = run / "checkpoints" / "best.h5"
    before = best.read_bytes()
    workshop.train("run", resume=True, stop__steps=8, **keys)
    with h5py.File(best) as file:
        assert file.attrs["step"] == 8
    best.unlink()  # it may be a link to the checkpoint
    best.write_bytes(before)
    best.with_name("best.h5.tmp").write_bytes(before)
    workshop.train("run", resume=True, stop__steps=9, learning_rate__base=5, **keys)  # what follows is worse
    assert [e["step"] for e in evaluations(run) if e["best"]] == [4, 8]
    with h5py.File(best) as file:
        assert file.attrs["step"] == 8
    assert not list((run / "checkpoints").glob("*.tmp"))


def test_checkpoints_describe_themselves(workshop):
    run = workshop.train("run", stop__steps=3)
    with h5py.File(checkpoints(run)[-1], "r") as file:
        assert file.attrs["schema"] in (b"ringtrain-checkpoint", "ringtrain-checkpoint")
        assert file.attrs["complete"] == 1 and file.attrs["step"] == 3
        text = file.attrs["experiment"]
        assert "char_lstm" in (text.decode() if isinstance(text, bytes) else text)
        for group in "weights", "optimizer":
            assert group in file
    shapes = {name: values.shape for name, values in arrays(checkpoints(run)[-1]).items()}
    weights = {name.removeprefix("weights/"): shape for name, shape in shapes.items() if name.startswith("weights/")}
    assert len([shape for shape in weights.values() if shape == (64, 16)]) >= 3, "4 x hidden rows, as PyTorch has them"


@pytest.mark.thorough
def test_a_full_disk_ends_the_run_and_leaves_older_checkpoints_whole(workshop):
    disk = workshop.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk], capture_output=True)
    if os.geteuid() != 0 or mounted.returncode != 0:
        pytest.skip("needs root to mount a small disk")
    try:
        result = workshop.train_badly("disk/run", ranks=2, stop__steps=3000, checkpoint={"every_steps": 10, "keep": 1000})
        assert "No space left on device" in result.err, result
        run = disk / "run"
        whole = checkpoints(run)
        assert whole and not list((run / "checkpoints").glob("*.tmp"))
        for path in whole:
            with h5py.File(path, "r") as file:
                assert file.attrs["complete"] == 1
        kept = workshop.folder / "kept"
        shutil.copytree(run, kept)
    finally:
        subprocess.run(["umount", disk], check=True)
    last = int(whole[-1].stem.removeprefix("step-"))
    workshop.train("kept", resume=True, ranks=2, stop__steps=last + 5)
    assert [r["step"] for r in steps(kept)] == list(range(1, last + 6))


def test_all_records_are_valid_and_in_order(workshop):
    run = workshop.train("run", stop__steps=12, evaluate={"every_steps": 5})
    assert [r["step"] for r in records(run)] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 12]
    for record in steps(run):
        parts = sum(record[f"{part}_seconds"] for part in ("input", "forward", "backward", "communication", "update"))
        assert 0 < parts <= record["seconds"] * 1.01 + 1e-4
        assert record["samples"] == 32 * record["step"]
    assert len(curve(run)) == 12


def test_what_changes_on_resume_is_said_and_the_earlier_experiment_is_kept(workshop):
    workshop.train("run", stop__steps=5, learning_rate__base=0.01)
    result = workshop.start_training("run", resume=True, stop__steps=8, learning_rate__base=0.02)[1].wait()
    assert result.code == 0 and "learning_rate.base: 0.01 -> 0.02" in result.out, result
    run = workshop.folder / "run"
    assert yaml.safe_load((run / "experiment-until-step-5.yaml").read_text())["learning_rate"]["base"] == 0.01
    assert yaml.safe_load((run / "experiment.yaml").read_text())["learning_rate"]["base"] == 0.02


def test_a_longer_run_of_a_schedule_with_an_end_is_told_how_its_rate_jumps(workshop):
    cosine = dict(learning_rate={"base": 0.01, "schedule": "cosine"})
    run = workshop.train("run", stop__steps=10, **cosine)
    rates = [r["lr"] for r in steps(run)]
    result = workshop.start_training("run", resume=True, stop__steps=20, **cosine)[1].wait()
    assert result.code == 0 and "changed since that checkpoint: stop.steps: 10 -> 20" in result.out, result
    new_rate = steps(run)[10]["lr"]
    assert f"Step 10 had {rates[-1]:.6g}. Step 11 has {new_rate:.6g}" in result.err and new_rate > rates[-1], result
    assert yaml.safe_load((run / "experiment-until-step-10.yaml").read_text())["stop"]["steps"] == 10
    constant = workshop.start_training("run", resume=True, stop__steps=20, **cosine)[1].wait()
    assert constant.code == 0 and "had" not in constant.err, constant


def test_an_earlier_experiment_is_kept_however_often_it_changes_at_a_step(workshop):
    run = workshop.train("run", stop__steps=4, checkpoint={"every_steps": 4}, evaluate={"every_epochs": 0})
    for seconds in 1000, 2000:  # each time killed before a new checkpoint
        workshop.train("run", stop={"steps": 6, "seconds": seconds}, resume=True, checkpoint={"every_steps": 100})
        checkpoints(run)[-1].unlink()
        (run / "checkpoints" / "best.h5").unlink(missing_ok=True)
    kept = sorted(path.name for path in run.glob("experiment-until-*"))
    assert kept == ["experiment-until-step-4-2.yaml", "experiment-until-step-4.yaml"]
    limits = [yaml.safe_load((run / name).read_text())["stop"]["seconds"] for name in reversed(kept)]
    assert limits == [0, 1000]


@pytest.mark.thorough
def test_a_runs_folder_goes_on_and_not_the_newest_run(workshop):
    """The run can be named by its folder, by the experiment.yaml in it, and by a link to the folder."""
    older = workshop.train("older", ranks=2, stop__steps=4)
    workshop.train("newer", ranks=2, stop__steps=4)
    link = workshop.folder / "link"
    link.symlink_to(older)
    for step, source in ((6, older), (8, older / "experiment.yaml"), (10, link)):
        result = workshop.run("train", source, "--resume", f"stop.steps={step}", ranks=2)
        assert result.code == 0, result
        assert last_step(older) == step and last_step(workshop.folder / "newer") == 4
    assert_same_bits(workshop.train("whole", ranks=2, stop__steps=10), older)
    result = workshop.run("train", older, ranks=2)
    assert result.code == 1 and "which only --resume goes on with" in result.err, result
    empty = workshop.folder / "empty"
    empty.mkdir()
    result = workshop.run("train", empty, "--resume", ranks=2)
    assert result.code == 1 and "expected a run's folder or an experiment file" in result.err, result


@pytest.mark.thorough
def test_a_run_with_an_id_goes_on_by_its_folder_and_its_experiment_is_trained_again(workshop):
    def ringtrain(*words):
        result = workshop.run(*words, ranks=0, cwd=workshop.folder)
        assert result.code == 0, result
        return result

    runs = workshop.folder / "results" / "e2e"
    for name in "st", "other":
        ringtrain("train", workshop.experiment(stop__steps=4), f"run.id={name}")
    stored = (runs / "st" / "experiment.yaml").read_text()
    result = ringtrain("train", "results/e2e/st", "--resume", "stop.steps=6")
    assert "run folder: results/e2e/st\n" in result.out and last_step(runs / "st") == 6 and last_step(runs / "other") == 4
    assert (runs / "latest").readlink().name == "st"
    ringtrain("train", runs / "st" / "experiment.yaml", "run.dir=results/e2e/st", "--resume", "stop.steps=8")
    ringtrain("train", runs / "latest", "--resume", "stop.steps=4")  # nothing to do
    result = workshop.run("train", "experiment.yaml", "--resume", "stop.steps=9", ranks=0, cwd=runs / "st")
    assert result.code == 0 and last_step(runs / "st") == 9 and not (runs / "st" / "results").exists(), result
    assert (runs / "latest").readlink().name == "st" and last_step(runs / "st") == 9
    (runs / "st" / "experiment.yaml").write_text(stored)
    ringtrain("train", runs / "st" / "experiment.yaml")  # a new run, which is the newest
    assert curve(runs / "latest") == curve(runs / "other") and (runs / "latest").readlink().name not in ("st", "other")
    said = ringtrain("evaluate", "results/e2e/st/experiment.yaml").text
    assert "e2e/st/checkpoints" in said, said
