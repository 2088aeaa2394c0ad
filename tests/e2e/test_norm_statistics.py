"""Tests the statistics with which batch norm is evaluated: running averages, statistics recomputed on training samples,
or those of the last step."""
import json
import os
import signal

import h5py
import numpy
import pytest

from conftest import arrays, assert_same_bits, checkpoints, curve, evaluations, steps
from test_images import RESNET, data_sets, images  # noqa: F401 (fixtures)
from test_weights import read_safetensors

PLAIN = {**RESNET, "data__augmentation": "none", "data__flip": False, "data__resize": 0}
PLAIN = {key: value for key, value in PLAIN.items() if key != "data__pad"}
RECOMPUTED = {"norm_statistics": "recomputed", "norm_samples": 96}


# With this optimizer, the evaluated weights are not those that train.
AVERAGED = {**RESNET, "optimizer": {"kind": "sgd", "schedule_free": True, "weight_decay": 0.0005}}
MEAN = {**RESNET, "average": {"half_life": 100}}


def evaluated(workshop, run, *words):
    out = workshop.folder / "evaluation.json"
    result = workshop.run("evaluate", run, "--json", out, *words)
    assert result.code == 0, result
    return json.loads(out.read_text())


@pytest.mark.thorough
def test_recomputed_statistics_leave_the_training_curve_as_it_is(images):
    plain = images.train("running", checkpoint={"every_steps": 4}, **RESNET)
    other = images.train("recomputed", checkpoint={"every_steps": 4}, evaluate={**RECOMPUTED, "every_steps": 3}, **RESNET)
    assert curve(plain) == curve(other)
    a, b = arrays(checkpoints(plain)[-1]), arrays(checkpoints(other)[-1])
    own = {name for name in b if name.startswith("running/")}
    assert len(own) == 40 and own | a.keys() == b.keys()
    for name, values in a.items():
        statistic = f"running/{name.removeprefix('weights/')}"
        assert values.tobytes() == b[statistic if statistic in own else name].tobytes(), name
    said = {run: {e["step"]: e["validation_loss"] for e in evaluations(run)} for run in (plain, other)}
    assert said[plain][10] != said[other][10]


def assert_they_are_those_of_the_whole_training_set(run, data_sets):
    """Looks at the first norm, whose input no other norm changes."""
    stored = arrays(checkpoints(run)[-1])
    pixels = []
    for shard in sorted(data_sets["raw"].parent.glob("images-train-*.h5")):
        with h5py.File(shard) as file:
            pixels.append(file["images"][()])
            mean, std = file.attrs["mean"], file.attrs["std"]
    x = (numpy.concatenate(pixels).astype(float) / 255 - mean) / std
    assert len(x) == 96
    x = numpy.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    w = stored["weights/conv1.weight"].astype(float)
    y = sum(numpy.einsum("nhwc,oc->nhwo", x[:, k:k + 32, l:l + 32], w[:, :, k, l]) for k in range(3) for l in range(3))
    numpy.testing.assert_allclose(stored["weights/bn1.running_mean"], y.mean((0, 1, 2)), rtol=1e-5, atol=1e-6)
    numpy.testing.assert_allclose(stored["weights/bn1.running_var"], y.var((0, 1, 2)), rtol=1e-5)


@pytest.mark.thorough
def test_they_are_those_of_the_whole_training_set(images, data_sets):
    run = images.train("run", ranks=2, evaluate=RECOMPUTED, **PLAIN)
    assert_they_are_those_of_the_whole_training_set(run, data_sets)


def test_one_rank_is_four_ranks(images):
    common = {**RESNET, "stop": {"steps": 1}, "evaluate": {"norm_statistics": "recomputed", "norm_samples": 60}}
    one, four = (images.train(f"ranks-{n}", ranks=n, **common) for n in (1, 4))
    a, b = (arrays(checkpoints(run)[-1]) for run in (one, four))
    for name in a:
        if "running" in name and name.startswith("weights/"):
            assert numpy.linalg.norm(a[name] - b[name]) < 1e-4 * numpy.linalg.norm(a[name]), name


@pytest.mark.parametrize("experiment, evaluate",
                         [(RESNET, RECOMPUTED), (RESNET, {"norm_statistics": "last"}), (AVERAGED, RECOMPUTED),
                          (MEAN, RECOMPUTED)],
                         ids=["recomputed", "last", "recomputed for averaged weights", "recomputed for their mean"])
@pytest.mark.thorough
def test_evaluate_says_from_the_checkpoint_alone_what_the_run_said(images, experiment, evaluate):
    run = images.train("run", evaluate={**evaluate, "every_steps": 5}, checkpoint={"every_steps": 5, "keep": 3}, **experiment)
    said = {e["step"]: e for e in evaluations(run)}
    for path in checkpoints(run):
        step = int(path.stem.removeprefix("step-"))
        result = evaluated(images, path, "data.train=/nowhere/images")
        for key in "validation_loss", "validation_accuracy", "validation_accuracy5":
            assert result[key] == said[step][key], step
    assert evaluated(images, run)["validation_loss"] == min(e["validation_loss"] for e in said.values())
    # An exported file holds the same statistics.
    newest = checkpoints(run)[-1]
    out = images.folder / "weights.safetensors"
    assert images.run("export", newest, "--out", out, ranks=0).code == 0
    stored = arrays(newest)
    tensors, _ = read_safetensors(out)
    for name, values in tensors.items():
        if "num_batches" not in name:
            assert values.tobytes() == stored[f"weights/{name}"].tobytes(), name


@pytest.mark.thorough
def test_checkpoints_between_evaluations_have_them_too(images):
    common = {**RESNET, "checkpoint": {"every_steps": 4, "every_epochs": 0, "keep": 9, "best": False}}
    run = images.train("run", evaluate={**RECOMPUTED, "every_epochs": 0}, **common)
    often = images.train("often", evaluate={**RECOMPUTED, "every_steps": 1}, **common)
    assert len(checkpoints(run)) == 3
    for a, b in zip(checkpoints(run), checkpoints(often)):
        assert a.name == b.name
        a, b = arrays(a), arrays(b)
        assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.mark.parametrize("experiment", [RESNET, AVERAGED, MEAN],
                         ids=["trained weights", "averaged weights", "mean of the weights"])
@pytest.mark.thorough
def test_resuming_continues_bit_for_bit(images, experiment):
    common = {**experiment, "stop": {"steps": 10}, "ranks": 2, "evaluate": {**RECOMPUTED, "every_steps": 3}}
    whole = images.train("whole", **common)
    images.train("parts", **{**common, "stop": {"steps": 5}})
    parts = images.train("parts", resume=True, **common)
    assert_same_bits(whole, parts)
    a, b = ({e["step"]: e["validation_loss"] for e in evaluations(run)} for run in (whole, parts))
    assert all(a[step] == b[step] for step in a)


@pytest.mark.thorough
def test_a_signal_leaves_no_time_for_them_and_the_resumed_run_makes_up_for_it(images):
    common = {**RESNET, "evaluate": {**RECOMPUTED, "every_epochs": 0}, "checkpoint": {"every_epochs": 0}}
    run, job = images.start_training("run", **{**common, "stop": {"steps": 10**6}})
    job.wait_for_step(run, 3)
    for pid in job.ranks().values():
        os.kill(pid, signal.SIGTERM)
    assert job.wait().code == 85
    hurried = checkpoints(run)[-1]
    for words in (["evaluate", hurried], ["export", hurried, "--out", images.folder / "w.safetensors"]):
        result = images.run(*words, ranks=0)
        assert result.code == 1 and result.err.count("ringtrain: error") == 1, result
        assert "has no recomputed statistics of batch norm" in result.err and "resume the run" in result.err
    last = steps(run)[-1]["step"]
    images.train("run", resume=True, **{**common, "stop": {"steps": last}})  # only the last evaluation is left
    assert evaluated(images, checkpoints(run)[-1])["step"] == last


@pytest.mark.thorough
def test_first_evaluation_after_the_offset(images):
    run = images.train("run", **{**RESNET, "stop": {"epochs": 3}}, evaluate={"every_epochs": 2, "offset_epochs": 0.5})
    assert [e["step"] for e in evaluations(run)] == [3, 15, 18]  # 6 steps an epoch, and the end
