"""Tests that exported and imported weights are the same weights, that evaluate agrees with the training, and that wrong
weights are one clear error."""
import json
import re
import subprocess

import h5py
import numpy
import pytest
from PIL import Image

from conftest import CONVERTER, HANG_SECONDS, arrays, assert_same_bits, checkpoints, convert, evaluations, last_step, make_names, some_names

TYPES = {"F32": numpy.float32, "F16": numpy.float16, "I64": numpy.int64, "U8": numpy.uint8}


def read_safetensors(path):
    """Returns (tensors, metadata), read by the format's description."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = numpy.frombuffer(content[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def write_safetensors(path, tensors, metadata=None):
    names = {dtype: name for name, dtype in TYPES.items()}
    header, body = {"__metadata__": metadata or {}}, b""
    for name, values in tensors.items():
        data = numpy.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": names[values.dtype.type], "shape": list(values.shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


class Weights:
    """The three commands in a test's folder."""

    def __init__(self, workshop):
        self.workshop, self.folder = workshop, workshop.folder

    def export(self, source, *options, name="weights"):
        out = self.folder / f"{name}.safetensors"
        result = self.workshop.run("export", source, "--out", out, *options, ranks=0)
        assert result.code == 0, result
        return out

    def bring_in(self, file, name, **changes):
        run = self.folder / name
        result = self.workshop.run("import", file, self.workshop.experiment(run__dir=str(run), **changes), ranks=0)
        assert result.code == 0, result
        return run

    def bring_in_badly(self, file, **changes):
        """Returns the error of the import. No folder may be made."""
        run = self.folder / "refused"
        result = self.workshop.run("import", file, self.workshop.experiment(run__dir=str(run), **changes), ranks=0)
        assert result.code == 1 and result.err.count("ringtrain: error") == 1 and not run.exists(), result
        return result.err

    def evaluate(self, source, *options, ranks=1):
        """Returns the result as JSON, and the output."""
        out = self.folder / "evaluation.json"
        result = self.workshop.run("evaluate", source, "--json", out, *options, ranks=ranks)
        assert result.code == 0, result
        return json.loads(out.read_text()), result.out


@pytest.fixture
def weights(workshop):
    return Weights(workshop)


@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluate_says_to_the_bit_what_training_said(workshop, weights, ranks):
    run = workshop.train("run", ranks=ranks)
    said = evaluations(run)[-1]
    before = sorted(run.rglob("*"))
    for source in run, checkpoints(run)[-1]:
        result, text = weights.evaluate(source, ranks=ranks)
        for key in "validation_loss", "validation_accuracy", "validation_targets":
            assert result[key] == said[key]
        assert result["step"] == said["step"] and f"{said['validation_loss']:.6f}" in text
    assert sorted(run.rglob("*")) == before, "evaluate writes nothing into the run"


def test_evaluate_says_that_the_data_set_was_made_again(workshop, weights, tmp_path):
    workshop.data = make_names(tmp_path / "own")
    run = workshop.train("run", stop__steps=1)
    assert "has changed" not in weights.evaluate(run)[1]
    convert("names", some_names(150, 3), tmp_path / "own", "--force")
    result = workshop.run("evaluate", run, ranks=0)
    assert result.code == 0 and re.search(r"own-train has changed since this run was made \(uuid \S+, now \S+\): the validation samples may", result.text), result


@pytest.mark.parametrize("part, says", [
    ("", "no data set at '{0}': there is {0}-train  set data.train={0}-train and data.validation={0}-validation"),
    ("-validation", "{0} has no validation part  convert it again with a larger --validation, or set data.validation=''")])
def test_a_part_of_a_data_set_that_is_missing_is_named(workshop, tmp_path, part, says):
    prefix = make_names(tmp_path / "own")
    if part:
        for file in tmp_path.glob("own-validation*"):
            file.unlink()
    result = workshop.run("plan", workshop.experiment(data__train=f"{prefix}{'-train' if part else ''}", data__validation=f"{prefix}-validation"), ranks=0)
    assert result.code == 1 and says.format(prefix) in result.err.replace("\n", ""), result


@pytest.mark.thorough
def test_evaluate_is_the_same_on_any_number_of_ranks_and_any_batch(workshop, weights, text):
    workshop.data = text
    run = workshop.train("run", data__sequence=12)
    one, _ = weights.evaluate(run)
    for ranks, override in (2, "seed=1"), (4, "batch.global=64"), (3, "seed=1"), (3, "batch.micro=8"):
        other, _ = weights.evaluate(run, override, ranks=ranks)
        assert other["validation_targets"] == one["validation_targets"]
        assert other["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-6)


@pytest.mark.thorough
def test_streams_of_text_keep_their_number_on_ranks_that_do_not_divide_them(workshop, weights, text):
    workshop.data = text
    run = workshop.train("run", data__sequence=12, data__order="streams", batch={"global": 4, "worker": 1})
    one, _ = weights.evaluate(run)
    for ranks in 3, 4:
        other, _ = weights.evaluate(run, ranks=ranks)
        assert other["validation_targets"] == one["validation_targets"]
        assert other["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-6)


def test_an_exported_file_has_the_checkpoints_tensors_and_says_where_it_is_from(workshop, weights):
    run = workshop.train("run")
    tensors, metadata = read_safetensors(weights.export(run, "--newest"))
    stored = {name.removeprefix("weights/"): values for name, values in arrays(checkpoints(run)[-1]).items()
              if name.startswith("weights/")}
    assert tensors.keys() == stored.keys() and tensors
    for name, values in stored.items():
        assert tensors[name].tobytes() == values.tobytes()
    assert metadata["format"] == "pt" and metadata["model"] == "char_lstm" and metadata["step"] == "20"
    assert metadata["run"] == "e2e" and "a" in json.loads(metadata["vocabulary"])


def test_the_weights_of_a_schedule_free_run_are_the_average(workshop, weights):
    optimizer = {"kind": "sgd", "schedule_free": True, "momentum": 0.8}
    run = workshop.train("run", optimizer=optimizer, learning_rate__base=1)
    stored, said = arrays(checkpoints(run)[-1]), evaluations(run)[-1]
    tensors, _ = read_safetensors(weights.export(run, "--newest"))
    for name, values in tensors.items():
        y, z = (stored[f"optimizer/{state}/{name}"].astype(float) for state in "yz")
        assert numpy.abs(values - y).max() > 1e-3, "y, which trains, is another point"
        numpy.testing.assert_allclose(values, (y - 0.2 * z) / 0.8, rtol=1e-5, atol=1e-6)
    result, _ = weights.evaluate(checkpoints(run)[-1])
    assert result["validation_loss"] == said["validation_loss"]
    imported = weights.bring_in(weights.export(run, "--newest", name="average"), "imported", optimizer=optimizer)
    for name, values in arrays(checkpoints(imported)[-1]).items():  # a run begins with x = y = z
        assert values.tobytes() == tensors[name.removeprefix("weights/").split("/")[-1]].tobytes(), name


def test_export_takes_the_best_or_the_newest(workshop, weights):
    run = workshop.train("run", stop__steps=30, learning_rate__base=0.3, evaluate={"every_steps": 3})
    best = min(evaluations(run), key=lambda e: e["validation_loss"])["step"]
    assert best != 30, "the rate is meant to be too high for the last step to be the best"
    steps = {option: read_safetensors(weights.export(run, "--force", *option))[1]["step"]
             for option in [(), ("--best",), ("--newest",)]}
    assert steps == {(): str(best), ("--best",): str(best), ("--newest",): "30"}
    (run / "checkpoints" / "best.h5").unlink()
    result = workshop.run("export", run, "--best", "--out", weights.folder / "none.safetensors", ranks=0)
    assert result.code == 1 and "best.h5: no such checkpoint" in result.err, result
    assert not (weights.folder / "none.safetensors").exists()


def test_train_export_import_evaluate_comes_back_to_the_same_bits(workshop, weights):
    run = workshop.train("run", ranks=2)
    said = evaluations(run)[-1]
    exported = weights.export(run, "--newest")
    imported = weights.bring_in(exported, "imported")
    assert [path.name for path in checkpoints(imported)] == ["step-000000000.h5"]
    again = weights.export(imported, name="again")
    assert {name: values.tobytes() for name, values in read_safetensors(again)[0].items()} == {
        name: values.tobytes() for name, values in read_safetensors(exported)[0].items()}
    for source in [imported], [workshop.experiment(), "--weights", exported]:
        result, _ = weights.evaluate(*source, ranks=2)
        assert result["validation_loss"] == said["validation_loss"]
        assert result["validation_accuracy"] == said["validation_accuracy"]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lars", "lamb", "rmsprop", "rmsprop_to_sgd"])
@pytest.mark.thorough
def test_training_goes_on_from_imported_weights_as_a_new_run(workshop, weights, optimizer):
    # A momentum of 0.9 makes RMSprop's steps ten times as long.
    common = dict(optimizer={"kind": optimizer}, learning_rate={"base": 0.001 if optimizer == "rmsprop_to_sgd" else 0.01})
    start = weights.export(workshop.train("first", **common))
    runs = []
    for name in "a", "b":
        weights.bring_in(start, name, **common)
        runs.append(workshop.train(name, ranks=2, resume=True, **common))
    assert_same_bits(*runs)
    fresh = workshop.train("fresh", **common)
    assert evaluations(runs[0])[-1]["validation_loss"] < evaluations(fresh)[-1]["validation_loss"]


def test_initial_weights_out_and_in_train_to_the_same_bits_as_without(workshop, weights):
    whole = workshop.train("whole")
    still = workshop.train("still", stop__steps=1, learning_rate={"base": 1e-30})
    imported = weights.bring_in(weights.export(still), "imported")
    assert_same_bits(whole, workshop.train("imported", resume=True))
    assert imported == workshop.folder / "imported"


def test_sixteen_bit_exports_change_the_loss_little_and_read_back(workshop, weights):
    run = workshop.train("run")
    loss = evaluations(run)[-1]["validation_loss"]
    for dtype in "fp16", "bf16":
        file = weights.export(run, "--dtype", dtype, name=dtype)
        result, _ = weights.evaluate(workshop.experiment(), "--weights", file)
        assert result["validation_loss"] != loss
        assert result["validation_loss"] == pytest.approx(loss, rel=0.01)


def test_the_commands_that_import_prints_work(workshop, weights):
    file = weights.export(workshop.train("run"))
    said = workshop.run("import", file, workshop.experiment(), "run.id=imported", ranks=0, cwd=workshop.folder).out
    for command in "evaluate", "train":
        words = re.search(rf"{command} with: ringtrain (.*)", said)[1].split()
        result = workshop.run(*words, ranks=0, cwd=workshop.folder)
        assert result.code == 0, result
    assert last_step(workshop.folder / "results" / "e2e" / "imported") == 20


def test_prefixes_and_counters_of_pytorchs_wrappers_are_dropped(workshop, weights):
    run = workshop.train("run")
    tensors, _ = read_safetensors(weights.export(run))
    wrapped = {f"_orig_mod.module.{name}": values for name, values in tensors.items()}
    wrapped["module.some.num_batches_tracked"] = wrapped["n_averaged"] = numpy.array(7)
    imported = weights.bring_in(write_safetensors(weights.folder / "wrapped.safetensors", wrapped), "imported")
    assert weights.evaluate(imported)[0]["validation_loss"] == evaluations(run)[-1]["validation_loss"]
    both = {**tensors, "module.linear.bias": tensors["linear.bias"]}
    error = weights.bring_in_badly(write_safetensors(weights.folder / "both.safetensors", both))
    assert "'linear.bias' is there twice" in error


def test_wrong_weights_are_one_error_that_lists_every_tensor(workshop, weights):
    tensors, metadata = read_safetensors(weights.export(workshop.train("run", stop__steps=2)))
    del tensors["lstm.bias_hh_l0"]
    tensors["head.weight"] = numpy.zeros(3, numpy.float32)
    tensors["linear.weight"] = tensors["linear.weight"].T
    file = write_safetensors(weights.folder / "wrong.safetensors", tensors, metadata)
    for error in weights.bring_in_badly(file), weights.bring_in_badly(file, model__layers=3):
        assert str(file) in error and "missing (" in error and "lstm.bias_hh_l0" in error
        assert "not in the model (1): head.weight" in error
        assert "linear.weight [16, 31] where the model has [31, 16]" in error
    assert "lstm.weight_ih_l2" in error
    result = workshop.run("evaluate", workshop.experiment(), "--weights", file, ranks=2)
    assert result.code != 0 and result.err.count("ringtrain: error") == 1 and "head.weight" in result.err, result


def test_an_import_needs_no_gpu_even_if_the_training_does(workshop, weights):
    file = weights.export(workshop.train("run"))
    run = weights.bring_in(file, "imported", memory={"offload": True, "limit_gib": 0.0001})
    assert "offload: true" in (run / "experiment.yaml").read_text()


def test_another_number_or_order_of_classes_is_told_as_such(workshop, weights):
    tensors, metadata = read_safetensors(weights.export(workshop.train("run", stop__steps=2)))
    symbols = json.loads(metadata["vocabulary"])
    swapped = {"vocabulary": json.dumps([symbols[1], symbols[0], *symbols[2:]], separators=(",", ":"))}
    file = write_safetensors(weights.folder / "swapped.safetensors", tensors, swapped)
    assert "was trained with other symbols, or in another order" in weights.bring_in_badly(file)
    for name in "linear.weight", "linear.bias":
        tensors[name] = tensors[name][:10]
    file = write_safetensors(weights.folder / "ten.safetensors", tensors)
    assert f"these weights are for 10 classes and {workshop.data}-train has {len(symbols)}" in weights.bring_in_badly(file)


def test_what_is_no_good_file_is_said_with_the_way_out(workshop, weights):
    tensors, metadata = read_safetensors(weights.export(workshop.train("run", stop__steps=2)))
    pickle = weights.folder / "model.pth"
    pickle.write_bytes(b"\x80\x02\x8a\x0a of an old torch.save")
    error = weights.bring_in_badly(pickle)
    assert "torch.save" in error and "from safetensors.torch import save_file" in error and f"{pickle}'" in error
    bad = dict(tensors, **{"linear.bias": tensors["linear.bias"] * numpy.float32("nan")})
    error = weights.bring_in_badly(write_safetensors(weights.folder / "nan.safetensors", bad, metadata))
    assert "'linear.bias' has values that are not finite" in error
    cut = weights.folder / "cut.safetensors"
    cut.write_bytes((weights.folder / "weights.safetensors").read_bytes()[:-10])
    assert "cut off" in weights.bring_in_badly(cut)


def test_import_writes_a_single_checkpoint_when_asked_and_never_into_another_run(workshop, weights):
    run = workshop.train("run")
    file, out = weights.export(run), weights.folder / "single.h5"
    result = workshop.run("import", file, workshop.experiment(run__dir=str(weights.folder / "unused")), "--out", out, ranks=0)
    assert result.code == 0 and not (weights.folder / "unused").exists(), result
    assert weights.evaluate(out)[0]["validation_loss"] == evaluations(run)[-1]["validation_loss"]
    written = out.read_bytes()
    again = ["import", file, workshop.experiment(seed=9), "--out", out]
    result = workshop.run(*again, ranks=0)
    assert result.code == 1 and f"{out}: exists already" in result.err and "--force" in result.err, result
    assert out.read_bytes() == written
    assert workshop.run(*again, "--force", ranks=0).code == 0 and out.read_bytes() != written
    before = checkpoints(run)
    result = workshop.run("import", file, workshop.experiment(run__dir=str(run)), ranks=0)
    assert result.code == 1 and "is not empty" in result.err and checkpoints(run) == before, result


@pytest.mark.thorough
def test_evaluate_takes_another_validation_set(workshop, weights):
    run = workshop.train("run")
    result, _ = weights.evaluate(run, f"data.validation={workshop.data}-train")
    assert result["validation_dataset"] == f"{workshop.data}-train"
    assert result["validation_targets"] > evaluations(run)[-1]["validation_targets"]
    result = workshop.run("evaluate", run, "data.validation=")
    assert result.code == 1 and "names no validation set" in result.err, result


@pytest.mark.thorough
def test_evaluate_needs_no_training_set_and_no_samples_for_a_step(workshop, weights):
    run = workshop.train("run")
    said = evaluations(run)[-1]["validation_loss"]
    exported = weights.export(run, "--newest")
    elsewhere = workshop.experiment(data__train=str(workshop.folder / "not-here"), batch={"global": 65536, "worker": 8})
    for source in [checkpoints(run)[-1], f"data.train={workshop.folder / 'not-here'}"], [elsewhere, "--weights", exported]:
        result = workshop.run("evaluate", *source, "--json", workshop.folder / "said.json", ranks=2)
        assert result.code == 0 and result.err.count("no data set at") == 1, result
        assert json.loads((workshop.folder / "said.json").read_text())["validation_loss"] == pytest.approx(said, rel=1e-6)
    result = workshop.run("evaluate", checkpoints(run)[-1], "data.validation=not-here")
    assert result.code == 1 and "not-here" in result.err, result


@pytest.mark.thorough
def test_logits_of_the_first_samples_add_up_to_the_loss(workshop, weights):
    run = workshop.train("run")
    out = weights.folder / "logits.safetensors"
    result, _ = weights.evaluate(run, "--logits", out, "--samples", 10**6)
    tensors, _ = read_safetensors(out)
    logits, targets = tensors["logits"].astype(numpy.float64), tensors["targets"]
    assert tensors["inputs"].shape == targets.shape == logits.shape[:2]
    assert targets.size == result["validation_targets"]
    likely = numpy.take_along_axis(logits, targets[..., None], 2)[..., 0]
    loss = numpy.mean(numpy.log(numpy.exp(logits).sum(2)) - likely)
    assert loss == pytest.approx(result["validation_loss"], rel=1e-5)
    assert numpy.mean(logits.argmax(2) == targets) == pytest.approx(result["validation_accuracy"])
    result, _ = weights.evaluate(run, "--logits", out, "--samples", 3)
    few, _ = read_safetensors(out)
    assert few["logits"].shape[0] == 3 and numpy.array_equal(few["logits"], tensors["logits"][:3])
    result = workshop.run("evaluate", run, "--logits", out, ranks=2)
    assert result.code != 0 and "leave mpirun out" in result.err, result


@pytest.mark.parametrize("words, said", [
    (["export", "RUN"], "--out is required"),
    (["export", "RUN", "--out", "x.safetensors", "--dtype", "int8"], "expected fp32, fp16, bf16"),
    (["export", "RUN", "--out", "x.safetensors", "seed=2"], "seed=2 cannot change keys"),
    (["export", "RUN", "--out", "/nowhere/x.safetensors"], "/nowhere/x.safetensors"),
    (["export", "EMPTY", "--out", "x.safetensors"], "no checkpoint there"),
    (["export", "RUN", "--out", "weights.pth"], "as weights.safetensors"),
    (["import"], "needs a .safetensors file and an experiment"),
    (["import", "x.safetensors"], "needs an experiment file"),
    (["import", "x.safetensors", "EXPERIMENT"], "x.safetensors: cannot open"),
    (["import", "x.safetensors", "EXPERIMENT", "--out", "x"], "ends in .h5"),
    (["evaluate"], "needs an experiment"),
    (["evaluate", "EMPTY"], "no checkpoint there"),
    (["evaluate", "RUN", "--samples", "0"], "expected a whole number of at least 1"),
    (["evaluate", "RUN", "model.hidden=24"], "where the model has"),
    (["sample", "RUN", "--length", "5"], "--length is 5, but the model invents names"),
])
def test_mistakes_are_one_clear_error(workshop, words, said):
    named = {"EMPTY": workshop.folder / "empty", "EXPERIMENT": workshop.experiment()}
    named["EMPTY"].mkdir()
    if "RUN" in words:
        named["RUN"] = workshop.train("run", stop__steps=1)
    result = workshop.run(*[named.get(word, word) for word in words], ranks=0)
    assert result.code == 1 and result.err.count("ringtrain: error") == 1 and said in result.err, result


# ---- Images ------------------------------------------------------------------------------------------------------

CLASSES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
RESNET = dict(model={"kind": "resnet", "depth": 18, "width": 16, "stem": "small"}, batch={"global": 16, "worker": 4},
              optimizer={"kind": "sgd"}, stop__steps=6, data__image_size=16, data__resize=16, data__augmentation="none")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The prefix of a small data set. The class decides the direction and colour of stripes."""
    folder = tmp_path_factory.mktemp("images")
    generator = numpy.random.default_rng(1)
    y, x = numpy.mgrid[:16, :16]
    for split, count in ("train", 8), ("val", 5):
        for label, name in enumerate(CLASSES):
            (folder / "source" / split / name).mkdir(parents=True)
            for number in range(count):
                wave = numpy.sin(x * numpy.cos(label) + y * numpy.sin(label) + generator.uniform(0, 6))
                colour = numpy.array([label * 30, 128, 255 - label * 30])
                pixels = 0.5 * colour + 50 * wave[..., None] + generator.normal(0, 10, (16, 16, 3))
                image = Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))
                image.save(folder / "source" / split / name / f"{number}.jpg", quality=95)
    done = subprocess.run([CONVERTER, "images", folder / "source", "--out", folder / "images", "--shards", "2"],
                          capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "images"


def torchvision_names():
    """The names in torchvision's resnet18().state_dict()."""
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = ["conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{n}" for n in norm)]
    for stage in 1, 2, 3, 4:
        for block in 0, 1:
            for i in 1, 2:
                names += [f"layer{stage}.{block}.conv{i}.weight", *(f"layer{stage}.{block}.bn{i}.{n}" for n in norm)]
        if stage > 1:
            names += [f"layer{stage}.0.downsample.0.weight", *(f"layer{stage}.0.downsample.1.{n}" for n in norm)]
    return set(names)


@pytest.mark.thorough
def test_a_resnet_goes_out_with_torchvisions_names_and_comes_back_to_the_same_bits(workshop, weights, images):
    workshop.data = images
    run = workshop.train("run", ranks=2, **RESNET)
    said = evaluations(run)[-1]
    exported = weights.export(run, "--newest")
    tensors, metadata = read_safetensors(exported)
    assert tensors.keys() == torchvision_names()
    assert tensors["layer2.0.conv1.weight"].shape == (32, 16, 3, 3) and tensors["fc.weight"].shape == (7, 128)
    counter = tensors["layer2.0.downsample.1.num_batches_tracked"]
    assert counter.dtype == numpy.int64 and counter.shape == () and counter == 6
    assert numpy.abs(tensors["bn1.running_mean"]).max() > 0 and metadata["class_ids"] == json.dumps(CLASSES).replace(" ", "")
    imported = weights.bring_in(exported, "imported", **RESNET)
    for source in [run], [imported], [workshop.experiment(**RESNET), "--weights", exported]:
        result, text = weights.evaluate(*source, ranks=2)
        for key in "validation_loss", "validation_accuracy", "validation_accuracy5", "validation_targets":
            assert result[key] == said[key]
        assert "top-1" in text and "top-5" in text and result["validation_targets"] == 35
    runs = []
    for name in "a", "b":
        weights.bring_in(exported, name, **RESNET)
        runs.append(workshop.train(name, ranks=2, resume=True, **RESNET))
    assert_same_bits(*runs)


@pytest.mark.thorough
def test_a_resnet_is_evaluated_on_any_number_of_ranks(workshop, weights, images):
    workshop.data = images
    run = workshop.train("run", **{**RESNET, "stop__steps": 2})
    one, _ = weights.evaluate(run)
    for ranks, override in (3, "seed=1"), (3, "batch.micro=8"), (4, "batch.worker=16"):
        other, _ = weights.evaluate(run, override, ranks=ranks)
        for key in "validation_accuracy", "validation_accuracy5", "validation_targets":
            assert other[key] == one[key], (ranks, override)
        assert other["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-6), (ranks, override)


@pytest.mark.thorough
def test_weights_of_pictures_carry_mean_deviation_and_size(workshop, weights, images):
    """An evaluation takes mean, deviation and size from the weights, also on data whose own mean differs."""
    workshop.data = images
    own = {"data__mean": [0.3, 0.5, 0.6], "data__std": [0.2, 0.25, 0.3]}
    run = workshop.train("run", **{**RESNET, "stop__steps": 2}, **own)
    said = evaluations(run)[-1]["validation_loss"]
    with h5py.File(checkpoints(run)[-1]) as file:
        stored = json.loads(file.attrs["image_input"])
    assert stored == {"size": 16, "resize": 16, "mean": own["data__mean"], "std": own["data__std"]}
    exported = weights.export(run, "--newest")
    _, metadata = read_safetensors(exported)
    assert json.loads(metadata["mean"]) == stored["mean"] and json.loads(metadata["std"]) == stored["std"]
    assert metadata["image_size"] == "16"
    plain = workshop.experiment(**RESNET)
    for source in [run, "data.mean=[]", "data.std=[]"], [plain, "--weights", exported]:
        assert weights.evaluate(*source)[0]["validation_loss"] == said
    other, _ = weights.evaluate(plain, "data.mean=[0.5,0.5,0.5]", "data.std=[0.2,0.2,0.2]", "--weights", exported)
    assert other["validation_loss"] != said
    assert weights.evaluate(weights.bring_in(exported, "brought", **RESNET))[0]["validation_loss"] == said
    for changes, differs in ({}, 0), ({"data__mean": [0.5] * 3, "data__std": [0.5] * 3, "data__image_size": 24, "data__resize": 24}, 3):
        experiment = workshop.experiment(run__dir=str(workshop.folder / f"warned-{differs}"), **{**RESNET, **changes})
        result = workshop.run("import", exported, experiment, ranks=0)
        assert result.code == 0 and result.err.count(": was trained with ") == differs, result


@pytest.mark.thorough
def test_fine_tuning_begins_with_a_new_last_layer(workshop, weights, images, tmp_path):
    """The last layer has the initial values of a run with the same seed. All other layers come from the file."""
    workshop.data = images
    exported = weights.export(workshop.train("run", **{**RESNET, "stop__steps": 2}), "--newest")
    tensors, _ = read_safetensors(exported)
    wide = dict(tensors, **{"fc.weight": numpy.ones((1000, 128), numpy.float32), "fc.bias": numpy.ones(1000, numpy.float32)})
    file = write_safetensors(tmp_path / "wide.safetensors", wide, {"class_ids": json.dumps([str(i) for i in range(1000)])})
    tuned = workshop.folder / "tuned"
    experiment = workshop.experiment(run__dir=str(tuned), **RESNET)
    result = workshop.run("import", file, experiment, "--classes", 1000, ranks=0)
    assert result.code == 1 and "--classes is 1000, but" in result.err and "has 7 classes" in result.err, result
    # As many, but other, classes: the same advice as for another number of classes.
    others = write_safetensors(tmp_path / "others.safetensors", tensors, {"class_ids": json.dumps(list("abcdefg"))})
    for wrong in (file, others):
        result = workshop.run("import", wrong, experiment, ranks=0)
        assert result.code == 1 and "or import with --classes 7 for fine-tuning" in result.err, result
    assert workshop.run("import", file, experiment, "--classes", 7, ranks=0).code == 0
    begun = arrays(checkpoints(tuned)[0])
    still = workshop.train("still", **{**RESNET, "stop__steps": 1}, learning_rate={"base": 1e-30})
    fresh = arrays(checkpoints(still)[-1])
    for name, values in tensors.items():
        if "num_batches" not in name:
            wanted = fresh[f"weights/{name}"] if name.startswith("fc.") else values
            assert numpy.allclose(begun[f"weights/{name}"], wanted, rtol=0, atol=1e-20), name  # the rate is 1e-30
    workshop.train("tuned", resume=True, **RESNET)


@pytest.mark.thorough
def test_what_a_resnet_saw_and_said_of_images_adds_up_to_top_1_and_top_5(workshop, weights, images):
    workshop.data = images
    run = workshop.train("run", **RESNET)
    out = weights.folder / "logits.safetensors"
    result, _ = weights.evaluate(run, "--logits", out, "--samples", 100)
    tensors, metadata = read_safetensors(out)
    logits, targets = tensors["logits"].astype(numpy.float64), tensors["targets"]
    assert tensors["inputs"].shape == (35, 16, 16, 3) and logits.shape == (35, 7) and targets.shape == (35,)
    assert len(json.loads(metadata["mean"])) == len(json.loads(metadata["std"])) == 3
    assert sorted(targets) == sorted(list(range(7)) * 5)
    loss = numpy.mean(numpy.log(numpy.exp(logits).sum(1)) - logits[numpy.arange(35), targets])
    assert loss == pytest.approx(result["validation_loss"], rel=1e-5)
    order = logits.argsort(1)[:, ::-1]
    assert numpy.mean(order[:, 0] == targets) == pytest.approx(result["validation_accuracy"])
    assert numpy.mean((order[:, :5] == targets[:, None]).any(1)) == pytest.approx(result["validation_accuracy5"])


def test_weights_without_statistics_or_of_another_resnet_are_refused(workshop, weights, images):
    workshop.data = images
    tensors, metadata = read_safetensors(weights.export(workshop.train("run", **{**RESNET, "stop__steps": 1})))
    bare = {name: values for name, values in tensors.items() if "running" not in name}
    error = weights.bring_in_badly(write_safetensors(weights.folder / "bare.safetensors", bare), **RESNET)
    assert "missing (40): bn1.running_mean, bn1.running_var" in error and "not in the model" not in error
    backbone = write_safetensors(weights.folder / "backbone.safetensors", {k: v for k, v in tensors.items() if not k.startswith("fc.")})
    error = weights.bring_in_badly(backbone, **RESNET)
    assert "missing (2): fc.bias, fc.weight" in error and "the file lacks only the last layer: import with --classes 7" in error
    done = workshop.run("import", backbone, workshop.experiment(**RESNET), "--classes", 7, "--out", weights.folder / "tuned.h5", ranks=0)
    assert done.code == 0, done
    file = write_safetensors(weights.folder / "whole.safetensors", tensors, {"class_ids": json.dumps(CLASSES[::-1])})
    assert "was trained with other classes, or in another order" in weights.bring_in_badly(file, **RESNET)
    below = dict(tensors, **{"bn1.running_var": -tensors["bn1.running_var"]})
    error = weights.bring_in_badly(write_safetensors(weights.folder / "below.safetensors", below), **RESNET)
    assert "'bn1.running_var' has negative values" in error
    narrow = dict(tensors, **{"fc.weight": tensors["fc.weight"][:, :5]})
    error = weights.bring_in_badly(write_safetensors(weights.folder / "narrow.safetensors", narrow), **RESNET)
    assert "fc.weight [7, 5] where the model has [7, 128]" in error and "these weights are for" not in error
    stem = {**RESNET, "model": {**RESNET["model"], "stem": "imagenet"}}
    assert "conv1.weight [16, 3, 3, 3] where the model has [16, 3, 7, 7]" in weights.bring_in_badly(file, **stem)


def test_classes_called_by_bytes_that_are_no_utf8_are_trained_exported_and_imported(workshop, weights):
    for split, count in ("train", 16), ("val", 2):
        for name in "caf\udce9", "tea":
            folder = workshop.folder / "source" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (16, 16), (number, 50, 9)).save(folder / f"{number}.jpg")
    workshop.data = workshop.folder / "drinks"
    done = subprocess.run([CONVERTER, "images", workshop.folder / "source", "--out", workshop.data], capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done
    run = workshop.train("run", **{**RESNET, "stop__steps": 1})
    imported = weights.bring_in(weights.export(run, "--newest"), "imported", **RESNET)
    assert weights.evaluate(imported)[0]["validation_loss"] == evaluations(run)[-1]["validation_loss"]


@pytest.mark.thorough
def test_a_validation_loss_that_is_not_finite_is_never_the_best(workshop, weights, images):
    """Training uses the batch's own statistics. Evaluation uses the running ones, which are as large as floats can be
    here."""
    workshop.data = images
    tensors, metadata = read_safetensors(weights.export(workshop.train("run", **{**RESNET, "stop__steps": 1})))
    tensors["bn1.running_mean"], tensors["bn1.running_var"] = numpy.full((2, 16), [[-3e38], [0]], numpy.float32)
    file = write_safetensors(weights.folder / "far.safetensors", tensors, metadata)
    changes = {**RESNET, "model": {**RESNET["model"], "norm_momentum": 1e-30}}
    imported = weights.bring_in(file, "imported", **changes)
    run, job = workshop.start_training("imported", resume=True, **changes)
    result = job.wait()
    assert result.code == 0 and "warning: the validation loss after step 6 is" in result.err, result
    said = evaluations(run)[-1]
    assert said["validation_loss"] is None and said["validation_accuracy"] == 0 and not said["best"]
    assert run == imported and not (run / "checkpoints" / "best.h5").exists() and "best validation loss" not in result.out
