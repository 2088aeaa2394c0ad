"""`ringtrain study` starts trials side by side. Each runs once, none is lost, and each equals `ringtrain train`. A trial
that crashes or is killed ends alone."""
import json
import os
import re
import shlex
import signal
import time
from pathlib import Path

import h5py
import pytest

from conftest import (HANG_SECONDS, ROOT, assert_same_bits, checkpoints, children_of, evaluations, is_alive, last_step, parent_of,
                      steps)

ENDLESS = 10**9
STATES = ("waiting", "running", "finished", "failed", "diverged")


class Study:
    """A study file in the workshop's folder. Its results are in the same folder."""

    def __init__(self, workshop, text, name="small", **changes):
        self.workshop, self.name = workshop, name
        experiment = workshop.experiment(**changes)
        self.path = workshop.folder / f"{name}.yaml"
        self.path.write_text(f"name: {name}\nexperiment: {experiment.name}\n{text}")
        self.experiment = experiment
        self.folder = workshop.folder / "results" / name

    def start(self, *words, ranks=1, env=None):
        """Starts the study, which uses this number of ranks at the same time."""
        given = [] if "--plan" in words else ["--ranks", ranks]
        return self.workshop.start("study", self.path.name, *words, *given, ranks=0, env=env, cwd=self.workshop.folder)

    def run(self, *words, ranks=1, code=0, timeout=HANG_SECONDS, env=None):
        result = self.start(*words, ranks=ranks, env=env).wait(timeout)
        assert result.code == code, result
        return result

    def listed(self):
        """Maps names to the trials of study.json. They must agree with the trials' own files."""
        whole = json.loads((self.folder / "study.json").read_text())
        trials = {trial["name"]: trial for trial in whole["trials"]}
        for name, trial in trials.items():
            own = self.folder / name / "trial.json"
            assert not own.exists() or json.loads(own.read_text()) == trial
        assert whole["counts"] == {s: sum(t["state"] == s for t in trials.values()) for s in STATES}
        return trials

    def states(self):
        return {name: trial["state"] for name, trial in self.listed().items()}

    def assert_all_finished_in_one_start(self):
        trials = self.listed()
        assert {t["state"] for t in trials.values()} == {"finished"}, trials
        for name, trial in trials.items():
            record = json.loads((self.folder / name / "run.json").read_text())
            assert len(record["starts"]) == 1 and trial["starts"] == 1, "begun twice"
            assert record["starts"][0]["ranks"] == trial["ranks"]
            assert [r["step"] for r in steps(self.folder / name)] == list(range(1, trial["outcome"]["final_step"] + 1))
        return trials

    def assert_same_as_alone(self, name):
        """Compares the trial's run with `ringtrain train` with its overrides and ranks."""
        trial = self.listed()[name]
        place = self.workshop.folder / f"alone-{self.name}-{name}"
        words = [f"{key}={value}" for key, value in trial["overrides"].items()]
        done = self.workshop.run("train", self.experiment, *words, f"run.dir={place}", ranks=trial["ranks"])
        assert done.code == 0, done
        assert_same_bits(self.folder / name, place)
        # A run in parts may also have evaluations at the ends of its parts.
        parts, whole = ({e["step"]: e["validation_loss"] for e in evaluations(run)} for run in (self.folder / name, place))
        assert whole and whole == {step: parts.get(step) for step in whole}


    def wait_for_trial(self, job, name, step):
        """Waits for a step of a trial and returns the process id of its rank 0."""
        job.wait_for_step(self.folder / name, step)
        return json.loads((self.folder / name / "run.json").read_text())["starts"][-1]["process_id"]

    def processes(self):
        """The process ids of all programs that work in the workshop's folder."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "cwd") == str(self.workshop.folder) and is_alive(entry.name):
                    found.append(int(entry.name))
            except OSError:
                continue  # no process, or one that has ended meanwhile
        return found


MIXED = "ranks_per_trial: [1, 2]\nvary: {batch.global: [32, 64]}\nrepeat: 2\n"


@pytest.mark.fast_cases("1-repeat: 3\\n", "3-ranks_per_trial: 2\\nrepeat: 3\\n",
                        "4-ranks_per_trial: [1, 2]\\nvary: {batch.global: [32, 64]}\\nrepeat: 2\\n")
@pytest.mark.parametrize("ranks, text", [(1, "repeat: 3\n"), (2, "ranks_per_trial: 2\nrepeat: 3\n"), (2, MIXED), (3, MIXED),
                                         (4, MIXED), (3, "ranks_per_trial: 2\nrepeat: 3\n")])
def test_a_queue_is_worked_off_on_any_number_of_ranks(workshop, ranks, text):
    study = Study(workshop, text, stop__steps=6)
    result = study.run(ranks=ranks)
    trials = study.assert_all_finished_in_one_start()
    assert f"study small: {len(trials)} trials, {len(trials)} finished" in result.out, result
    assert "validation loss" not in "\n".join(line for line in result.out.splitlines() if line.startswith("epoch")), \
        "lines of a trial belong in its log.txt"
    for name in trials:
        assert "finished after step 6" in (study.folder / name / "log.txt").read_text()


def test_trials_equal_single_runs_bit_for_bit(workshop):
    study = Study(workshop, "ranks_per_trial: [1, 2]\nrepeat: 2\n", stop__steps=12)
    study.run(ranks=3)
    for name in study.assert_all_finished_in_one_start():
        study.assert_same_as_alone(name)


def damaged_copy(workshop):
    """Makes a copy of the training data in which the first byte of each shard's tokens is changed. `--plan` does not find
    this error."""
    for path in workshop.data.parent.glob(f"{workshop.data.name}-train-*.h5"):
        text = bytearray(path.read_bytes())
        with h5py.File(path) as file:
            at = file["tokens"].id.get_offset()
        text[at] ^= 1
        (workshop.folder / path.name.replace(workshop.data.name, "damaged")).write_bytes(text)
    return workshop.folder / "damaged-train"


CASES = """ranks_per_trial: [1, 2]
vary:
  case:
    good: {{seed: 1}}
    damaged: {{seed: 2, data.train: {damaged}}}
    wild: {{seed: 3, optimizer.kind: sgd, optimizer.momentum: 0, optimizer.weight_decay: 1000, learning_rate.base: 1.0e+6}}
    other: {{seed: 4}}
"""


@pytest.mark.thorough
def test_an_error_and_a_divergence_end_their_trials_and_nothing_else(workshop):
    study = Study(workshop, CASES.format(damaged=damaged_copy(workshop)))
    result = study.run(ranks=3, code=1)
    trials = study.listed()
    assert sorted(t["state"] for t in trials.values()) == ["diverged"] * 2 + ["failed"] * 2 + ["finished"] * 4, trials
    for name, trial in trials.items():
        if "damaged" in name:
            assert trial["state"] == "failed" and "CRC" in trial["error"], trial
            assert f"{name}: failed, error: " in result.out, result
        if "wild" in name:
            assert trial["state"] == "diverged" and trial["error"].startswith("error: step "), trial
        if trial["state"] == "finished":
            study.assert_same_as_alone(name)
    # Failed trials are tried again, and the others stay as they are.
    for path in workshop.data.parent.glob(f"{workshop.data.name}-train-*.h5"):
        (workshop.folder / path.name.replace(workshop.data.name, "damaged")).write_bytes(path.read_bytes())
    study.run("--resume", ranks=3)
    again = study.listed()
    for name, trial in again.items():
        assert trial["starts"] == (2 if "damaged" in name else 1), trial
        assert trial["state"] == ("diverged" if "wild" in name else "finished"), trial
        if "damaged" in name:
            study.assert_same_as_alone(name)


@pytest.mark.thorough
def test_a_trial_without_data_fails_and_leaves_the_others_alone(workshop):
    there, missing = workshop.folder / "mine-train", workshop.folder / "later-train"
    for path in workshop.data.parent.glob(f"{workshop.data.name}-train-*.h5"):
        (workshop.folder / path.name.replace(workshop.data.name, "mine")).write_bytes(path.read_bytes())
    study = Study(workshop, f"ranks_per_trial: 2\nvary: {{data.train: [{there}, {missing}]}}\nrepeat: 2\n")
    plan = study.run("--plan", ranks=0)
    assert f"trials of {missing} will fail" in plan.err, plan
    assert plan.out.count("mine-train") > 1 and "no data set" not in plan.out, plan
    result = study.run(ranks=2, code=1)
    assert f"trials of {missing} will fail" in result.out + result.err, result
    states = study.states()
    assert sorted(states.values()) == ["failed"] * 2 + ["finished"] * 2, states
    for name, trial in study.listed().items():
        if trial["state"] == "failed":
            assert "later-train" in trial["error"] and "hint" in trial, trial
    # A finished trial no longer needs its data.
    for path in workshop.folder.glob("mine-train-*.h5"):
        path.rename(workshop.folder / path.name.replace("mine", "later"))
    study.run("--resume", ranks=2)
    assert set(study.states().values()) == {"finished"}
    lost = Study(workshop, f"vary: {{data.train: [{there}, nowhere]}}\n", name="lost")
    result = lost.run(code=1)
    assert result.err.count("ringtrain: error") == 1 and "no data set at" in result.err and not lost.folder.exists(), result


SIDE_BY_SIDE = """ranks_per_trial: 2
vary:
  case:
    long: {seed: 1, stop.steps: 1000000000}
    short: {seed: 2}
    next: {seed: 3}
    last: {seed: 4}
"""
LONG = "ranks-2_case-long"


def children_of_mpirun(pid):
    """The ranks that the mpirun of this rank has started."""
    return children_of(parent_of(pid))


@pytest.mark.fast_cases("SIGKILL-0", "SIGSEGV-1")
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_trial_that_crashes_ends_alone(workshop, name, victim):
    study = Study(workshop, SIDE_BY_SIDE, stop__steps=200, checkpoint__every_steps=10)
    job = study.start(ranks=4)
    leader = study.wait_for_trial(job, LONG, 12)
    while not checkpoints(study.folder / LONG):
        time.sleep(0.05)
    ranks = children_of_mpirun(leader)
    os.kill(leader if victim == 0 else next(pid for pid in ranks if pid != leader), getattr(signal, name))
    result = job.wait()
    assert result.code == 1, result
    trials = study.listed()
    assert trials[LONG]["state"] == "failed" and name in trials[LONG]["error"] and "log.txt" in trials[LONG]["hint"], trials[LONG]
    assert f"{LONG}: failed, error: a rank was ended by {name}" in result.out, result
    others = [other for other in trials if other != LONG]
    assert {trials[other]["state"] for other in others} == {"finished"}, trials
    study.assert_same_as_alone(others[0])
    # The trial continues from its last checkpoint.
    again = study.start("--resume", ranks=2)
    before = last_step(study.folder / LONG)
    study.wait_for_trial(again, LONG, before + 3)
    assert "resuming after step" in (study.folder / LONG / "log.txt").read_text()
    again.kill()


def test_no_process_stays_when_the_study_is_killed(workshop):
    study = Study(workshop, SIDE_BY_SIDE, stop__steps=ENDLESS // 2)
    job = study.start(ranks=4)
    study.wait_for_trial(job, LONG, 3)
    assert len(study.processes()) >= 1 + 2 * 3, "a study, and two trials with mpirun and two ranks each"
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    deadline = time.monotonic() + 20
    while study.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not study.processes()
    again = study.start("--resume", ranks=4)
    study.wait_for_trial(again, LONG, last_step(study.folder / LONG) + 2)
    again.kill()


def test_trials_side_by_side_have_cores_of_their_own(workshop):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    study = Study(workshop, "repeat: 2\n", stop__steps=ENDLESS)
    job = study.start(ranks=2)
    cpus = [os.sched_getaffinity(study.wait_for_trial(job, name, 2)) for name in ("unchanged", "seed-2")]
    assert cpus[0] and cpus[1] and not cpus[0] & cpus[1]
    job.process.terminate()
    assert job.wait(90).code == 85


def test_a_study_under_a_launcher_says_how_to_start_it(workshop):
    study = Study(workshop, "repeat: 2\n", stop__steps=3)
    result = workshop.run("study", study.path.name, ranks=2, cwd=workshop.folder)
    assert result.code == 1 and result.err.count("ringtrain: error") == 1, result
    assert "started by mpirun" in result.err and "ringtrain study FILE --ranks 2" in result.err, result
    assert not study.folder.exists()
    result = study.run("--launcher", "ssh", code=1)
    assert "--launcher is 'ssh', expected srun, mpirun or mpiexec" in result.err, result
    for launcher in str(workshop.folder / "mpirun"), "mpirun.nowhere", str(workshop.folder):
        words = "expected srun" if launcher == str(workshop.folder) else f"there is no program {launcher}, which starts the trials"
        result = study.run("--launcher", launcher, code=1)
        assert words in result.err and result.err.count("ringtrain: error") == 1 and not study.folder.exists(), result


@pytest.mark.thorough
def test_a_job_that_is_killed_twice_loses_nothing(workshop):
    study = Study(workshop, "ranks_per_trial: [1, 2]\nrepeat: 3\n", stop__steps=150, checkpoint__every_steps=10)
    for start in range(2):
        job = study.start(*(["--resume"] if start else []), ranks=3)
        deadline, finished = time.monotonic() + 30, -1
        while time.monotonic() < deadline and finished <= start:
            finished = sum(json.loads(path.read_text())["state"] == "finished"
                           for path in study.folder.glob("*/trial.json"))
            time.sleep(0.02)
        job.process.kill()
        job.process.wait()
        assert finished > start and "running" in {json.loads(p.read_text())["state"] for p in study.folder.glob("*/trial.json")}
    # A job that is killed between two writes leaves a study.json that is older than a trial's own file.
    own = {path.parent.name: json.loads(path.read_text()) for path in study.folder.glob("*/trial.json")}
    done = {name: trial["starts"] for name, trial in own.items() if trial["state"] == "finished"}
    again = study.run("--resume", ranks=3)
    trials = study.listed()
    assert {t["state"] for t in trials.values()} == {"finished"}, again
    assert all(trials[name]["starts"] == starts for name, starts in done.items()), "finished trials were begun again"
    assert any(t["starts"] > 1 for t in trials.values())
    for name in trials:
        study.assert_same_as_alone(name)
    study.run("--resume", ranks=2)
    assert study.listed() == trials, "there was nothing left to do"


@pytest.mark.parametrize("target", ["the study", "a trial"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
@pytest.mark.fast_cases("SIGTERM-the study", "SIGUSR1-a trial")
def test_a_signal_ends_every_trial_with_a_checkpoint_and_resume_goes_on(workshop, name, target):
    study = Study(workshop, "repeat: 4\n", stop__steps=ENDLESS, checkpoint__every_epochs=0)
    job = study.start(ranks=2)
    names = ["unchanged", "seed-2"]
    pids = [study.wait_for_trial(job, trial, 3) for trial in names]
    os.kill(job.process.pid if target == "the study" else pids[1], getattr(signal, name))
    result = job.wait(90)
    assert result.code == 85 and "--resume" in result.out, result
    assert set(study.states().values()) == {"waiting"}
    for trial in names:
        assert checkpoints(study.folder / trial)[-1].name == f"step-{last_step(study.folder / trial):09d}.h5"
    assert not (study.folder / "seed-3").exists(), "no trial begins after the signal"
    again = study.start("--resume", ranks=2)
    for trial in names:
        again.wait_for_step(study.folder / trial, last_step(study.folder / trial) + 2)
        assert "resuming after step" in (study.folder / trial / "log.txt").read_text()
    again.kill()


def test_a_signal_at_the_start_of_a_trial_stops_it_too(workshop):
    study = Study(workshop, "repeat: 2\n", stop__steps=ENDLESS)
    job = study.start(ranks=2)
    while not (study.folder / "unchanged" / "log.txt").exists():
        time.sleep(0.005)
    job.process.terminate()
    result = job.wait(90)
    assert result.code == 85 and set(study.states().values()) == {"waiting"}, result
    assert not study.processes()


def test_what_the_last_words_of_a_study_say_continues_it_with_its_overrides(workshop):
    study = Study(workshop, "repeat: 2\n", stop__steps=ENDLESS, checkpoint__every_epochs=0)
    job = study.start("learning_rate.base=0.002", "checkpoint.keep_at=[2 steps]", ranks=1)
    job.wait_for_step(study.folder / "unchanged", 3)
    job.process.terminate()
    result = job.wait(90)
    assert result.code == 85, result
    words = shlex.split(re.search(r"continue with: ringtrain (.*)", result.out)[1])
    before = last_step(study.folder / "unchanged")
    again = workshop.start(*words, ranks=0, cwd=workshop.folder)
    again.wait_for_step(study.folder / "unchanged", before + 2)
    again.kill()
    assert "resuming after step" in (study.folder / "unchanged" / "log.txt").read_text()
    assert steps(study.folder / "unchanged")[-1]["lr"] == 0.002


@pytest.mark.thorough
def test_two_jobs_share_a_study(workshop):
    study = Study(workshop, "ranks_per_trial: [1, 2]\nrepeat: 4\n", stop__steps=60)
    jobs = [study.start("--resume", ranks=2) for _ in range(2)]
    for job in jobs:
        assert job.wait().code == 0, job.result(None)
    trials = study.assert_all_finished_in_one_start()
    assert len(trials) == 8 and len({t["job"] for t in trials.values()}) == 2, "one of the jobs had nothing to do"


def test_shares_of_an_array_are_all_of_the_study(workshop):
    study = Study(workshop, "repeat: 7\n", stop__steps=3)
    seen = 0
    for k in range(3):
        study.run("--resume", "--index", f"{k}/3", ranks=2)
        finished = list(study.states().values()).count("finished")
        assert finished - seen in (2, 3)
        seen = finished
    assert len(study.assert_all_finished_in_one_start()) == 7


def test_what_has_begun_is_not_begun_again_without_being_asked(workshop):
    study = Study(workshop, "repeat: 2\n", stop__steps=3)
    study.run()
    before = study.listed()
    result = study.run(code=1)
    assert "2 trials have begun" in result.err and "--resume" in result.err, result
    # study.json can be made again from the trials' own files.
    (study.folder / "study.json").unlink()
    study.run("--resume")
    assert study.listed() == before
    # Another experiment of the same name is refused.
    result = study.run("--resume", "learning_rate.base=0.02", code=1)
    assert "learning_rate.base is 0.02, was 0.01" in result.err and "remove" in result.err, result
    assert "give the same key.path=value arguments as before" in result.err, result
    assert study.listed() == before
    # Keys that only change the speed may change.
    study.run("--resume", "run.log_every_steps=1")
    assert study.listed() == before


@pytest.mark.thorough
def test_a_study_that_cannot_run_here_begins_nothing(workshop):
    study = Study(workshop, "ranks_per_trial: [1, 4]\n")
    result = study.run(ranks=2, code=1)
    assert "trial ranks-4 needs 4 ranks, and this study has 2" in result.err and "--ranks 4" in result.err, result
    assert result.err.count("ringtrain: error") == 1 and not study.folder.exists(), result
    kept = re.findall(r"^!/results/(\w+)/$", (ROOT / ".gitignore").read_text(), re.MULTILINE)
    assert len(kept) >= 4
    for name in kept:
        study = Study(workshop, "repeat: 2\n", name=name)
        assert f"name is '{name}'" in study.run(code=1).err
