"""`ringtrain study` runs trials on groups of a job's ranks: each once, none lost, and as `ringtrain train` would."""
import json
import os
import signal
import time

import pytest
import yaml

from conftest import ROOT, assert_same_bits, checkpoints, last_step, steps

ENDLESS = 10**9
STATES = ("waiting", "running", "finished", "failed", "diverged")


class Study:
    """A study file in the workshop's folder, whose results lie there, too."""

    def __init__(self, workshop, text, name="small", **changes):
        self.workshop, self.name = workshop, name
        experiment = workshop.experiment(**changes)
        self.path = workshop.folder / f"{name}.yaml"
        self.path.write_text(f"name: {name}\nexperiment: {experiment.name}\n{text}")
        self.experiment = experiment
        self.folder = workshop.folder / "results" / name

    def start(self, *words, ranks=1, env=None):
        return self.workshop.start("study", self.path.name, *words, ranks=ranks, env=env, cwd=self.workshop.folder)

    def run(self, *words, ranks=1, code=0, timeout=60, env=None):
        result = self.start(*words, ranks=ranks, env=env).wait(timeout)
        assert result.code == code, result
        return result

    def listed(self):
        """name -> trial of study.json, which must say what the trials' own files say."""
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
        """The trial's run and `ringtrain train` with its overrides and ranks."""
        trial = self.listed()[name]
        place = self.workshop.folder / f"alone-{self.name}-{name}"
        words = [f"{key}={value}" for key, value in trial["overrides"].items()]
        done = self.workshop.run("train", self.experiment, *words, f"run.dir={place}", ranks=trial["ranks"])
        assert done.code == 0, done
        assert_same_bits(self.folder / name, place)


MIXED = "ranks_per_trial: [1, 2]\nvary: {batch.global: [32, 64]}\nrepeat: 2\n"


@pytest.mark.parametrize("ranks, text", [(1, "repeat: 3\n"), (2, "ranks_per_trial: 2\nrepeat: 3\n"), (2, MIXED), (3, MIXED),
                                         (4, MIXED), (3, "ranks_per_trial: 2\nrepeat: 3\n")])
def test_a_queue_is_worked_off_on_any_number_of_ranks(workshop, ranks, text):
    study = Study(workshop, text, stop__steps=6)
    result = study.run(ranks=ranks)
    trials = study.assert_all_finished_in_one_start()
    assert f"study small: {len(trials)} trials, {len(trials)} finished" in result.out, result
    assert "validation loss" not in "\n".join(line for line in result.out.splitlines() if line.startswith("epoch")), \
        "lines of a trial belong into its log.txt"
    for name in trials:
        assert "finished after step 6" in (study.folder / name / "log.txt").read_text()


def test_trials_equal_single_runs_bit_for_bit(workshop):
    study = Study(workshop, "ranks_per_trial: [1, 2]\nrepeat: 2\n", stop__steps=12)
    study.run(ranks=3)
    for name in study.assert_all_finished_in_one_start():
        study.assert_same_as_alone(name)
