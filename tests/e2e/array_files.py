"""HDF5 files with arrays of pictures and labels, as MATLAB, h5py and other programs write them."""
import io
import subprocess

import h5py
import numpy
from PIL import Image

from conftest import CONVERTER, HANG_SECONDS, environment

COUNT, SHAPE = 60, (60, 8, 6, 3)
PIXELS = numpy.random.default_rng(1).integers(2, 255, SHAPE, dtype="u1")
GREY = PIXELS[..., 0]
MASKS = (PIXELS > 128).astype("u1")
LABELS = numpy.arange(COUNT) % 4
REVERSED, REVERSED_GREY = PIXELS.transpose(0, 3, 2, 1), GREY.transpose(0, 2, 1)
FLOATS = PIXELS / 255
MATLAB_7 = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan  5 10:00:00 2026 HDF5 schema 1.00 ."


def matlab(kind, **more):
    return {"MATLAB_class": numpy.bytes_(kind), **more}


class Arrays:
    """A file with pictures x and labels y, as another program writes it. x and y may be functions that write them."""

    def __init__(self, x=PIXELS, y=LABELS, of_x=(), of_y=(), start=b"", group="", of_group=()):
        self.parts, self.start, self.group, self.of_group = {"x": (x, of_x), "y": (y, of_y)}, start, group, of_group

    def write(self, path):
        with h5py.File(path, "w", userblock_size=512 if self.start else 0) as file:
            for name, (values, attributes) in self.parts.items():
                values(file, self.group + name) if callable(values) else file.create_dataset(self.group + name, data=values)
                if attributes:
                    file[self.group + name].attrs.update(attributes)
            if self.group:
                file[self.group].attrs.update(self.of_group)
        with open(path, "r+b") as file:
            file.write(self.start)


def references(file, name):
    file.create_dataset(name, data=[file.create_dataset(f"#refs#/{name}", data=[1]).ref] * COUNT, dtype=h5py.ref_dtype)


def group(file, name):
    file[f"{name}/ir"] = [0, 1]
    file[f"{name}/data"] = [1.0, 2.0]


def one_label(value, dtype="i8", row=5):
    labels = LABELS.astype(dtype)
    labels[row] = value
    return labels


def axes_called(values, *names):
    """The pictures, and labels of their axes."""
    def write(file, key):
        data = file.create_dataset(key, data=values)
        for axis, name in zip(data.dims, names):
            axis.label = name
    return write


def cell_of(kind, value):
    def write(file, name):
        part = file.create_dataset(f"#refs#/{name}", data=value)
        part.attrs["MATLAB_class"] = numpy.bytes_(kind)
        file.create_dataset(name, data=[part.ref] * COUNT, dtype=h5py.ref_dtype)
    return write


def named(**values):
    """Labels of a type that names its values."""
    return LABELS.astype(h5py.enum_dtype(values, basetype="i2"))


def encoded(i, kind="JPEG"):
    file = io.BytesIO()
    Image.fromarray(PIXELS[i]).save(file, kind, quality=95)
    return file.getvalue()


FILES = [encoded(i) for i in range(COUNT)]
LONGEST = max(map(len, FILES))
PADDED = numpy.array([numpy.frombuffer(file.ljust(LONGEST, b"\0"), "u1") for file in FILES])


def variable_length(shape, dtype, values):
    def write(file, name):
        data = file.create_dataset(name, shape, h5py.vlen_dtype(dtype))
        for i, value in enumerate(values):
            data[i] = numpy.frombuffer(value, dtype)
    return write


def data_set_per_image(name_of, values):
    def write(file, name):
        for i, value in enumerate(values):
            file[f"{name}/{name_of(i)}"] = value
    return write


def references_to_images(file, name):
    file.create_dataset(name, data=[file.create_dataset(f"parts/{i}", data=image).ref for i, image in enumerate(PIXELS)], dtype=h5py.ref_dtype)


def import_arrays(folder, arrays, options=(), **how):
    path = folder / "arrays.mat"
    if isinstance(arrays, bytes):
        path.write_bytes(arrays)
    else:
        arrays.write(path)
    words = list(options)
    if "--class-list" in words:
        (folder / "classes.txt").write_text(words[words.index("--class-list") + 1])
        words[words.index("--class-list") + 1] = folder / "classes.txt"
    keys = [word for name in "xy" for word in (f"--{'images' if name == 'x' else 'labels'}", getattr(arrays, "group", "") + name)]
    if "--labels" in words:
        keys = keys[:2]
    return subprocess.run([CONVERTER, "import", path, *keys, "--out", folder / "out", "--force", *words], text=True, capture_output=True,
                          timeout=HANG_SECONDS, env=environment(), **how)
