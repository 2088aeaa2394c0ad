"""Tests the gradient noise scale in the files of a run."""
import json

import pytest

from conftest import steps

FIELDS = {"noise_trace", "noise_gradient", "noise_scale", "noise_scale_low", "noise_scale_high",
          "noise_scale_characters"}


def record_of(run_dir):
    return json.loads((run_dir / "run.json").read_text())


def test_a_run_of_two_ranks_records_it_without_being_asked(workshop):
    run = workshop.train("run", ranks=2)
    for record in steps(run):
        assert record["global_batch"] == 32
        assert FIELDS <= record.keys()
        # The step's own estimates satisfy |G_B|^2 = |G|^2 + tr(Sigma) / B.
        squared = record["noise_gradient"] + record["noise_trace"] / 32
        assert squared == pytest.approx(record["grad_norm"] ** 2, rel=1e-9)
    noise, last = record_of(run)["noise"], steps(run)[-1]
    assert noise["scale"] == last["noise_scale"] and noise["scale_low"] == last["noise_scale_low"]
    own = noise["training_set"]
    assert own["gradient"] == pytest.approx(noise["gradient"] + noise["trace"] / own["samples"])
    for batch in noise["batches"]:
        times = batch["batch"] / 32
        assert batch["efficiency"] == pytest.approx((noise["scale"] + 32) / (noise["scale"] + batch["batch"]))
        assert batch["gain"] == pytest.approx(times * batch["efficiency"])


def test_a_stated_small_batch_gives_the_same_values_on_any_number_of_ranks(workshop):
    one, two, four = (workshop.train(f"ranks-{n}", ranks=n, noise={"small_batch": 8}, optimizer={"kind": "sgd"})
                      for n in (1, 2, 4))
    for other in (two, four):
        for a, b in zip(steps(one), steps(other)):
            assert b["noise_trace"] == pytest.approx(a["noise_trace"], rel=1e-4)
            assert b["noise_gradient"] == pytest.approx(a["noise_gradient"], abs=1e-4 * a["noise_trace"])


def test_a_resumed_run_goes_on_with_the_same_averages(workshop):
    whole = workshop.train("whole", noise={"small_batch": 8})
    workshop.train("parts", noise={"small_batch": 8}, stop__steps=10)
    parts = workshop.train("parts", noise={"small_batch": 8}, resume=True)
    assert [r.get("noise_scale") for r in steps(parts)] == [r.get("noise_scale") for r in steps(whole)]


def test_one_rank_with_one_pass_says_once_that_it_measures_nothing(workshop):
    run, job = workshop.start_training("run", batch__micro=32)
    result = job.wait()
    assert result.code == 0, result
    assert result.text.count("one rank does the whole batch in one pass") == 1
    assert len(steps(run)) == 20 and not any(FIELDS & record.keys() for record in steps(run))
    assert "noise" not in record_of(run)


def test_the_end_of_a_run_says_what_other_batches_would_bring(workshop):
    _, job = workshop.start_training("run", noise={"small_batch": 8})
    result = job.wait()
    assert result.code == 0, result
    assert "gradient noise scale at the end of the run" in result.out, result
    assert "characters" in result.out and "training set" in result.out, result


def test_a_small_batch_that_does_not_fit_the_ranks_is_one_error(workshop):
    result = workshop.train_badly("run", ranks=2, noise={"small_batch": 16}, batch={"global": 48, "worker": 8})
    assert "noise.small_batch 16 does not divide the 24 rows of each of 2 ranks" in result.err, result
    assert "Numbers of ranks that work: 1, 3" in result.err, result


def test_groups_have_scales_of_their_own_in_summary_and_record(workshop):
    run, job = workshop.start_training("run", ranks=2, noise={"groups": "kind"})
    result = job.wait()
    assert result.code == 0, result
    assert "noise scale of groups" in result.out, result
    noise = record_of(run)["noise"]
    assert sorted(group["name"] for group in noise["groups"]) == ["bias", "weight"]
    assert sum(group["trace"] for group in noise["groups"]) == pytest.approx(noise["trace"])
    assert {group["name"]: group["scale"] for group in noise["groups"]} == steps(run)[-1]["noise_groups"]


ADASCALE = {"optimizer": {"kind": "sgd", "adascale": True}, "noise": {"small_batch": 8},
            "learning_rate": {"base": 0.5, "base_batch": 8}, "stop": {"epochs": 2}}


@pytest.mark.thorough
def test_adascale_ends_by_scale_invariant_epochs_and_resumes_uninterrupted(workshop):
    whole = workshop.train("whole", ranks=2, **ADASCALE)
    records = steps(whole)
    assert all(1 <= r["gain"] <= 4 for r in records)
    assert records[-1]["scale_invariant_epoch"] >= 2 > records[-2]["scale_invariant_epoch"]
    assert records[-1]["lr"] == pytest.approx(0.5 * records[-1]["gain"])
    workshop.train("parts", ranks=2, **{**ADASCALE, "stop": {"epochs": 2, "steps": len(records) // 2}})
    parts = workshop.train("parts", ranks=2, resume=True, **ADASCALE)
    keys = ("step", "gain", "lr", "loss", "scale_invariant_epoch")
    assert [[r[key] for key in keys] for r in steps(parts)] == [[r[key] for key in keys] for r in records]
    again = workshop.train("parts", ranks=2, resume=True, **ADASCALE)  # nothing is left to do
    assert len(steps(again)) == len(records)
