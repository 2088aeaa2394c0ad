"""Tests communication.order: fixed. Any number of ranks must give the same bits, and a run may continue with another
number of ranks."""
import re

import pytest

from conftest import assert_same_bits, curve, evaluations, steps
from test_images import CNN, RESNET, make_images

FIXED = {"communication__order": "fixed"}
NAMES = {**FIXED, "evaluate": {"every_steps": 2}, "batch": {"global": 32, "worker": 4}, "optimizer": {"kind": "lamb", "weight_decay": 0.01, "clip_norm": 0.5}}
IMAGES = {**RESNET, **FIXED, "evaluate": {"every_steps": 1, "norm_statistics": "recomputed", "norm_samples": 44}}  # 11 passes: no power of two


def noise(run):
    """Returns, for each step, the part of its record that is about the noise scale."""
    return [{key: value for key, value in step.items() if "noise" in key} for step in steps(run)]


def assert_same_run(run, other):
    assert_same_bits(run, other)
    results = [[{key: value for key, value in record.items() if key.startswith("validation") and "seconds" not in key}
                for record in evaluations(r)] for r in (run, other)]
    assert results[0] == results[1] and results[0]
    assert noise(run) == noise(other) and any(noise(run))


def assert_same_on_all(workshop, ranks, **experiment):
    first = workshop.train("ranks-1", **experiment)
    for count in ranks:
        assert_same_run(first, workshop.train(f"ranks-{count}", ranks=count, **experiment))
    any_order = steps(workshop.train("any-order", **{**experiment, "communication__order": "any", "stop": {"steps": 1}}))
    for what in ("loss", "grad_norm"):
        assert steps(first)[0][what] == pytest.approx(any_order[0][what], rel=2e-5 if experiment.get("precision") != "bf16" else 2e-2)
    return first


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("raw"), "raw", 32)


def test_names_on_1_2_and_4_ranks(workshop):
    """With many buckets, small batches of two passes each, clipping, decay and trust ratios."""
    assert_same_on_all(workshop, [2, 4], communication__bucket_mib=0.001, noise={"small_batch": 8, "groups": "kind"}, **NAMES)


@pytest.mark.thorough
def test_a_pass_on_each_of_8_ranks(workshop):
    assert_same_on_all(workshop, [8], **NAMES)


@pytest.mark.thorough
def test_running_text_that_carries_its_state(workshop, text):
    workshop.data = text
    assert_same_on_all(workshop, [4], **{**NAMES, "data__order": "streams", "data__sequence": 8})


@pytest.mark.fast_cases("cnn")
@pytest.mark.parametrize("experiment", [IMAGES, {**CNN, **FIXED, "optimizer": {"kind": "muon"}}], ids=["resnet", "cnn"])
def test_images(workshop, pictures, experiment):
    workshop.data = pictures
    assert_same_on_all(workshop, [2, 4], **experiment)


def test_16_bit_activations(workshop, pictures):
    if "avx512_bf16" not in open("/proc/cpuinfo").read():
        pytest.skip("this processor has no AVX-512 BF16")
    workshop.data = pictures
    assert_same_on_all(workshop, [4], precision="bf16", **IMAGES)


@pytest.mark.thorough
def test_adascale_and_a_batch_that_follows_the_noise(workshop):
    """In these runs, measured values decide the rate and the batch."""
    adascale = {"optimizer": {"kind": "sgd", "momentum": 0.9, "adascale": True}, "learning_rate": {"base": 0.1, "base_batch": 8},
                "noise": {"small_batch": 8}}
    run = assert_same_on_all(workshop, [4], **{**NAMES, **adascale})
    assert len({step["gain"] for step in steps(run)}) == len(steps(run))
    follows = {"batch": {"global": 16, "worker": 4, "follow_noise": 1e6, "patience": 48, "largest": 64}, "noise__small_batch": 4}
    follows = {**NAMES, **follows, "learning_rate": {"base": 0.01}}
    alone, many = workshop.train("follows-1", **follows), workshop.train("follows-4", ranks=4, **follows)
    assert_same_run(alone, many)
    assert steps(alone)[-1]["samples"] > 20 * 16, "the batch has not grown"


@pytest.mark.thorough
def test_the_smaller_batch_at_an_epochs_end_and_a_batch_that_grows(workshop):
    assert_same_on_all(workshop, [4], **{**NAMES, "data__last_batch": "smaller", "batch": {"global": 32, "worker": 4, "schedule": [
        [1, 2]]}, "stop": {"epochs": 2}})


@pytest.mark.thorough
def test_a_run_goes_on_with_other_ranks(workshop, pictures):
    workshop.data = pictures
    whole = workshop.train("whole", **IMAGES)
    for end, ranks in ((3, 1), (5, 4), (8, 2), (10, 4)):
        run, job = workshop.start_training("parts", ranks=ranks, resume=end > 3, **{**IMAGES, "stop": {"steps": end}})
        result = job.wait()
        assert result.code == 0 and "within rounding" not in result.text, result
    assert curve(run) == curve(whole)
    assert_same_bits(run, whole)
    result = workshop.start_training("parts", resume=True, run__threads=2, **{**IMAGES, "stop": {"steps": 11}})[1].wait()
    assert result.code == 0 and "continues within rounding" in result.text, result


@pytest.mark.parametrize("ranks, changes, says", [
    (3, dict(batch={"global": 24, "worker": 2}), "24 samples of a step are 12 passes of 2, expected a power of two"),
    (3, dict(batch={"global": 32, "worker": 4}), "3 ranks do not divide the 8 virtual workers"),
    (2, dict(run={"threads": 0}), "run.threads is 0, expected a number"),
    (4, dict(parallel={"kind": "pipeline"}), "parallel.kind is pipeline, expected ring"),
    (4, dict(parallel={"shard_state": True}), "parallel.shard_state is true, expected false"),
    (4, dict(communication__algorithm="ring"), "communication.algorithm is ring, expected auto or halving"),
])
def test_what_cannot_be_is_refused_with_the_reason(workshop, ranks, changes, says):
    result = workshop.run("plan", workshop.experiment(**{**NAMES, **changes}), "--ranks", ranks, ranks=0)
    assert result.code != 0 and says in result.err, result


def test_ranks_that_would_share_a_worker_are_refused(workshop, pictures):
    workshop.data = pictures
    result = workshop.run("plan", workshop.experiment(**{**RESNET, **FIXED, "batch": {"global": 16, "worker": 8}}), "--ranks", 4, ranks=0)
    assert result.code != 0 and "numbers of ranks that work: 1, 2;" in result.err, result


def test_plan_prints_the_tree_and_what_it_costs(workshop):
    def planned(**changes):
        result = workshop.run("plan", workshop.experiment(**{**NAMES, **changes}), "--ranks", 2, ranks=0)
        assert result.code == 0, result
        return result.out

    text = planned()
    assert "8 passes of 4 samples; the same bits on 1, 2, 4, 8 ranks" in text
    assert re.search(r"3 x an addition and a copy of .* in a step: [0-9.e-]+ ms \(measured here", text), text
    # With communication.order: any, a pass would have the 16 samples of a rank.
    assert "passes of 4 samples instead of 16, which are slower" in text, text
    assert "samples instead of" not in planned(batch={"global": 32, "worker": 16})
    gradients, waiting = (int(re.search(rf"{what} +([0-9,]+)", text)[1].replace(",", ""))
                          for what in ("gradients", "gradients of passes, added in a fixed order"))
    assert waiting == 2 * gradients  # four passes on each rank
    assert "fixed order" not in planned(communication__order="any")
