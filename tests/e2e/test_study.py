"""Tests `ringtrain study --plan`: its text about a study's trials, and its errors."""
import re

import pytest
import yaml

from conftest import ROOT

STUDIES = sorted((ROOT / "configs" / "studies").glob("*.yaml"))


def write_study(workshop, text, **changes):
    """Writes a study of the workshop's experiment, next to it."""
    experiment = workshop.experiment(**changes)
    path = workshop.folder / "study.yaml"
    path.write_text(f"name: e2e-study\nexperiment: {experiment.name}\n{text}")
    return path


def plan(workshop, path, *words, code=0):
    result = workshop.run("study", path, "--plan", *words, ranks=0)
    assert result.code == code, result
    return result


def names(result):
    """The trials in the table."""
    lines = result.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("trial ")) + 1
    rows = lines[start:lines.index("", start)]
    return [row.split()[0] for row in rows if not row.startswith(" ")]


GRID = """ranks_per_trial: [1, 2]
vary:
  batch.global: [32, 64]
repeat: 2
rules:
  learning_rate.base: 0.01 * sqrt(batch.global / 32)
"""


def test_a_plan_shows_every_trial_with_its_arithmetic(workshop):
    result = plan(workshop, write_study(workshop, GRID))
    assert names(result) == ["unchanged", "seed-2", "global-64", "global-64_seed-2", "ranks-2", "ranks-2_seed-2",
                             "ranks-2_global-64", "ranks-2_global-64_seed-2"]
    row = next(line for line in result.out.splitlines() if line.startswith("ranks-2_global-64 "))
    assert re.search(r" 2 +20 +1,280 +0\.01414 +- +64 = 8 workers x 8 = 2 ranks x ", row), row
    assert "not known" in result.out and "--preflight" in result.out, result
    assert not (ROOT / "results" / "e2e-study").exists()  # a plan leaves no files


def test_shares_of_a_job_array_are_disjoint_and_complete(workshop):
    path = write_study(workshop, GRID)
    shares = [names(plan(workshop, path, "--index", f"{k}/3")) for k in (1, 2, 3)]
    together = sorted(name for share in shares for name in share)
    assert together == sorted(names(plan(workshop, path))) and [len(s) for s in shares].count(0) == 0
    for bad in "4/3", "1", "a/b", "1/0":
        result = workshop.run("study", path, "--plan", "--index", bad, ranks=0)
        assert result.code == 1 and f"--index is '{bad}'; expected K/N" in result.err, result
    path.write_text(path.read_text() + "search: halving\n")
    result = workshop.run("study", path, "--plan", "--index", "1/3", ranks=0)
    assert result.code == 1 and "--index with search: halving" in result.err, result


def test_time_is_expected_from_what_was_measured(workshop):
    path = write_study(workshop, "vary: {batch.global: [32, 64]}\n")
    file = workshop.folder / "preflight.json"
    bench = workshop.run("bench", "step", workshop.folder / yaml.safe_load(path.read_text())["experiment"], "--json", file,
                         "--seconds", "0.5")
    assert bench.code == 0, bench
    result = plan(workshop, path, "--preflight", file)
    assert "the preflight file, without evaluations and checkpoints" in result.out and "at least on 1 rank" in result.out, result
    result = plan(workshop, path, "--preflight", file, "model.hidden=24")
    assert "the preflight file is of other models or ranks" in result.out, result


def test_trials_that_have_run_say_how_long_others_take(workshop):
    path = write_study(workshop, "vary: {batch.global: [32, 64]}\n")
    folder = workshop.folder / "results" / "e2e-study"
    workshop.train("results/e2e-study/unchanged")
    result = workshop.run("study", path, "--plan", ranks=0, cwd=workshop.folder)
    assert result.code == 0 and "earlier trials in results/e2e-study" in result.out, (result, folder)


# The study, the place of the error, and words of the message.
BAD = {
    "a rule": (GRID.replace("sqrt(", "sqr("), "8:30", ["unknown function 'sqr'", "sqrt"]),
    "a key": (GRID.replace("batch.global:", "batch.globl:"), "5:3", ["batch.globl", "batch.global"]),
    "a value": (GRID.replace("64]", "many]"), "5:22", ["batch.global", "many"]),
    "a batch that grows with the ranks": ("ranks_per_trial: [1, 2]\nvary: {batch_per_rank: 32}\n", "3:19",
                                          ["ranks_per_trial would change batch.global",
                                           "1 rank x 32 = 32, 2 ranks x 32 = 64", "no rule says so"]),
    "ranks that do not divide": ("ranks_per_trial: [1, 3, 5]\n", "", ["trial ranks-3", "3 ranks do not divide the 4",
                                                                   "1 more trial: ranks-5"]),
    "data": ("vary: {data.train: [nowhere-train]}\n", "", ["trial train-nowhere-train", "nowhere-train"]),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_study_is_named_with_its_place(workshop, what):
    text, place, words = BAD[what]
    path = write_study(workshop, text)
    result = plan(workshop, path, code=1)
    assert result.err.count("ringtrain: error") == 1 and f"{path}:{place}" in result.err, result
    assert not result.out, result
    for word in words:
        assert word in result.err, result


def test_every_trial_of_every_study_is_planned(workshop):
    for path in STUDIES:
        study = yaml.safe_load(path.read_text())
        experiment = yaml.safe_load((path.parent / study["experiment"]).read_text())
        words = []
        if experiment["model"]["kind"] == "char_lstm":  # the workshop has too few names for it
            words = [f"data.train={workshop.data}-train", f"data.validation={workshop.data}-validation"]
            study.update(vary={"batch_per_rank": [32]}, experiment=str(path.parent / study["experiment"]))
            path = workshop.folder / path.name
            path.write_text(yaml.safe_dump(study))
            words += ["batch.worker=16"]
        assert names(plan(workshop, path, *words))
