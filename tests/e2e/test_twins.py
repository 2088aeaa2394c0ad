"""The scaled-down studies: every trial of each is planned on its own data."""
import os
import subprocess

import pytest
import yaml

from conftest import ROOT, environment

TWINS = sorted((ROOT / "configs" / "studies").glob("twin_*.yaml"))
WORDS = "/usr/share/dict/words"


def names_model(path):
    study = yaml.safe_load(path.read_text())
    return yaml.safe_load((path.parent / study["experiment"]).read_text())["model"]["kind"] == "char_lstm"


@pytest.fixture(scope="module")
def proper_names(tmp_path_factory):
    if not os.path.exists(WORDS):
        pytest.skip(f"there is no word list at {WORDS} (Debian: wamerican)")
    folder = tmp_path_factory.mktemp("proper")
    subprocess.run([ROOT / "data_prep" / "study_data.sh", "names"], env=environment({"DATA": str(folder)}), check=True,
                   capture_output=True, timeout=60)
    return folder / "names"


@pytest.mark.parametrize("path", TWINS, ids=lambda path: path.stem)
def test_every_trial_of_a_twin_is_planned(workshop, request, path):
    words = []
    if names_model(path):
        names = request.getfixturevalue("proper_names")
        words = [f"data.train={names}-train", f"data.validation={names}-validation"]
    result = workshop.run("study", path, "--plan", *words, ranks=0, timeout=60)
    assert result.code == 0 and "trial " in result.out, result
    header = path.read_text().split("\nname:")[0]
    assert all(f"# {word}" in header for word in ("A twin of", "Source ", "Scaled ", "To see ", "Run ")), header


def test_make_study_runs_the_twins_that_there_are():
    listed = next(line for line in (ROOT / "results" / "study.sh").read_text().splitlines() if line.startswith("twins="))
    assert sorted(listed.split('"')[1].split()) == sorted(path.stem.removeprefix("twin_") for path in TWINS)
