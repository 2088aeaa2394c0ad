"""Tests images through the executable. With batch norm and augmentation, ranks, micro-batches and threads change the
speed, never the result. A resumed run equals an uninterrupted run."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy
import pytest

from conftest import CONVERTER, HANG_SECONDS, ROOT, arrays, assert_close, assert_same_bits, checkpoints, evaluations, last_step, steps

# Goyal's recipe in small. 96 images are 6 steps, each of 4 virtual workers.
RESNET = {
    "model": {"kind": "resnet", "depth": 18, "width": 16, "stem": "small"},
    "data__image_size": 32, "data__augmentation": "pad_crop", "data__pad": 4, "data__flip": True,
    "batch": {"global": 16, "worker": 4},
    "loss": {"label_smoothing": 0.1},
    "optimizer": {"kind": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005},
    "learning_rate": {"base": 0.05, "warmup_steps": 5, "warmup_from": "zero"},
    "stop": {"steps": 10},
}
CNN = {**RESNET, "model": {"kind": "cnn"}}
GROUP_NORM = {**RESNET, "model": {"kind": "resnet", "depth": 8, "width": 16, "stem": "small", "normalization": "group", "norm_groups": 4}}
NORMED_MLP = {**RESNET, "model": {"kind": "mlp", "widths": [48, 32], "dropout": 0.2, "normalization": "batch"}}
CROPPED = {key: value for key, value in RESNET.items() if key != "data__pad"} | {
    "data__augmentation": "random_resized_crop", "data__resize": 36}


def make_images(folder, encoding, size):
    """The prefix of a data set of 4 classes. The class decides the direction and brightness of stripes."""
    generator = numpy.random.default_rng(1)
    rows = 96 + 30
    labels = numpy.arange(rows) % 4
    y, x = numpy.mgrid[:size, :size]
    angles = labels[:, None, None] * numpy.pi / 6  # 0 to 90 degrees: no class mirrors another
    waves = numpy.sin(0.7 * (x * numpy.cos(angles) + y * numpy.sin(angles)) + generator.uniform(0, 6, (rows, 1, 1)))
    pixels = 128 + 40 * (labels[:, None, None, None] - 1.5) + 10 * waves[..., None] + generator.normal(0, 30, (rows, size, size, 3))
    with h5py.File(folder / "arrays.h5", "w") as file:
        file["x"], file["y"] = pixels.clip(0, 255).astype(numpy.uint8), labels
    done = subprocess.run([CONVERTER, "import", folder / "arrays.h5", "--images", "x", "--labels", "y", "--out", folder / "images",
                           "--encoding", encoding, "--rows", "0:96", "--validation-rows", "96:126", "--shards", "2"],
                          capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "images"


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory):
    return {"raw": make_images(tmp_path_factory.mktemp("raw"), "raw", 32),
            "jpeg": make_images(tmp_path_factory.mktemp("jpeg"), "jpeg", 40)}


@pytest.fixture
def images(workshop, data_sets):
    workshop.data = data_sets["raw"]
    return workshop


def same(run_a, run_b):
    """Expects the same run up to fp32 rounding. The differences grow from step to step, because of batch norm over 4
    images and of ReLUs that switch."""
    assert_close(run_a, run_b, gradient=2e-4, loss=1e-2)
    a, b = (arrays(checkpoints(run)[-1]) for run in (run_a, run_b))
    statistics = [name for name in a if name.endswith(("running_mean", "running_var"))]
    for name in statistics:
        assert numpy.linalg.norm(a[name] - b[name]) < 0.02 * numpy.linalg.norm(a[name]), name
    return statistics


@pytest.mark.parametrize("encoding, experiment", [("raw", RESNET), ("jpeg", CROPPED)], ids=["raw", "jpeg"])
@pytest.mark.thorough
def test_one_rank_is_two_ranks_is_four_ranks_with_batch_norm(workshop, data_sets, encoding, experiment):
    workshop.data = data_sets[encoding]
    one, two, four = (workshop.train(f"ranks-{n}", ranks=n, **experiment) for n in (1, 2, 4))
    assert len(steps(one)) == 10 and evaluations(one)[-1]["validation_targets"] == 30
    assert len(same(one, two)) == len(same(one, four)) == 2 * 20  # means and variances of 20 norms
    assert [s["accuracy"] for s in steps(one)][:3] == [s["accuracy"] for s in steps(four)][:3]


def test_group_norm_does_not_depend_on_ranks_workers_or_passes(images):
    """Each sample is normalised by itself, in evaluation too."""
    def run(name, ranks, **batch):
        return images.train(name, ranks=ranks, **{**GROUP_NORM, "batch": {"global": 16, **batch}, "stop": {"steps": 6}})
    one = run("one", 1, worker=16)
    for other in run("two", 2, worker=1), run("four", 4, worker=4), run("ones", 2, worker=8, micro=1):
        assert_close(one, other, gradient=2e-4, loss=1e-2)
        assert evaluations(one)[-1]["validation_loss"] == pytest.approx(evaluations(other)[-1]["validation_loss"], rel=1e-3)
    assert not [name for name in arrays(checkpoints(one)[-1]) if "running" in name]


def test_group_norm_trains_with_a_batch_of_one_and_goes_on_bit_for_bit(images):
    alone = {**GROUP_NORM, "batch": {"global": 1, "worker": 1}, "learning_rate": {"base": 0.002}}
    whole = images.train("whole", **{**alone, "stop": {"steps": 9}})
    images.train("parts", **{**alone, "stop": {"steps": 5}})
    assert_same_bits(whole, images.train("parts", resume=True, **{**alone, "stop": {"steps": 9}}))
    assert len(steps(whole)) == 9 and all(numpy.isfinite(s["loss"]) for s in steps(whole))


@pytest.mark.parametrize("keys, said", [
    (["model.normalization=group", "model.norm_groups=5"], r"model.norm_groups is 5 but layer conv1 has 32 channels.*Values that do: .*4"),
    (["model.kind=alexnet", "model.normalization=group"], "model.normalization may be set only with resnet or cnn or mlp"),
    (["model.kind=resnet", "model.depth=9"], "model.depth is 9, expected 8, 20, 32, 44, 56 or 110"),
    (["model.kind=resnet", "model.depth=8"], "expected small: .* Set model.stem=small"),
    (["model.kind=mlp", "model.widths=[32]", "model.normalization=group"], "group norm bn1 would normalise a single value.*smaller"),
    (["model.kind=mlp", "model.widths=[32]", "model.normalization=batch", "batch.worker=1"], "batch norm bn1 would normalise a single value"),
], ids=["groups", "alexnet", "depth", "stem", "one channel", "one sample"])
def test_norms_that_cannot_be_are_one_error(images, keys, said):
    result = images.run("plan", images.experiment(**CNN), *keys, ranks=0)
    assert result.code == 1 and re.search(said, result.err.replace("\n", " "), re.DOTALL), result


@pytest.mark.thorough
def test_ranks_that_share_a_worker_are_one_rank(images):
    """Two workers of 8 on 4 ranks, and three of 4 on 2 and 4 ranks. A run continues when workers become shared or whole."""
    for batch, shared in (({"global": 16, "worker": 8}, [4]), ({"global": 12, "worker": 4}, [2, 4])):
        experiment = {**RESNET, "batch": batch}
        one = images.train(f"{batch['global']}-1", ranks=1, **experiment)
        for ranks in shared:
            assert len(same(one, images.train(f"{batch['global']}-{ranks}", ranks=ranks, **experiment))) == 2 * 20
            parts = f"{batch['global']}-parts-{ranks}"
            images.train(parts, ranks=ranks, **{**experiment, "stop": {"steps": 5}})
            same(one, images.train(parts, ranks=1, resume=True, **experiment))
    result = images.run("plan", images.experiment(**{**RESNET, "batch": {"global": 12, "worker": 4}}), "--ranks", "4", ranks=0)
    assert "12 = 3 workers x 4 = 4 ranks x 3 micro-steps x 1, 4 ranks share a worker" in result.out, result


def test_plan_takes_more_ranks_than_workers(workshop):
    mlperf = [ROOT / "configs/imagenet_resnet50_mlperf.yaml", "batch.global=67840", "batch.worker=424"]
    result = workshop.run("plan", *mlperf, "--ranks", "320", ranks=0)
    assert result.code == 0 and "320 ranks x 1 micro-step x 212, 2 ranks share a worker" in result.out, result
    result = workshop.run("plan", *mlperf, "--ranks", "2560", ranks=0)
    assert result.code == 1 and "2560 ranks neither divide the 160 virtual workers" in result.err, result


def test_splits_that_are_exchanged_are_warned_of_or_refused(images, tmp_path):
    exchanged = images.run("plan", images.experiment(**CNN, data__train=f"{images.data}-validation", data__validation=f"{images.data}-train"), ranks=0)
    said = " ".join((exchanged.out + exchanged.err).split())
    assert "-validation, which is a validation split" in said and "-train, which is a training split" in said, exchanged
    right = images.run("plan", images.experiment(**CNN), ranks=0)
    assert "split:" not in right.out + right.err and "which is a" not in right.out + right.err, right
    for path in Path(images.data).parent.glob(f"{Path(images.data).name}-validation-*"):
        shutil.copy(path, tmp_path / path.name.replace("-validation-", "-train-"))
    renamed = images.run("plan", images.experiment(**CNN, data__train=str(tmp_path / f"{Path(images.data).name}-train")), ranks=0)
    assert renamed.code == 1 and "attribute 'split' is 'validation', but the file's name says train" in renamed.err, renamed


@pytest.mark.thorough
def test_plan_takes_more_ranks_than_workers_on_a_gpu(workshop):
    mlperf = [ROOT / "configs/imagenet_resnet50_mlperf.yaml", "batch.global=67840", "batch.worker=424"]
    result = workshop.run("plan", *mlperf, "--ranks", "320", "--device", "h200", ranks=0)
    assert result.code == 0 and "320 ranks x 1 micro-step x 212, 2 ranks share a worker" in result.out, result


@pytest.mark.parametrize("experiment", [RESNET, CNN, NORMED_MLP], ids=["resnet", "cnn", "mlp with batch norm"])
@pytest.mark.thorough
def test_accumulation_does_not_change_the_result(images, experiment):
    whole, halves, pieces = (images.train(f"micro-{n}", batch={"global": 16, "worker": 4, "micro": n},
                                            **{k: v for k, v in experiment.items() if k != "batch"}) for n in (16, 8, 4))
    same(whole, halves)
    same(whole, pieces)


@pytest.mark.thorough
def test_the_size_of_virtual_workers_is_part_of_the_experiment(images):
    fours, eights = (images.train(f"worker-{n}", **{**RESNET, "batch": {"global": 16, "worker": n}}) for n in (4, 8))
    assert steps(fours)[0]["loss"] != pytest.approx(steps(eights)[0]["loss"], rel=1e-4)


@pytest.mark.thorough
def test_loader_threads_do_not_change_a_bit(images):
    assert_same_bits(images.train("few", data__loader_threads=1, data__prefetch=1, **RESNET),
                     images.train("many", data__loader_threads=4, data__reads=9, data__prefetch=3, **RESNET))


@pytest.mark.parametrize("experiment, cut", [(RESNET, 6), (RESNET, 9), (NORMED_MLP, 9), (GROUP_NORM, 9)],
                         ids=["at an epoch's end", "inside an epoch", "mlp with batch norm", "group norm"])
@pytest.mark.thorough
def test_resuming_continues_bit_for_bit(images, experiment, cut):
    common = {**experiment, "stop": {"steps": 14}, "ranks": 2}
    whole = images.train("whole", **common)
    assert steps(whole)[5]["epoch"] == 1
    images.train("parts", **{**common, "stop": {"steps": cut}})
    assert last_step(images.folder / "parts") == cut
    parts = images.train("parts", resume=True, **common)
    assert_same_bits(whole, parts)
    for key in "validation_loss", "validation_accuracy", "validation_accuracy5":
        assert evaluations(whole)[-1][key] == evaluations(parts)[-1][key]


@pytest.mark.thorough
def test_resuming_on_another_number_of_ranks_continues_within_rounding(images):
    whole = images.train("whole", ranks=1, **RESNET)
    images.train("parts", ranks=4, **{**RESNET, "stop": {"steps": 5}})
    same(whole, images.train("parts", ranks=2, resume=True, **RESNET))


@pytest.mark.thorough
def test_running_statistics_take_one_exponential_average_per_step_over_all_workers(images):
    """With a share of 1, the running statistics are those of each step. No weight depends on them."""
    def statistics(share):
        run = images.train(f"share-{share}", ranks=2, checkpoint={"every_steps": 1, "keep": 4}, **{
            **RESNET, "model": {**RESNET["model"], "norm_momentum": share}, "stop": {"steps": 4}})
        return [{name: values for name, values in arrays(path).items() if "running" in name} for path in checkpoints(run)]

    averaged, own = statistics(0.25), statistics(1)
    assert len(averaged) == len(own) == 4 and len(own[0]) == 40
    expected = {name: numpy.float32("running_var" in name) for name in own[0]}
    for now, step in zip(averaged, own):
        for name in expected:
            expected[name] = 0.75 * expected[name] + 0.25 * step[name]
            numpy.testing.assert_allclose(now[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [{"batch": {"global": 16, "worker": 4, "schedule": [[1, 2]]}},
                                   {"batch": {"global": 40, "worker": 4}, "data__last_batch": "smaller"}],
                         ids=["a schedule", "a smaller last batch"])
@pytest.mark.thorough
def test_a_batch_that_changes_is_the_same_on_any_number_of_ranks_with_batch_norm(images, batch):
    """A smaller batch fills its virtual workers with images that count in the statistics only."""
    one, two = (images.train(f"ranks-{n}", ranks=n, **{**RESNET, **batch, "stop": {"epochs": 2}}) for n in (1, 2))
    assert len(same(one, two)) == 2 * 20
    expected = [16] * 6 + [32] * 3 if "data__last_batch" not in batch else [40, 40, 16] * 2
    assert [s["global_batch"] for s in steps(one)] == expected and steps(one)[-1]["samples"] == 2 * 96


@pytest.mark.thorough
def test_statistics_are_means_over_the_workers_of_their_own_steps_batch(images):
    """No weight changes, so batches of 16 and then 32 images give the statistics of 48."""
    def statistics(name, **batch):
        run = images.train(name, checkpoint={"every_steps": 1, "keep": 4}, **{
            **RESNET, "model": {**RESNET["model"], "norm_momentum": 1}, "optimizer": {"kind": "sgd", "weight_decay": 0},
            "learning_rate": {"base": 1e-30}, "batch": {"worker": 4, **batch}, "stop": {"steps": 2}})
        return [{name: values for name, values in arrays(path).items() if "running" in name} for path in checkpoints(run)]

    first, second = statistics("parts", **{"global": 16, "schedule": [[0.1, 2]]})
    whole = statistics("whole", **{"global": 48})[0]
    for name in whole:
        numpy.testing.assert_allclose(whole[name], (first[name] + 2 * second[name]) / 3, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_when_checkpoints_are_written_does_not_change_the_statistics(images):
    often = images.train("often", checkpoint={"every_steps": 1, "keep": 2}, evaluate={"every_steps": 3}, **RESNET)
    assert_same_bits(images.train("seldom", **RESNET), often)


@pytest.mark.thorough
def test_a_small_resnet_learns_four_classes(images):
    run = images.train("run", ranks=2, **{**RESNET, "stop": {"steps": 40}})
    assert evaluations(run)[-1]["validation_accuracy"] > 0.7


@pytest.mark.thorough
def test_verify_and_train_refuse_raw_pixels_with_another_number_of_channels(workshop, tmp_path):
    with h5py.File(tmp_path / "grey.h5", "w") as file:
        file["x"], file["y"] = numpy.zeros((40, 32, 32), numpy.uint8), numpy.arange(40) % 2
    done = subprocess.run([CONVERTER, "import", tmp_path / "grey.h5", "--images", "x", "--labels", "y", "--out", tmp_path / "grey",
                           "--validation", "0.5"], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done
    with h5py.File(min(tmp_path.glob("grey-train-*.h5")), "r+") as file:
        file["shapes"][0] = (32, 32, 3)
    verified = subprocess.run([CONVERTER, "verify", tmp_path / "grey"], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert verified.returncode == 1 and "is 32 x 32 x 1 (height x width x channels), but 'shapes' says 32 x 32 x 3" in (
        verified.stdout + verified.stderr), verified
    workshop.data = tmp_path / "grey"
    result = workshop.train_badly("wrong-channels", **RESNET)
    assert "record 0 has the shape [32, 32, 3] in 'shapes', expected [32, 32, 1]" in result.err, result


@pytest.mark.parametrize("split", ["train", "validation"])
def test_train_and_verify_find_the_same_wrong_shape(workshop, data_sets, split):
    folder = workshop.folder / "wrong"
    shutil.copytree(data_sets["jpeg"].parent, folder)
    prefix = folder / data_sets["jpeg"].name
    shard = min(folder.glob(f"{prefix.name}-{split}-*.h5"))
    with h5py.File(shard, "r+") as file:
        height, width, channels = file["shapes"][3]
        file["shapes"][3] = (height, width + 1, channels)
    fault = f"{height} x {width} x {channels} (height x width x channels), but 'shapes' says {height} x {width + 1} x"
    verified = subprocess.run([CONVERTER, "verify", prefix], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert verified.returncode == 1 and f"record 3 of 'images' is {fault}" in verified.stdout + verified.stderr, verified
    workshop.data = prefix
    result = workshop.train_badly("wrong-shape", **CROPPED)
    assert f"{shard}: record 3: the image is {fault}" in result.err, result


def test_a_model_that_does_not_fit_the_data_is_told_before_any_key(workshop, images, names):
    text_model = {"model": {"kind": "char_lstm"}, "data__order": "streams", "data__image_size": 32}
    for command in "plan", "train":
        result = workshop.run(command, workshop.experiment(**text_model))
        assert result.code == 1 and "model.kind char_lstm does not fit the data: data.train holds images" in result.err, result
        assert "resnet" in result.err and "leave the key out" not in result.err, result
    workshop.data = names
    result = workshop.run("plan", workshop.experiment(**RESNET), ranks=0)
    assert result.code == 1 and "model.kind resnet does not fit the data: data.train holds text" in result.err, result
    assert "char_lstm" in result.err and "leave the key out" not in result.err, result


def test_sample_of_a_run_of_images_says_what_it_needs(images):
    run = images.train("run", **{**CNN, "stop": {"steps": 1}})
    result = images.run("sample", run, ranks=0)
    assert result.code == 1 and "model.kind is cnn, which sees images; sample writes text" in result.err, result
    assert "char_lstm" in result.err and "data.train" not in result.err, result


def test_grey_pictures_have_one_channel(workshop, tmp_path):
    """With data.channels: 1 a network reads grey pictures as they were published: one channel, and statistics of one value.
    NumPy computes the loss of the weights of the last checkpoint, in float64, from the pictures that were converted."""
    generator = numpy.random.default_rng(2)
    labels = numpy.arange(48 + 20) % 4
    pixels = (40 * labels[:, None, None] + generator.integers(0, 120, (len(labels), 12, 12))).astype(numpy.uint8)
    with h5py.File(tmp_path / "arrays.h5", "w") as file:
        file["x"], file["y"] = pixels, labels
    subprocess.run([CONVERTER, "import", tmp_path / "arrays.h5", "--images", "x", "--labels", "y", "--out", tmp_path / "grey", "--rows",
                    "0:48", "--validation-rows", "48:68", "--statistics"], check=True, capture_output=True, timeout=HANG_SECONDS)
    workshop.data = tmp_path / "grey"
    keys = {"model": {"kind": "mlp", "widths": [16], "dropout": 0}, "data__image_size": 12, "data__resize": 0, "data__augmentation": "none",
            "data__flip": False, "batch": {"global": 16, "worker": 4}, "learning_rate": {"base": 0.05}, "stop": {"steps": 6}}
    grey = {**keys, "data__channels": 1}
    one, two = workshop.train("one", **grey), workshop.train("two", ranks=2, **grey)
    assert_close(one, two)
    weights = {name.removeprefix("weights/"): value.astype(float) for name, value in arrays(checkpoints(one)[-1]).items()}
    assert weights["fc1.weight"].shape == (16, 1, 12, 12)
    training, validation = (pixels[rows].reshape(-1, 144) / 255 for rows in (slice(48), slice(48, 68)))
    hidden = (validation - training.mean()) / training.std() @ weights["fc1.weight"].reshape(16, -1).T + weights["fc1.bias"]
    logits = hidden.clip(0) @ weights["fc.weight"].T + weights["fc.bias"]
    losses = numpy.log(numpy.exp(logits).sum(1)) - logits[numpy.arange(20), labels[48:]]
    assert evaluations(one)[-1]["validation_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    exported, brought = tmp_path / "weights.safetensors", tmp_path / "brought"
    for words in (["export", one, "--out", exported], ["import", exported, workshop.experiment(**{**grey, "run__dir": str(brought)})]):
        assert workshop.run(*words, ranks=0).code == 0, words
    for words in ([one], [brought], [workshop.experiment(**grey), "--weights", exported]):
        result = workshop.run("evaluate", *words, "--json", tmp_path / "evaluation.json", ranks=0)
        assert result.code == 0, result
        told = json.loads((tmp_path / "evaluation.json").read_text())["validation_loss"]
        assert told == min(e["validation_loss"] for e in evaluations(one)), words  # that of the best checkpoint
    three = workshop.train("three", **keys)
    assert arrays(checkpoints(three)[-1])["weights/fc1.weight"].shape == (16, 3, 12, 12)
    text = workshop.run("plan", workshop.experiment(**grey), ranks=0).out
    assert "12 px grey" in text, text
    wrong = workshop.run("plan", workshop.experiment(**grey), "data.mean=[0.1,0.2,0.3]", "data.std=[1,1,1]", ranks=0)
    assert wrong.code != 0 and "need 1 value, one per channel (data.channels); there are 3 and 3" in wrong.err, wrong


@pytest.mark.thorough
def test_bench_input_says_which_input_a_node_needs_and_how_many_threads(workshop, data_sets):
    def advice(encoding, wanted, *more):
        workshop.data = data_sets[encoding]
        file = workshop.folder / "preflight.json"
        result = workshop.run("bench", "input", workshop.experiment(**CROPPED), "--seconds", "0.3", "--json", file, *more,
                              *(["--wanted", wanted] if wanted else []), ranks=2)
        assert result.code == 0, result
        (node,) = json.loads(file.read_text())["input"]
        return node, result.out
    node, said = advice("jpeg", 1, "data.loader_threads=1")
    assert node["loader_threads"] == 2
    of_core = node["samples_per_second"] / min(2, os.cpu_count())
    (shown,) = re.findall(r"one loader thread on a core: ([\d,]+) samples/s", said)
    assert abs(float(shown.replace(",", "")) - of_core) <= 1
    assert re.search(r"1 samples/s of a node take 2 loader threads \(data.loader_threads: 1 on each of 2 ranks\); \d+ of its", said)
    node, said = advice("jpeg", 10_000_000, "data.loader_threads=1")
    threads = int(re.search(r"take ([\d,]+) loader threads", said)[1].replace(",", ""))
    assert threads == pytest.approx(10_000_000 / (node["samples_per_second"] / min(2, os.cpu_count())), rel=0.01)
    assert "will not do" in said and "--size 37 --encoding raw" in said and "too slow" in said  # 37 is about 8/7 of 32 pixels
    _, said = advice("raw", 10_000_000)
    assert "this decoded data set will not do" in said
    _, said = advice("raw", 0)
    assert "--wanted RATE" in said
