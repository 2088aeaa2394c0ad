"""Tests weights in other formats: they are named, and the Python that the program prints works on what is there. A
stand-in takes the place of PyTorch."""
import json
import pickle
import subprocess
import sys
import zipfile

import h5py
import numpy
import pytest

from conftest import assert_same_bits
from test_weights import Weights, read_safetensors, write_safetensors

# Modules torch and safetensors for the printed Python: tensors are NumPy arrays, and torch.load() reads a pickle.
TORCH = """
import pickle, numpy
class Tensor(numpy.ndarray):
    def clone(self): return self.copy().view(Tensor)
    def contiguous(self): return numpy.ascontiguousarray(self).view(Tensor)
is_tensor = lambda v: isinstance(v, numpy.ndarray)
def tensors(d): return {k: tensors(v) if isinstance(v, dict) else v.view(Tensor) if is_tensor(v) else v for k, v in d.items()}
def load(path, map_location, weights_only): return tensors(pickle.load(open(str(path) + '.pickle', 'rb')))
"""
SAFETENSORS = """
import sys
sys.path.insert(0, {tests!r})
from test_weights import read_safetensors, write_safetensors
from pathlib import Path
def load_file(path): return read_safetensors(Path(path))[0]
def save_file(tensors, path):
    import numpy
    write_safetensors(Path(path), {{k: numpy.asarray(v) for k, v in tensors.items()}})
"""


@pytest.fixture
def weights(workshop):
    return Weights(workshop)


@pytest.fixture
def trained(workshop, weights):
    return read_safetensors(weights.export(workshop.train("run", stop__steps=2)))[0]


def run_printed(error, folder):
    """Runs the Python in the message."""
    modules = folder / "modules"
    (modules / "safetensors").mkdir(parents=True, exist_ok=True)
    (modules / "torch.py").write_text(TORCH)
    text = SAFETENSORS.format(tests=str(__import__("pathlib").Path(__file__).parent))
    for name in "__init__", "torch", "numpy":
        (modules / "safetensors" / f"{name}.py").write_text("" if name == "__init__" else text)
    lines = [line[4:] for line in error.splitlines() if line.startswith("    ")]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], env={"PYTHONPATH": str(modules), "PATH": "/usr/bin:/bin"},
                          capture_output=True, text=True)
    assert done.returncode == 0, (lines, done.stderr)


STATE = {"exp_avg": numpy.zeros(3, numpy.float32), "exp_avg_sq": numpy.zeros(3, numpy.float32), "step": numpy.zeros(1, numpy.float32)}


@pytest.mark.parametrize("form", ["plain", "model", "net", "state_dict", "deep", "prefixed"])
@pytest.mark.thorough
def test_the_printed_python_finds_the_weights(workshop, weights, trained, form):
    prefix = {"model": "module.", "deep": "_orig_mod.module.", "prefixed": "model.", "state_dict": "backbone.net."}.get(form, "")
    named = {prefix + k: v for k, v in trained.items()}
    whole = {"plain": named, "deep": {"checkpoint": {"model_state": named}, "ema": dict(list(named.items())[:1])},
             "prefixed": {"state_dict": named}}.get(form, {form: named, "epoch": 3, "optimizer": {"state": {i: STATE for i in range(9)}, **STATE}})
    path = weights.folder / "it's a model.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"")
    (weights.folder / (path.name + ".pickle")).write_bytes(pickle.dumps(whole))
    error = weights.bring_in_badly(path)
    assert "is a file of torch.save" in error
    run_printed(error, weights.folder)
    written = path.with_suffix(".safetensors")
    assert set(read_safetensors(written)[0]) == set(named)
    done = workshop.run("import", written, workshop.experiment(), "--out", weights.folder / "out.h5", ranks=0)
    assert done.code == 0, done
    if form in ("prefixed", "state_dict"):
        assert f"all names of tensors begin with '{prefix}', which is left out" in done.out + done.err, done


def test_npz_files_are_named_and_converted(workshop, weights, trained):
    path = weights.folder / "weights.npz"
    numpy.savez(path, **trained)
    error = weights.bring_in_badly(path)
    assert "is a NumPy .npz file" in error and "torch.save" not in error
    run_printed(error, weights.folder)
    done = workshop.run("import", path.with_suffix(".safetensors"), workshop.experiment(), "--out", weights.folder / "out.h5", ranks=0)
    assert done.code == 0, done


def test_the_index_of_several_files_is_named_and_they_are_joined(workshop, weights, trained):
    names = sorted(trained)
    for part in 0, 1:
        write_safetensors(weights.folder / f"part{part}.safetensors", {name: trained[name] for name in names[part::2]})
    path = weights.folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": {name: f"part{i % 2}.safetensors" for i, name in enumerate(names)}}))
    error = weights.bring_in_badly(path)
    assert "is the index of a model that is cut into several files" in error
    run_printed(error, weights.folder)
    done = workshop.run("import", weights.folder / "joined.safetensors", workshop.experiment(), "--out", weights.folder / "out.h5", ranks=0)
    assert done.code == 0, done


OTHERS = {"loss.weight": numpy.ones(3, numpy.float32), "metric.total": numpy.zeros((), numpy.float32)}


def test_tensors_beside_the_model_are_left_out_and_named(workshop, weights, trained):
    """Lightning stores the buffers of losses and metrics beside the model."""
    plain = weights.bring_in(write_safetensors(weights.folder / "plain.safetensors", trained), "plain")
    for name, prefix in ("lit", "model."), ("deep", "module.net.encoder."):
        tensors = {prefix + k: v for k, v in trained.items()} | OTHERS
        file = write_safetensors(weights.folder / f"{name}.safetensors", tensors)
        done = workshop.run("import", file, workshop.experiment(run__dir=str(weights.folder / name)), ranks=0)
        told = done.out + done.err
        assert done.code == 0 and told.count("which is left out, as are 2 tensor(s) without it: loss.weight, metric.total") == 1, done
        assert_same_bits(plain, weights.folder / name)


def test_two_models_in_a_file_are_refused(weights, trained):
    both = {prefix + k: v for prefix in ("model.", "ema.") for k, v in trained.items()}
    error = weights.bring_in_badly(write_safetensors(weights.folder / "both.safetensors", both))
    assert "has the model's tensors 2 times: their names begin with 'ema.', 'model.'" in error, error
    plain = trained | {"ema." + k: v for k, v in trained.items()}
    assert "2 times" in weights.bring_in_badly(write_safetensors(weights.folder / "two.safetensors", plain))


def test_unknown_tensors_of_the_model_are_refused(weights, trained):
    """A layer that the experiment's model lacks is no buffer of a loss."""
    extra = {"model." + k: v for k, v in (trained | {"fc2.weight": numpy.ones(3, numpy.float32)}).items()} | OTHERS
    error = weights.bring_in_badly(write_safetensors(weights.folder / "extra.safetensors", extra))
    assert "not in the model (1): fc2.weight" in error, error
    assert "not in the model (2)" in weights.bring_in_badly(write_safetensors(weights.folder / "no.safetensors", trained | OTHERS))


def test_names_that_only_some_tensors_share_are_not_left_out(weights, trained):
    mixed = {("model." if i else "other.") + k: v for i, (k, v) in enumerate(trained.items())}
    assert "not in the model" in weights.bring_in_badly(write_safetensors(weights.folder / "mixed.safetensors", mixed))


def keras_h5(path):
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "2.15.0"
        file.create_group("model_weights").attrs["layer_names"] = numpy.array([b"dense"])


def keras_zip(path):
    with zipfile.ZipFile(path, "w") as file:
        for name in "metadata.json", "config.json", "model.weights.h5":
            file.writestr(name, b"{}")


def torch_script(path):
    with zipfile.ZipFile(path, "w") as file:
        for name in "net/data.pkl", "net/code/__torch__.py", "net/constants.pkl":
            file.writestr(name, b"")


FORMATS = {
    "an HDF5 file of Keras": keras_h5,
    "a Keras file": keras_zip,
    "a TorchScript file": torch_script,
    "a zip file": lambda path: zipfile.ZipFile(path, "w").writestr("readme.txt", "x"),
    "one NumPy array": lambda path: numpy.save(open(path, "wb"), numpy.zeros(40)),
    "a Python pickle": lambda path: path.write_bytes(pickle.dumps({"w": numpy.zeros(40)})),
    "a file of torch.save": lambda path: path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + bytes(40)),
    "an ONNX file": lambda path: path.write_bytes(b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(40)),
    "a GGUF file": lambda path: path.write_bytes(b"GGUF\x03\x00\x00\x00\x10" + bytes(40)),
    "a TensorFlow Lite file": lambda path: path.write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(40)),
    "the index of a TensorFlow checkpoint": lambda path: path.write_bytes(bytes(range(1, 60)) + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"),
    "compressed with gzip": lambda path: path.write_bytes(b"\x1f\x8b\x08\x00abcdefgh"),
    "a pointer of Git LFS": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
    "compressed with Zstandard": lambda path: path.write_bytes(b"\x28\xb5\x2f\xfdabcdefgh"),
    "a msgpack file of Flax": lambda path: path.write_bytes(b"\x81\xa6params\x81\xa5Dense\x80" + bytes(40)),
    "the index of a model that is cut into several files": lambda path: path.write_text('{"metadata": {}, "weight_map": {"a": "b"}}'),
    "a web page": lambda path: path.write_text("<!DOCTYPE html><html></html>"),
}


@pytest.mark.parametrize("format", FORMATS)
def test_formats_are_recognised_by_their_content(weights, format):
    path = weights.folder / "weights.bin"
    FORMATS[format](path)
    assert f"is {format}" in weights.bring_in_badly(path)
