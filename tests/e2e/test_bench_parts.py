"""Tests bench utilisation, bench components, and the pictures of both."""
import csv

import pytest

from conftest import assert_drawn
from test_holes import preload  # noqa: F401 (a fixture)
from test_images import CNN, CROPPED, RESNET, data_sets  # noqa: F401 (a fixture)


def table(file):
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.thorough
@pytest.mark.fast_cases("2")
@pytest.mark.parametrize("ranks", [1, 2])
def test_utilisation_goes_up_to_the_batch_that_does_not_fit(workshop, ranks):
    file = workshop.folder / "utilisation.csv"
    limit = 0.03  # GiB; with AVX-512, a batch of one takes 17.5 MiB
    result = workshop.run("bench", "utilisation", "--limit-gib", str(limit), "--seconds", "0.1", "--csv", file, ranks=ranks)
    assert result.code == 0, result
    rows = table(file)
    sizes = [int(r["batch_per_rank"]) for r in rows]
    assert [r["fits"] for r in rows] == ["yes"] * (len(rows) - 1) + ["no"]
    assert sizes[:3] == [1, 2, 4] and sizes[-1] == sizes[-2] + 1, "the largest that fits and the next one"
    memory = [float(r["memory_mib"]) for r in rows]
    assert memory == sorted(memory) and memory[-2] - 0.05 <= limit * 1024 <= memory[-1] + 0.05  # one digit after the point
    for row in rows[:-1]:
        assert row["model"] == "cnn" and row["ranks"] == str(ranks)
        rate = int(row["batch_per_rank"]) * ranks / float(row["seconds"])
        assert float(row["samples_per_second"]) == pytest.approx(rate, rel=1e-3)
        # conv1 computes no gradient of the pictures, so its 0.88 million products count twice. Those of the other
        # layers count three times.
        flops = 2 * (2 * 32 * 27 * 1024 + 3 * (64 * 288 * 256 + 128 * 576 * 64 + 2048 * 10))
        assert float(row["gflops"]) == pytest.approx(flops * rate / ranks / 1e9, rel=1e-3)
        assert float(row["share_of_matrix_rate"]) == pytest.approx(float(row["gflops"]) / float(row["matrix_gflops"]), rel=1e-3)
    assert_drawn(file)


@pytest.mark.thorough
def test_utilisation_of_an_experiments_model_up_to_a_stated_batch(workshop, data_sets):  # noqa: F811
    workshop.data = data_sets["raw"]
    file = workshop.folder / "utilisation.csv"
    result = workshop.run("bench", "utilisation", workshop.experiment(**CNN), "--largest", "5", "--seconds", "0.3", "--csv", file)
    assert result.code == 0, result
    assert [(r["model"], r["batch_per_rank"], r["fits"]) for r in table(file)] == [("cnn", n, "yes") for n in ("1", "2", "4")]


SMALL = {**CROPPED, "model": {"kind": "cnn"}, "data__prefetch": 1}


@pytest.mark.thorough
def test_components_are_removed_in_turn(workshop, data_sets):  # noqa: F811
    for encoding, ranks in (("jpeg", 2), ("raw", 1)):
        workshop.data = data_sets[encoding]
        file = workshop.folder / "components.csv"
        result = workshop.run("bench", "components", workshop.experiment(**SMALL), "--seconds", "1", "--csv", file, ranks=ranks)
        assert result.code == 0, result
        rows = table(file)
        expected = ["nothing", "storage", "decode", "augment", "compute", "all-reduce"]
        assert [r["removed"] for r in rows] == [part for part in expected if not (
            part == "decode" and encoding == "raw" or part == "all-reduce" and ranks == 1)]
        seconds = {r["removed"]: float(r["seconds_per_step"]) for r in rows}
        for row in rows:
            assert float(row["samples_per_second"]) == pytest.approx(16 / float(row["seconds_per_step"]), rel=1e-3)
            assert float(row["cost_seconds"]) == pytest.approx(seconds["nothing"] - seconds[row["removed"]], abs=1e-5)
        assert "copy: not measured, because a CPU reads the loader's memory directly" in result.out
        assert_drawn(file)


ASYNC = {"kind": "server", "mode": "async"}
BACKUP = {"kind": "server", "backup_workers": 1}
PIPELINE = {"kind": "pipeline", "stages": 2}


@pytest.mark.parametrize("parallel, ranks, why, ring", [
    (ASYNC, 2, "whose workers have no common step", "parallel.kind=ring parallel.mode=sync"),
    (BACKUP, 3, "such a step does not wait for all gradients", "parallel.kind=ring parallel.backup_workers=0"),
    ({"kind": "server"}, 2, "whose gradients go to parameter servers", "parallel.kind=ring"),
    ({**PIPELINE, "stages": 3}, 3, "whose ranks compute some of the layers", "parallel.kind=ring parallel.stages=2"),
])
@pytest.mark.thorough
def test_step_and_components_refuse_what_is_no_ring_and_say_how_to_make_one(workshop, parallel, ranks, why, ring):
    experiment = workshop.experiment(parallel=parallel, batch={"global": 24, "worker": 4})
    for kind in ("step", "components"):
        result = workshop.run("bench", kind, experiment, "--seconds", "0.3", ranks=ranks)
        assert result.code != 0 and why in result.err and f"set {ring}" in result.err, result
    result = workshop.run("bench", "step", experiment, *ring.split(), "--seconds", "0.3", ranks=ranks)
    assert result.code == 0 and "a training step with the data set" in result.out, result


@pytest.mark.parametrize("parallel, loading, ranks", [(ASYNC, 2, 3), (BACKUP, 2, 3), (PIPELINE, 1, 2), ({}, 2, 2)])
def test_input_is_measured_whatever_the_ranks_do_with_it(workshop, parallel, loading, ranks):
    experiment = workshop.experiment(parallel=parallel, batch={"global": 24, "worker": 4})
    result = workshop.run("bench", "input", experiment, "--seconds", "0.3", ranks=ranks)
    assert result.code == 0 and "samples/s from the loaders" in result.out, result
    assert (f"{loading} of {ranks} ranks load" in result.out) == (loading < ranks), result


@pytest.mark.thorough
def test_sharded_state_is_measured(workshop, data_sets):  # noqa: F811
    sharded = {"parallel": {"shard_state": True}}
    result = workshop.run("bench", "step", workshop.experiment(**sharded), "--seconds", "0.5", ranks=2)
    assert result.code == 0, result
    workshop.data = data_sets["raw"]
    result = workshop.run("bench", "components", workshop.experiment(**SMALL, **sharded), "--seconds", "0.5", ranks=2)
    assert result.code == 0 and "without all-reduce" in result.out, result


@pytest.mark.thorough
def test_utilisation_is_that_of_whole_models(workshop, data_sets):  # noqa: F811
    workshop.data = data_sets["raw"]
    file = workshop.folder / "utilisation.csv"
    result = workshop.run("bench", "utilisation", workshop.experiment(**CNN, parallel=PIPELINE), "--largest", "2",
                          "--seconds", "0.3", "--csv", file, ranks=2)
    assert result.code == 0, result
    for row in table(file):
        rate = 2 * int(row["batch_per_rank"]) / float(row["seconds"])
        assert float(row["samples_per_second"]) == pytest.approx(rate, rel=1e-3)


@pytest.mark.thorough
def test_utilisation_finds_the_batch_that_is_above_the_experiments_limit(workshop, data_sets):  # noqa: F811
    workshop.data = data_sets["raw"]
    file = workshop.folder / "utilisation.csv"
    result = workshop.run("bench", "utilisation", workshop.experiment(**CNN, memory={"limit_gib": 0.05}), "--seconds", "0.3",
                          "--csv", file)
    assert result.code == 0, result
    assert [r["fits"] for r in table(file)][-2:] == ["yes", "no"]


@pytest.mark.parametrize("changes", [
    {"noise": {"small_batch": 8}},
    {"model": RESNET["model"], "evaluate": {"norm_statistics": "recomputed", "norm_samples": 16}},
    {"optimizer": {**CNN["optimizer"], "adascale": True}, "noise": {"small_batch": 8},
     "learning_rate": {"base": 0.05, "base_batch": 8}}])
@pytest.mark.thorough
def test_keys_that_do_not_change_a_steps_work_are_no_obstacle(workshop, data_sets, changes):  # noqa: F811
    workshop.data = data_sets["raw"]
    file = workshop.folder / "utilisation.csv"
    result = workshop.run("bench", "utilisation", workshop.experiment(**{**CNN, **changes}), "--largest", "2", "--seconds", "0.3",
                          "--csv", file)
    assert result.code == 0, result
    assert [(r["batch_per_rank"], r["fits"]) for r in table(file)] == [("1", "yes"), ("2", "yes")]


@pytest.mark.thorough
def test_utilisation_ends_where_recomputation_does_not_help_any_more(workshop, data_sets):  # noqa: F811
    workshop.data = data_sets["raw"]
    file = workshop.folder / "utilisation.csv"
    experiment = workshop.experiment(**CNN, memory={"recompute": "auto", "limit_gib": 0.05})
    result = workshop.run("bench", "utilisation", experiment, "--seconds", "0.3", "--csv", file)
    assert result.code == 0 and "does not fit" in result.out, result
    rows = table(file)
    assert [r["fits"] for r in rows] == ["yes"] * (len(rows) - 1) + ["no"] and rows[-1]["memory_mib"] == ""
    assert_drawn(file)
    result = workshop.run("bench", "utilisation", experiment, "--limit-gib", "0.0001")
    assert result.code == 1 and "a larger --limit-gib" in result.err, result


@pytest.mark.thorough
def test_what_cannot_be_measured_is_told(workshop, names):
    workshop.data = names
    experiment = workshop.experiment()
    for words, told in ((["utilisation", experiment], "model.kind is char_lstm, expected a model of pictures"),
                        (["components", experiment], "expected images"),
                        (["components"], "needs an experiment file"),
                        (["utilisation", "--limit-gib", "0.0001"], "a batch of 1 does not fit"),
                        (["comm", "--csv", "x.csv"], "--csv takes one table"),
                        (["utilisation", "--csv", "x.png"], "expected a file that ends in .csv")):
        result = workshop.run("bench", *words, "--seconds", "0.2")
        assert result.code != 0 and told in result.err, result


@pytest.mark.parametrize("kind, changes", [("step", {}), ("split", {"parallel": {"kind": "pipeline", "stages": 2}}), ("components", SMALL)])
@pytest.mark.thorough
def test_the_ranks_of_a_node_share_the_data_sets_tables(workshop, data_sets, preload, kind, changes):  # noqa: F811
    """Rank 1 cannot open the memory of rank 0, and a warning says so. Without sharing, it would not try to open it."""
    if kind == "components":
        workshop.data = data_sets["raw"]
    env = {"LD_PRELOAD": str(preload), "RINGTRAIN_FAULTS": "call=open,path=/proc/*/fd/*,rank=1,from=1,count=0,do=EACCES"}
    result = workshop.run("bench", kind, workshop.experiment(**changes), "--seconds", "0.2", ranks=2, env=env)
    assert result.code == 0 and "cannot all share one copy of the data set's tables or text" in result.err, result
