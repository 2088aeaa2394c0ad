"""Tests the command line: one clear error for every mistake, and the files that a run leaves."""
import json
import os
import re
import signal
import subprocess
import time

import pytest
import yaml

from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, PROGRAM, ROOT, environment, evaluations, last_step, steps

GOOD = """name: e2e
model: {hidden: 16}
data: {train: nowhere-train}
batch:
  global: 32
  worker: 8
stop: {steps: 3}
"""


# The file, the overrides, the place of the error (line:column), and words of the message.
BAD = {
    "unknown key": (GOOD + "modle: {}\n", [], "8:1", ["modle", "model"]),
    "unknown key in a section": (GOOD.replace("hidden", "hiden"), [], "2:9", ["model.hiden", "hidden"]),
    "wrong type": (GOOD.replace("global: 32", "global: many"), [], "5:11", ["batch.global", "many"]),
    "out of range": (GOOD + "checkpoint: {keep: 0}\n", [], "8:20", ["checkpoint.keep", "1"]),
    "unknown word": (GOOD + "precision: fp64\n", [], "8:12", ["precision", "fp32"]),
    "not YAML": (GOOD + "run: {dir: [\n", [], "", []),
    "key twice": (GOOD + "seed: 1\nseed: 2\n", [], "9:1", ["seed"]),
    "a list for a section": (GOOD.replace("{hidden: 16}", "[16]"), [], "2:8", ["model"]),
    "required key missing": (GOOD.replace("  global: 32\n", ""), [], "", ["batch.global"]),
    "contradiction": (GOOD.replace("worker: 8", "worker: 5"), [], "", ["batch.worker", "32"]),
    "no end": (GOOD.replace("stop: {steps: 3}\n", ""), [], "", ["stop"]),
    "empty file": ("", [], "", []),
}
BAD_OVERRIDES = {
    "unknown key": ("batch.globl=3", ["batch.globl", "batch.global"]),
    "wrong type": ("seed=x", ["seed"]),
    "out of range": ("model.layers=0", ["model.layers"]),
    "a section": ("model=3", ["model"]),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_experiment_is_named_with_its_place(workshop, what):
    content, overrides, place, words = BAD[what]
    path = workshop.folder / "bad.yaml"
    path.write_text(content)
    result = workshop.run("plan", path, *overrides, ranks=0)
    assert result.code not in (0, 85), result
    assert result.err.count("ringtrain: error") == 1 and str(path) in result.err, result
    if place:
        assert f"{path}:{place}" in result.err, result
    for word in words:
        assert word in result.err, result


@pytest.mark.thorough
def test_the_program_has_the_last_word(workshop):
    """Banners of mpirun and MPI_Abort must not hide an error. Messages that only mpirun can give must still appear."""
    path = workshop.folder / "good.yaml"
    path.write_text(GOOD)
    result = workshop.run("train", path, ranks=2)
    assert result.code == 1 and result.err.splitlines()[-2].startswith("ringtrain: error (rank 0"), result
    assert "MPI_ABORT" not in result.err and "-----" not in result.err, result
    experiment = workshop.experiment(run__dir=str(workshop.folder / "run"), stop__steps=10**6)
    launched = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]
    if "Open MPI) 4" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
        for ranks in "1", "2":  # mpirun itself, without the launcher's filter
            done = subprocess.run([*launched, ranks, PROGRAM, "train", path], capture_output=True, text=True, timeout=HANG_SECONDS)
            assert done.returncode == 1 and done.stderr.splitlines()[-2].startswith("ringtrain: error (rank 0"), done
        stopped = subprocess.Popen([*launched, "2", PROGRAM, "train", experiment], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while last_step(workshop.folder / "run") < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        stopped.send_signal(signal.SIGUSR1)
        out, err = stopped.communicate(timeout=HANG_SECONDS)
        assert stopped.returncode == 85 and err == "mpirun: Forwarding signal 10 to job\n" and out.splitlines()[-1].startswith("continue with: "), (out, err)
    killed = subprocess.run([LAUNCHER, "2", "bash", "-c", "kill -9 $$"], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert killed.returncode == 137 and "ended by signal 9 (KILL)" in killed.stderr, killed
    missing = subprocess.run([LAUNCHER, "2", "./nowhere"], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert missing.returncode != 0 and "Executable: ./nowhere" in missing.stderr, missing


@pytest.mark.parametrize("what", BAD_OVERRIDES)
def test_a_bad_override_is_named_as_such(workshop, what):
    override, words = BAD_OVERRIDES[what]
    result = workshop.run("plan", workshop.experiment(), override, ranks=0)
    assert result.code not in (0, 85), result
    for word in [override, *words]:
        assert word in result.err, result


def test_an_error_is_printed_once_and_not_by_every_rank(workshop):
    path = workshop.folder / "bad.yaml"
    path.write_text(GOOD + "modle: {}\n")
    result = workshop.run("train", path, ranks=4)
    assert result.code not in (0, 85), result
    assert result.text.count("modle") == 1 and f"{path}:8:1" in result.err, result


@pytest.mark.parametrize("words, expected", [
    (["fly"], "fly"),
    (["train"], "experiment"),
    (["train", "/nowhere.yaml"], "/nowhere.yaml"),
    (["train", "a.yaml", "b.yaml"], "b.yaml"),
    (["train", "a.yaml", "--fast"], "--fast"),
    (["plan", "a.yaml", "--ranks", "two"], "two"),
    (["sample", "/nowhere"], "/nowhere"),
    (["sample", "/nowhere", "--temperature", "hot"], "hot"),
    (["sample", "--count", "3"], "a run's folder"),
    (["sample", "/nowhere", "seed=2"], "seed=2"),
    (["plna"], "did you mean 'plan'?"),
    (["bench"], "needs one or more of start"),
    (["bench", "nope"], "'nope' is not a kind of measurement, expected one or more of start, comm"),
    (["evaluate", "run", "--samples", "3"], "--samples requires --logits"),
    (["import", "w.safetensors", "a.yaml", "--force"], "--force requires --out"),
    (["plan", "a.yaml", "--rank", "2"], "did you mean '--ranks'?"),
    (["plan", "a.yaml", "--ranks", "4294967298"], "--ranks: '4294967298', expected a whole number from 1 to 16777216"),
    (["sample", "/nowhere", "--count", "1000000000000000000"], "--count: '1000000000000000000', expected a whole number from 1 to"),
    (["sample", "/nowhere", "--seed", "18446744073709551616"], "--seed: '18446744073709551616', expected a whole number from 0 to"),
    (["plan", "a.yaml", "--ranks"], "--ranks must be given once, with one value"),
    (["plan", "a.yaml", "--ranks", "2", "--ranks", "3"], "--ranks must be given once, with one value"),
    (["evaluate", "run", "--logits", "logits.npz"], "as logits.safetensors"),
    (["import", "weights.safetensors", "a.yaml", "--out", "checkpoint"], "as checkpoint.h5"),
])
def test_a_bad_command_line_is_an_error_with_a_hint(workshop, words, expected):
    result = workshop.run(*words, ranks=0)
    assert result.code not in (0, 85), result
    assert "ringtrain: error" in result.err and expected in result.err, result


def test_one_step_is_a_step(workshop):
    assert "after 1 step (" in workshop.run("plan", workshop.experiment(stop__steps=1), ranks=0).out


def test_a_missing_data_set_comes_with_a_hint(workshop):
    workshop.data = workshop.folder / "missing"
    result = workshop.train_badly("run", ranks=2)
    assert result.err.count("ringtrain: error") == 1, result
    assert "missing-train" in result.err and "ringtrain-data" in result.err, result
    assert not (workshop.folder / "run").exists()


def test_version_and_help(workshop):
    version = workshop.run("--version", ranks=0)
    assert version.code == 0, version
    for word in "ringtrain", "HDF5", "MPI", "oneDNN":
        assert word in version.out, version
    help_text = workshop.run("--help", ranks=0)
    assert help_text.code == 0 and all(word in help_text.out for word in ("train", "plan", "sample")), help_text
    for command in "train", "plan":
        assert "EXPERIMENT.yaml|RUN_FOLDER" in workshop.run(command, "--help", ranks=0).out


def test_plan_takes_the_folder_of_a_run(workshop):
    run = workshop.train("run", stop__steps=3, seed=5)
    for source in run, run / "experiment.yaml":
        result = workshop.run("plan", source, "stop.steps=7", ranks=0)
        assert result.code == 0 and "seed: 5\n" in result.out and "steps: 7\n" in result.out, result
    result = workshop.run("plan", run / "checkpoints", ranks=0)
    assert result.code == 1 and "expected a run's folder or an experiment file" in result.err, result


def test_plan_prints_the_arithmetic_for_any_number_of_ranks(workshop):
    path = workshop.experiment(batch__micro=8)
    for ranks, line in [(1, r"32 = 4 workers x 8 = 1 rank x 4 micro-steps x 8"),
                        (2, r"32 = 4 workers x 8 = 2 ranks x 2 micro-steps x 8"),
                        (4, r"32 = 4 workers x 8 = 4 ranks x 1 micro-step x 8")]:
        result = workshop.run("plan", path, "--ranks", ranks, ranks=0)
        assert result.code == 0 and line in result.out, result
    result = workshop.run("plan", path, "--ranks", 3, ranks=0)
    assert result.code != 0 and "3 ranks do not divide" in result.err, result


def test_plan_expects_the_time_of_a_measured_step(workshop):
    experiment, file = workshop.experiment(data__validation=""), workshop.folder / "step.json"
    result = workshop.run("bench", "step", experiment, "--seconds", 0.2, "--json", file, ranks=0)
    assert result.code == 0, result
    plan = ("plan", experiment, f"run.dir={workshop.folder / 'none' / 'run'}", "stop.steps=400", "--preflight", file)
    result = workshop.run(*plan, ranks=0)
    assert re.search(r"^expected time  about .*, from the preflight files, without evaluations and checkpoints$", result.out, re.M), result
    result = workshop.run(*plan, "model.hidden=32", ranks=0)
    assert "expected time" not in result.out and "the preflight files give no time for this run" in result.err, result


def test_plan_expects_the_time_of_the_nearest_earlier_run(workshop):
    changes = {"run__dir": str(workshop.folder / "next"), "data__validation": ""}
    plan = ("plan", workshop.experiment(**changes), "stop.steps=400")
    assert "expected time" not in workshop.run(*plan, ranks=0).out
    measured = workshop.train("measured", data__validation="")
    result = workshop.run(*plan, ranks=0)
    assert re.search(rf"^expected time  about .*, as fast as {re.escape(str(workshop.folder))}/measured$", result.out, re.M), result
    assert "expected time" not in workshop.run(*plan, "--ranks", 2, ranks=0).out, "measured on one rank"
    record = json.loads((measured / "run.json").read_text())
    record["starts"][-1]["elapsed_seconds"] = 20000  # for 20 steps
    (measured / "run.json").write_text(json.dumps(record))
    result = workshop.run(*plan, ranks=0)
    assert "about 4d 15" in result.out and "the run takes about 4d 15" in result.err, result


def test_plan_shows_what_the_run_will_be(workshop):
    result = workshop.run("plan", workshop.experiment(), "learning_rate.base=0.02", "--ranks", 2, ranks=0)
    assert result.code == 0, result
    assert re.search(r"base: 0\.02", result.out), "the resolved experiment"
    assert re.search(r"^ *(?:lstm\.)?weight_ih_l0 .*", result.out, re.MULTILINE), "the parameters"
    assert re.search(r"total +[\d,]+", result.out), "the memory"
    assert re.search(r"^  sums +[\d,]+ gradients at once$", result.out, re.MULTILINE), "what is summed"
    result = workshop.run("plan", workshop.experiment(), "communication.bucket_mib=0.0009765625", "--ranks", 2, ranks=0)
    assert re.search(r"^  sums +[\d,]+ gradients in buckets of 256$", result.out, re.MULTILINE), result


def test_plan_refuses_what_train_refuses(workshop):
    for words, said in [
        (["name=bench"], "results/bench belongs to the program"),
        (["run.id=latest"], "the link to the newest run"),
        (["test.flip_bit_rank=0", "test.flip_bit_step=1", "test.flip_bit_in=zz"], "test.flip_bit_in is zz, expected a tensor like weights/"),
    ]:
        for command in "plan", "train":
            result = workshop.run(command, workshop.experiment(), *words, ranks=0, cwd=workshop.folder)
            assert result.code == 1 and said in result.err, result
    assert not (workshop.folder / "results").exists()


def test_plan_warns_of_a_folder_in_use_and_of_too_little_memory(workshop):
    run = workshop.train("run", stop__steps=6)
    taken = "the run folder is not empty, and a run never overwrites another; add --resume"
    result = workshop.run("plan", workshop.experiment(), f"run.dir={run}", ranks=0)
    assert result.code == 0 and taken in result.err, result
    for words in ([workshop.experiment(), f"run.dir={workshop.folder / 'new'}"], [run]):
        result = workshop.run("plan", *words, ranks=0)
        assert result.code == 0 and "warning" not in result.err, result
    result = workshop.run("plan", workshop.experiment(), "model.hidden=65536", "model.layers=64", ranks=0)
    assert result.code == 0 and re.search(r"1 rank needs [\d.]+ TiB of memory, and (this machine has|its limit [(]cgroup[)] is) ", result.err), result


def test_plan_counts_the_threads_that_ranks_of_this_machine_get(workshop):
    path = workshop.experiment(run={"log_every_steps": 5})
    threads = {}
    for ranks in 1, 2:
        alone = workshop.run("plan", path, "--ranks", ranks, ranks=0)
        assert alone.code == 0, alone
        threads[ranks] = re.search(r"CPU, (\d+) thread", alone.out)[1]
        started = workshop.run("plan", path, ranks=ranks)
        assert started.code == 0 and f"CPU, {threads[ranks]} thread" in started.out, (alone, started)
        assert ("as if 2 ranks shared the " in alone.out) == (ranks == 2) and "as if" not in started.out, (alone, started)
    assert "as if" not in workshop.run("plan", workshop.experiment(), "--ranks", 2, ranks=0).out, "run.threads is given"


@pytest.mark.parametrize("ranks", [0, 2])
def test_plan_warns_of_threads_that_take_turns_as_training_does(workshop, ranks):
    """Where the ranks are others than those of the job, or have another machine, plan does not know their CPUs."""
    threads = len(os.sched_getaffinity(0)) + 1
    many = workshop.experiment(run={"threads": threads, "dir": str(workshop.folder / "run")}, stop__steps=1)
    planned, trained = (workshop.run(command, many, ranks=ranks) for command in ("plan", "train"))
    assert planned.code == trained.code == 0, (planned, trained)
    said = rf"warning: (run.threads is {threads}, but a rank has .* CPUs?( in its affinity mask)?: its threads will take turns)"
    assert re.search(said, planned.err)[1] == re.search(said, trained.err)[1]
    for other in (["--ranks", 4], ["--device", "h200"]):
        result = workshop.run("plan", many, *other, ranks=0)
        assert result.code == 0 and "take turns" not in result.err, result
    assert "take turns" not in workshop.run("plan", many, "run.threads=1", ranks=ranks).err


def keys_of(sections, above=""):
    """Every key with its dots, and its value, of an experiment with sections within sections."""
    for name, value in sections.items():
        yield from keys_of(value, f"{above}{name}.") if isinstance(value, dict) else [(above + name, str(value))]


def test_plan_prints_the_keys_that_have_an_effect_and_with_all_the_rest(workshop):
    path = workshop.experiment()
    some, every = (yaml.safe_load(workshop.run("plan", path, *words, ranks=0).out.split("\n\n")[0]) for words in ([], ["--all"]))
    assert some["model"]["hidden"] == 16 and "depth" not in some["model"] and "mode" not in some["parallel"]
    assert {"depth", "hidden"} <= every["model"].keys() and every["parallel"]["mode"] == "sync"
    some, every = dict(keys_of(some)), dict(keys_of(every))
    assert some.items() <= every.items()
    left_out = len(every) - len(some)
    assert f"\n# {left_out} more keys have no effect here; --all prints them\n" in workshop.run("plan", path, ranks=0).out
    served = workshop.experiment(parallel={"kind": "server"}, batch={"global": 32, "worker": 8})
    assert "  mode: sync\n" in workshop.run("plan", served, "--ranks", 2, ranks=0).out


def test_plan_leaves_out_the_keys_of_other_data(workshop):
    printed = yaml.safe_load(workshop.run("plan", workshop.experiment(), ranks=0).out.split("\n\n")[0])["data"]
    assert "blanks" in printed and not {"image_size", "flip", "mean", "order", "sequence"} & printed.keys(), printed


def test_train_warns_of_the_same_as_plan(workshop):
    late = workshop.experiment(learning_rate={"base": 0.01, "warmup_steps": 30, "warmup_from": "zero"}, stop={"steps": 12})
    words = "warning: the warm-up ends at epoch "
    planned = workshop.run("plan", late, ranks=0)
    trained = workshop.run("train", late, f"run.dir={workshop.folder / 'run'}", ranks=2)
    assert planned.err.count(words) == trained.err.count(words) == 1, trained


def test_a_path_in_an_option_may_begin_at_home_and_have_variables(workshop):
    run = workshop.train("run", stop__steps=2)
    env = {"HOME": str(workshop.folder), "PLACE": "here"}
    (workshop.folder / "here").mkdir()
    for option, file in ("--out=~/w.safetensors", "w.safetensors"), ("--out=~/$PLACE/w.safetensors", "here/w.safetensors"):
        result = workshop.run("export", run, option, ranks=0, env=env)
        assert result.code == 0 and (workshop.folder / file).exists(), result
    result = workshop.run("evaluate", run, "--json=$NOT_SET/e.json", ranks=0, env=env)
    assert result.code == 1 and "--json FILE is $NOT_SET/e.json but the environment variable NOT_SET is not set" in result.err, result
    names = workshop.folder / "few.txt"
    names.write_text("anna\nbob\ncarl\ndora\n" * 20)
    made = subprocess.run([CONVERTER, "names", names, "--out=~/made"], env={**os.environ, **env}, capture_output=True, text=True)
    assert made.returncode == 0 and list(workshop.folder.glob("made-train-*.h5")), made.stderr


def test_overrides_win_and_are_recorded(workshop):
    run = workshop.folder / "run"
    result = workshop.run("train", workshop.experiment(), f"run.dir={run}", "stop.steps=2", "seed=7")
    assert result.code == 0, result
    assert len(steps(run)) == 2
    resolved = (run / "experiment.yaml").read_text()
    assert "seed: 7" in resolved and "steps: 2" in resolved
    again = workshop.run("train", run / "experiment.yaml", f"run.dir={workshop.folder / 'again'}")
    assert again.code == 0, again
    assert [r["loss"] for r in steps(workshop.folder / "again")] == [r["loss"] for r in steps(run)]


def test_a_run_describes_itself(workshop):
    run = workshop.train("run", ranks=2, stop__steps=3)
    workshop.train("run", ranks=2, stop__steps=5, resume=True)
    record = json.loads((run / "run.json").read_text())
    assert record["outcome"] == "finished" and record["final_step"] == 5
    first, second = record["starts"]
    assert (first["resumed_from_step"], second["resumed_from_step"]) == (0, 3)
    assert first["ranks"] == 2 and first["batch"]["global"] == 32 and first["versions"]["HDF5"]
    assert sorted(rank for ranks in first["hosts"].values() for rank in ranks) == [0, 1]
    assert first["train"]["uuid"] and "train" in first["command_line"]
    for start in first, second:  # run.json has both ranks; metrics.jsonl has rank 0
        assert [set(rank) for rank in start["rank_seconds"]] == [{"input", "forward", "backward", "communication", "update"}] * 2
        assert all(rank["backward"] > 0 for rank in start["rank_seconds"])
    for part, seconds in second["rank_seconds"][0].items():
        logged = sum(record[f"{part}_seconds"] for record in steps(run)[3:])
        assert abs(seconds - logged) <= 1e-5 * max(logged, 1), part
    assert sorted(path.name for path in run.iterdir() if not path.name.startswith(".")) == [
        "checkpoints", "experiment-until-step-3.yaml", "experiment.yaml", "metrics.jsonl", "run.json"]


@pytest.mark.thorough
def test_log_and_record_say_why_a_run_ended(workshop):
    target = ["stop.target_metric=validation_loss", "evaluate.every_steps=5"]
    cases = {
        "done": ([], "all steps done", ""),
        "reached": ([*target, "stop.target_value=1000"], "target reached", r": validation_loss reached 1000 \([\d.]+\)"),
        "missed": ([*target, "stop.target_value=0.1"], "target not reached", ": stop.target_value 0.1 was not reached"),
        "time": (["stop.steps=0", "stop.epochs=0", "stop.seconds=0.2"], "stop.seconds", ": stop.seconds 0.2 is over"),
    }
    for name, (words, end, said) in cases.items():
        run = workshop.folder / name
        result = workshop.run("train", workshop.experiment(), f"run.dir={run}", *words, ranks=2)
        assert result.code == 0, result
        record = json.loads((run / "run.json").read_text())
        assert (record["outcome"], record["end"]) == ("finished", end)
        assert re.search(rf"^finished after step {record['final_step']} and \d+ s{said}; best validation loss ", result.out, re.MULTILINE), result
        assert record["final_step"] == {"done": 20, "reached": 5, "missed": 20}.get(name, record["final_step"])


def files_of(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.name.startswith(".")}


# How a run ends by itself, and what its resumption says.
ENDS = {
    "steps": ({"steps": 6}, "the run has its 6 steps"),
    "target": ({"steps": 20, "target_metric": "validation_loss", "target_value": 1000}, r"validation_loss reached 1000 \([\d.]+\)"),
    "seconds": ({"steps": 10**6, "seconds": 0.2}, "stop.seconds 0.2 is over"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_resumed_run_that_has_ended_by_itself_changes_nothing(workshop, end):
    stop, said = ENDS[end]
    common = dict(ranks=2, evaluate={"every_steps": 3})
    run = workshop.train("run", stop=stop, **common)
    before, step = files_of(run), last_step(run)
    result = workshop.start_training("run", resume=True, stop=stop, **common)[1].wait()
    assert result.code == 0 and re.search(f"^nothing to do: {said}$", result.out, re.MULTILINE), result
    assert files_of(run) == before
    # With another limit it goes on.
    workshop.train("run", resume=True, stop={"steps": step + 2}, **common)
    record = json.loads((run / "run.json").read_text())
    assert len(record["starts"]) == 2 and record["final_step"] == step + 2


def test_an_evaluation_that_a_signal_left_out_is_made_once(workshop):
    """The evaluation that was left out reaches the target. No best checkpoint is written."""
    common = dict(ranks=2, evaluate={"every_steps": 1}, checkpoint={"best": False})
    target = dict(stop={"steps": 10**6, "target_metric": "validation_loss", "target_value": 1000})
    run, job = workshop.start_training("run", stop={"steps": 10**6}, **common)
    job.wait_for_step(run, 3)
    os.kill(job.ranks()[0], signal.SIGTERM)
    assert job.wait().code == 85
    step = last_step(run)
    assert evaluations(run)[-1]["step"] == step - 1
    workshop.train("run", resume=True, **target, **common)
    assert evaluations(run)[-1]["step"] == last_step(run) == step
    assert json.loads((run / "run.json").read_text())["end"] == "target reached"
    before = files_of(run)
    workshop.train("run", resume=True, **target, **common)
    assert files_of(run) == before


def test_a_batch_log_has_a_table_then_plain_lines_of_rank_0_only(workshop):
    path = workshop.experiment(run__dir=str(workshop.folder / "run"), stop__steps=10)
    result = workshop.run("train", path, ranks=2)
    assert result.code == 0, result
    assert "\r" not in result.out and "\033" not in result.out
    assert result.out.count("32 = 4 workers x 8") == 1
    assert [int(n) for n in re.findall(r"^step (\d+)/10 ", result.out, re.MULTILINE)] == [1, 5, 10]
    assert "samples/s" in result.out and "ETA" in result.out


@pytest.mark.thorough
def test_runs_without_a_folder_of_their_own_go_to_results(workshop):
    path = workshop.experiment(stop__steps=2)
    for _ in range(2):
        result = workshop.run("train", path, cwd=workshop.folder)
        assert result.code == 0, result
    runs = [entry for entry in (workshop.folder / "results" / "e2e").iterdir() if not entry.is_symlink()]
    assert len(runs) == 2
    latest = workshop.folder / "results" / "e2e" / "latest"
    assert latest.is_symlink() and latest.resolve() == max(runs).resolve()
    result = workshop.run("train", path, "stop.steps=4", "--resume", cwd=workshop.folder)
    assert result.code == 0, result
    assert [r["step"] for r in steps(latest)] == [1, 2, 3, 4]


@pytest.mark.thorough
def test_a_start_that_fails_leaves_no_folder_and_latest_as_it_was(workshop):
    runs = workshop.folder / "results" / "e2e"
    mistaken = workshop.experiment(stop__steps=2, data__order="streams")
    result = workshop.run("train", mistaken, cwd=workshop.folder, ranks=2)
    assert result.code == 1 and "no effect" in result.err, result
    assert not list(runs.glob("*"))

    runs.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", runs], capture_output=True)
    if os.geteuid() != 0 or mounted.returncode != 0:
        pytest.skip("needs root to mount a small disk")
    try:
        result = workshop.run("train", workshop.experiment(stop__steps=2), "run.id=good", cwd=workshop.folder)
        assert result.code == 0 and os.readlink(runs / "latest") == "good", result
        (runs / "filler").write_bytes(bytes(1 << 20))  # leaves no room on the disk for the probe file of the run's folder
        result = workshop.run("train", workshop.experiment(stop__steps=2), "run.id=late", cwd=workshop.folder)
        assert result.code == 1 and "No space left on device" in result.err, result
        assert os.readlink(runs / "latest") == "good"
        assert sorted(path.name for path in runs.iterdir()) == ["filler", "good", "latest"]
    finally:
        subprocess.run(["umount", runs], check=True)


def test_sampling_is_a_function_of_the_seed(workshop):
    run = workshop.train("run", stop__steps=60)
    first, again, other = (workshop.run("sample", run, "--count", 12, "--seed", seed, ranks=0) for seed in (3, 3, 4))
    assert first.code == 0, first
    assert first.out == again.out != other.out
    known = set((workshop.data.parent / "names.txt").read_text().split())
    names = [line for line in first.out.splitlines() if not line.startswith("(")]
    assert len(names) == 12
    for name in names:
        assert name.endswith("*") == (name.rstrip(" *").lower() in known)


def test_sampling_new_names_only(workshop):
    run = workshop.train("run", stop__steps=60)
    result = workshop.run("sample", run, "--count", 12, "--new-only", ranks=0)
    assert result.code == 0, result
    known = set((workshop.data.parent / "names.txt").read_text().split())
    names = result.out.split("\n")[:12]
    assert len(set(names)) == 12 and not known & {name.lower() for name in names}, result


@pytest.mark.parametrize("changes, words", [({"data__order": "streams"}, "data.order"), ({"data__sequence": 5}, "data.sequence")])
def test_keys_that_say_nothing_about_this_data_are_an_error(workshop, changes, words):
    result = workshop.train_badly("run", **changes)
    assert words in result.err and "no effect" in result.err, result


def test_the_tree_of_nccl_is_refused_on_cpus(workshop):
    result = workshop.train_badly("run", ranks=2, communication__algorithm="tree")
    assert "communication.algorithm is 'tree', and the sums of this run go through MPI" in result.err and "halving" in result.err, result


def test_an_error_says_its_place_in_the_code_where_it_is_asked_for(workshop):
    words = ["plan", workshop.experiment(), "seed=x"]
    plain, verbose = workshop.run(*words, ranks=0), workshop.run(*words, "--verbose", ranks=0)
    assert plain.code == verbose.code == 1
    assert verbose.err.startswith(plain.err) and ".cpp" not in plain.err
    assert re.fullmatch(r"  thrown at src/config/reader\.cpp:\d+\n", verbose.err.removeprefix(plain.err)), verbose
    assert workshop.run("--verbose", *words, ranks=0).err == verbose.err
    help_text = workshop.run("--help", ranks=0)
    assert "--verbose" in help_text.out, help_text


def test_help_and_manual_page_list_the_exit_codes_of_the_documentation(workshop):
    page = (ROOT / "results" / "runs.md").read_text()
    documented = set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE))
    assert documented == {"0", "1", "2", "85", "86"}
    for flag, title in (("--help", "\nExit codes\n"), ("--manual-page", '\n.SH "EXIT CODES"\n')):
        text = workshop.run(flag, ranks=0).out.split(title)[1]
        assert set(re.findall(r"^ +(\d+) +\S", text, re.MULTILINE)) == documented, text


def test_a_run_that_becomes_nan_says_so_and_records_where(workshop):
    run = workshop.folder / "run"
    result = workshop.train_badly("run", ranks=2, optimizer={"kind": "sgd", "weight_decay": 0.5}, learning_rate={"base": 1e6}, stop__diverged_share=0)
    step = len(steps(run)) + 1
    message = f"step {step}: the loss is NaN; the weights are as they were after step {step - 1}"
    assert message in result.err and "gradient norm" not in result.err, result
    record = json.loads((run / "run.json").read_text())
    assert record["outcome"] == f"error: {message}"
    assert re.fullmatch(r"src/train/\w+\.cpp:\d+", record["thrown_at"]), record


def test_top_five_is_for_images_only(workshop):
    run = workshop.train("run", stop__steps=2)
    file = workshop.folder / "evaluation.json"
    result = workshop.run("evaluate", run, "--json", file, ranks=0)
    assert result.code == 0 and "top-5" not in result.out, result
    for record in *evaluations(run), json.loads(file.read_text()):
        assert "validation_accuracy" in record and "validation_accuracy5" not in record


def of_bytes(workshop, steps=30):
    """A run on text whose symbols are bytes. The letters ö and é have two bytes each, three different ones in all."""
    source = workshop.folder / "bytes.txt"
    source.write_text("w\u00f6rter \u00e9t\u00e9\n" * 60)
    done = subprocess.run([CONVERTER, "text", source, "--alphabet", "bytes", "--out", workshop.folder / "bytes"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    workshop.data = workshop.folder / "bytes"
    return workshop.train("bytes-run", data__sequence=8, stop__steps=steps)


def sample_bytes(workshop, run, *words):
    """Returns the output as bytes."""
    done = subprocess.run([PROGRAM, "sample", run, "--count", "1", *map(str, words)], capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_prompt_of_bytes_is_written_as_it_was_given(workshop):
    run = of_bytes(workshop)
    text = sample_bytes(workshop, run, "--prompt", "w\u00f6r\u00e9", "--length", "20")
    assert text.startswith("w\u00f6r\u00e9".encode())


@pytest.mark.thorough
def test_a_sample_of_bytes_does_not_end_inside_a_letter(workshop):
    run = of_bytes(workshop)
    ends = [sample_bytes(workshop, run, "--length", str(length))[:-1] for length in range(1, 30)]
    assert any(max(end, default=0) >= 0x80 for end in ends), "letters of two bytes are meant to come out"
    assert not any(end and end[-1] >= 0xC0 for end in ends)


def greedy(workshop, run, prompt, *words):
    """Returns the text that follows when the likeliest symbol is always taken."""
    return sample_bytes(workshop, run, "--temperature", "0", "--prompt", prompt, *words).decode()


# At temperature 0, the next symbol is a function of the symbols before it. It must not matter who wrote them.
def test_a_prompt_of_a_name_is_continued_as_if_the_model_had_written_it(workshop):
    run = workshop.train("run", stop__steps=300, learning_rate={"base": 0.02})
    names = {first: greedy(workshop, run, first).split()[0].lower() for first in "deik"}
    assert len({name[1:] for name in names.values()}) > 1, names
    assert max(map(len, names.values())) > 3, names
    for name in names.values():
        for length in range(2, len(name)):
            assert greedy(workshop, run, name[:length]).split()[0].lower() == name, (name, length)


def test_a_prompt_of_text_is_continued_as_if_the_model_had_written_it(workshop):
    run = of_bytes(workshop, steps=200)
    text = greedy(workshop, run, "w", "--length", 35)
    assert len(text.encode()) == 37 and "rter" in text and "t\u00e9" in text, text  # with the last newline; t has two successors
    for length in range(2, 20):
        prompt = text[:length]
        assert greedy(workshop, run, prompt, "--length", 36 - len(prompt.encode())) == text, (text, prompt)


def test_a_symbol_that_the_model_does_not_know_is_named_whole(workshop):
    run = workshop.train("run", stop__steps=2)
    for prompt, symbol in ("anna\u20ac\u20ac\u20acb", "'\u20ac'"), ("7up", "'7'"):
        result = workshop.run("sample", run, "--prompt", prompt, ranks=0)
        assert result.code == 1 and f"the model does not know {symbol}\n" in result.err, result


def test_trust_ratios_are_recorded_by_tensor_when_asked_for(workshop):
    lars = {"kind": "lars", "trust_coefficient": 0.5, "weight_decay": 0.001, "record_trust_every_steps": 2}
    ratios = {record["step"]: record.get("trust_ratios") for record in steps(workshop.train("run", stop__steps=5, optimizer=lars))}
    assert [step for step, recorded in ratios.items() if recorded] == [2, 4]
    assert {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "linear.weight"} <= set(ratios[2])
    assert not any("bias" in name for name in ratios[2])
    assert all(ratio > 0 and ratio != 1 for ratio in ratios[2].values())


def test_a_plan_that_cannot_be_written_is_an_error(workshop):
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "plan", workshop.experiment()], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=HANG_SECONDS)
    assert done.returncode == 1 and done.stderr.count("error") == 1 and "cannot write to standard output" in done.stderr, done


def test_a_run_that_would_take_decades_has_no_expected_time(workshop):
    run = workshop.train("run", stop__steps=6)
    for steps, expected in (600, True), (10**12, False):
        said = workshop.run("plan", workshop.experiment(run__dir=str(run), stop={"steps": steps}), ranks=0)
        assert said.code == 0 and ("expected time  about" in said.out) == expected and "unknown" not in said.out + said.err, said


def test_a_variable_that_limits_onednn_is_warned_of_once(workshop):
    job = workshop.start("train", workshop.experiment(run__dir=str(workshop.folder / "run"), stop__steps=2), ranks=2, env={"DNNL_MAX_CPU_ISA": "AVX2"})
    result = job.wait()
    assert result.code == 0 and (result.out + result.err).count("DNNL_MAX_CPU_ISA is AVX2: oneDNN uses no newer instructions") == 1, result
