"""Tests the experiments in configs/. Each experiment, and every row of the table in its header, is planned: those on
ImageNet without any data, and those on names with made names."""
import math
import random
import re

import pytest

from conftest import ROOT, convert

def plan_of(workshop, config, *words):
    result = workshop.run("plan", ROOT / "configs" / config, *words, ranks=0)
    assert result.code == 0, result
    return result.out


def row(plan, name):
    return re.search(rf"^  {name} +(.*)$", plan, re.MULTILINE)[1]


IMAGENET_SAMPLES = 1281167
IMAGENET = sorted(path.name for path in (ROOT / "configs").glob("imagenet_*.yaml"))
PARAMETERS = {"50": "25,557,032", "101": "44,549,160"}


def rows_of(config):
    """The overrides for every experiment in the file: its own, and those of its rows."""
    return [[]] + [line.split(" -> ")[0].split() for line in
                   re.findall(r"^# Row +(.*)$", (ROOT / "configs" / config).read_text(), re.MULTILINE)]


@pytest.mark.parametrize("config", IMAGENET)
def test_every_imagenet_experiment_and_row_of_its_table_is_planned_without_the_data(workshop, config):
    for words in rows_of(config):
        plan = plan_of(workshop, config, "--ranks", "4", *words)
        depth = "101" if "model.depth=101" in words else "50"
        count = "61,101,992" if "alexnet" in config else PARAMETERS[depth]
        assert f"{count} parameters" in row(plan, "model"), words


@pytest.fixture(scope="module")
def many_names(tmp_path_factory):
    """The prefix of a data set with a few more samples than the pet-name study has, because the largest batch is
    262,144."""
    letters, generator = "abcdefghijklmnopqrstuvwxyz", random.Random(4)
    names = {"".join(generator.choice(letters) for _ in range(generator.randint(4, 9))) for _ in range(60000)}
    return convert("names", sorted(names), tmp_path_factory.mktemp("many") / "names")


@pytest.mark.parametrize("config", ["names.yaml", "pet_names.yaml"])
def test_every_experiment_on_names_is_planned(workshop, many_names, config):
    data = [f"data.train={many_names}-train", f"data.validation={many_names}-validation"]
    for words in rows_of(config):
        assert "parameters" in row(plan_of(workshop, config, "--ranks", "4", *data, *words), "model")


def test_the_grid_of_the_pet_name_study_is_15_experiments(workshop, many_names):
    data = [f"data.train={many_names}-train", f"data.validation={many_names}-validation"]
    grid = [words for words in rows_of("pet_names.yaml") if words]
    assert len({row(plan_of(workshop, "pet_names.yaml", *data, *words), "experiment") for words in grid}) == len(grid) == 15


def test_an_epoch_of_mlperf_ends_with_a_smaller_batch(workshop):
    for words in rows_of("imagenet_resnet50_mlperf.yaml"):
        keys = dict(word.split("=") for word in words)
        batch, epochs = int(keys.get("batch.global", 4096)), int(keys.get("stop.epochs", 42))
        plan = plan_of(workshop, "imagenet_resnet50_mlperf.yaml", "--ranks", "4", *words)
        assert f"step {epochs * math.ceil(IMAGENET_SAMPLES / batch)} " in plan, plan


def test_lambs_rates_and_warm_up_follow_from_the_batch(workshop):
    for batch, step, rate in ("512", "782", "0.005"), ("32768", "780", "0.04"):  # a warm-up of 0.3125 and of 20 epochs
        plan = plan_of(workshop, "imagenet_resnet50_lamb.yaml", "--ranks", "4", f"batch.global={batch}")
        assert re.search(rf"^  step {step} .*\) +{rate} ", plan, re.MULTILINE), plan


def test_goyals_8192_is_the_same_experiment_on_8_and_on_256_ranks(workshop):
    plans = {ranks: plan_of(workshop, "imagenet_resnet50_8192.yaml", "--ranks", ranks) for ranks in ("8", "256")}
    assert row(plans["8"], "experiment") == row(plans["256"], "experiment")
    assert row(plans["8"], "batch") == "8192 = 256 workers x 32 = 8 ranks x 32 micro-steps x 32"
    assert row(plans["256"], "batch") == "8192 = 256 workers x 32 = 256 ranks x 1 micro-step x 32"
    for plan in plans.values():
        assert "25,557,032 parameters" in row(plan, "model")
        assert re.search(r"^  step 780 \(epoch 5.*\) +3.2 ", plan, re.MULTILINE), plan  # 156 steps an epoch
    other = plan_of(workshop, "imagenet_resnet50_8192.yaml", "--ranks", "8", "seed=2")
    assert row(other, "experiment") != row(plans["8"], "experiment")
    faster = plan_of(workshop, "imagenet_resnet50_8192.yaml", "--ranks", "8", "communication.bucket_mib=4", "batch.micro=64")
    assert row(faster, "experiment") == row(plans["8"], "experiment")
