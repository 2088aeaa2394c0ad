"""Tests the advice on arrays that are no pictures yet, and on files that are no HDF5 files: what it prints is run, and its
result is imported."""
import gzip
import struct
import subprocess

import h5py
import numpy
import pytest

from array_files import (COUNT, FILES, LABELS, LONGEST, PADDED, PIXELS, Arrays, data_set_per_image, import_arrays, references_to_images,
                         variable_length)
from conftest import CONVERTER, HANG_SECONDS, environment

# Pixels of other ranges, and what the printed expression must make of them.
RANGES = {
    "12 bits": (PIXELS.astype("u2") * 16, PIXELS * (255 * 16 / 4095)),
    "10 bits": (PIXELS.astype("i4") * 4, PIXELS * (255 * 4 / 1023)),
    "16 bits": (PIXELS.astype("u2") * 257, PIXELS),
    "12 bits as floats": (PIXELS.astype("f4") * 16, PIXELS * (255 * 16 / 4095)),
    "with a sign": ((PIXELS.astype("i2") - 128).astype("i1"), PIXELS),
    "standardised": ((PIXELS - 128.0) / 64, (PIXELS - 2.0) * (255 / 252)),
    "far from 0": (PIXELS + 1000.0 * 255, (PIXELS - 2.0) * (255 / 252)),
}


@pytest.mark.parametrize("name", RANGES)
def test_the_expression_that_scales_pixels_keeps_the_picture(tmp_path, name):
    values, wanted = RANGES[name]
    result = import_arrays(tmp_path, Arrays(values))
    assert result.returncode == 1, result
    scaled = eval(result.stderr.split("again as u8: ")[1], {"numpy": numpy, "x": values})  # noqa: S307
    assert scaled.dtype == "u1" and numpy.abs(scaled - wanted).max() <= 1, (result, scaled.max())


ROWS = PIXELS.reshape(COUNT, -1)
# Arrays that the printed Python turns into what is read. Pictures are pixels, or FILES.
CONVERTED = {
    "rows of pixels": (ROWS[:, :48], ROWS[:, :48].reshape(COUNT, 3, 4, 4).transpose(0, 2, 3, 1)),
    "rows of grey pixels": (ROWS[:, :49], ROWS[:, :49].reshape(COUNT, 7, 7, 1)),
    "batches": (PIXELS.reshape(6, 10, 8, 6, 3), PIXELS),
    "an axis of one": (PIXELS[:, None], PIXELS),
    "small arrays": (lambda file, name: file.create_dataset(name, (COUNT,), numpy.dtype(("u1", (8, 6, 3)))).__setitem__(..., PIXELS), PIXELS),
    "references": (references_to_images, PIXELS),
    "a data set for each image": (data_set_per_image("{:04}".format, PIXELS), PIXELS),
    "a data set with a number for each image": (data_set_per_image(str, PIXELS), PIXELS),
    "a data set for each image with a number in its name": (data_set_per_image("img_{}".format, PIXELS), PIXELS),
    "a data set for each file": (data_set_per_image("{:04}".format, [numpy.frombuffer(file, "u1") for file in FILES]), FILES),
    "padded files": (PADDED, FILES),
    "padded files with a sign": (PADDED.view("i1"), FILES),
    "files as opaque values": (PADDED.view(f"V{LONGEST}")[:, 0], FILES),
    "files as strings": (PADDED.view(f"S{LONGEST}")[:, 0], FILES),
    "files as values with a sign": (variable_length((COUNT,), "i1", FILES), FILES),
    "files with two axes": (variable_length((COUNT, 1), "u1", FILES), FILES),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_the_printed_python_makes_what_is_read(tmp_path, name):
    values, wanted = CONVERTED[name]
    result = import_arrays(tmp_path, Arrays(values))
    assert result.returncode == 1 and "--images x_u8:\n" in result.stderr, result
    lines = [line[4:] for line in result.stderr.splitlines() if line.startswith("    ")]
    subprocess.run(["/usr/bin/python3", "-c", "\n".join(lines)], timeout=HANG_SECONDS, check=True)
    result = subprocess.run([CONVERTER, "import", tmp_path / "arrays.mat", "--images", "x_u8", "--labels", "y", "--out", tmp_path / "out"],
                            text=True, capture_output=True, timeout=HANG_SECONDS, env=environment())
    assert result.returncode == 0, (lines, result)
    with h5py.File(tmp_path / "out-train-00000-of-00001.h5") as file:
        rows = [int(key.decode().split("[")[1][:-1]) for key in file["keys"]]
        if isinstance(wanted, list):
            offsets = file["offsets"][()]
            found = [file["images"][first:end].tobytes().rstrip(b"\0") for first, end in zip(offsets, offsets[1:])]
            assert found == [wanted[row] for row in rows]
        else:
            assert numpy.array_equal(file["images"], wanted[rows])


# Other files than HDF5, and what is said of them.
FORMATS = {
    "a.npz": (lambda path: numpy.savez(path, x=PIXELS, y=LABELS), "is a NumPy .npz file, not an HDF5 file"),
    "a.npy": (lambda path: numpy.save(path, PIXELS), "is one NumPy array (.npy), not an HDF5 file"),
    "a.h5.gz": (lambda path: path.write_bytes(gzip.compress(bytes(99))), "is compressed with gzip, not an HDF5 file\n  unpack it first: gunzip"),
    "lfs.h5": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), "git lfs pull"),
    "page.h5": (lambda path: path.write_text("\n<html>404</html>"), "is a web page, not an HDF5 file\n  download the file itself"),
    "v4.mat": (lambda path: path.write_bytes(struct.pack("<5i", 0, 40, 256, 0, 2) + b"y\0" + bytes(99)),
               "is a .mat file of MATLAB's format v4, not an HDF5 file\n  in MATLAB: load it, and save it as HDF5"),
    "a.zip": (lambda path: path.write_bytes(b"PK\3\4" + bytes(99)), "is a zip file, not an HDF5 file"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_other_formats_are_named(tmp_path, name):
    write, said = FORMATS[name]
    write(tmp_path / name)
    words = [CONVERTER, "import", "FILE", "--images", "x", "--labels", "y", "--out", tmp_path / "out"]
    words[2] = tmp_path / name
    result = subprocess.run(words, text=True, capture_output=True, timeout=HANG_SECONDS, env=environment())
    assert result.returncode == 1 and said in result.stderr, result
    if name == "a.npz":
        lines = [line[4:] for line in result.stderr.splitlines() if line.startswith("    ")]
        subprocess.run(["/usr/bin/python3", "-c", "\n".join(lines)], timeout=HANG_SECONDS, check=True)
        words[2] = tmp_path / "a.h5"
        result = subprocess.run(words, text=True, capture_output=True, timeout=HANG_SECONDS, env=environment())
        assert result.returncode == 0, result


@pytest.mark.parametrize("late, most", [(0, 199), (499, 499)])
def test_the_range_of_pixels_is_that_of_all_rows(tmp_path, late, most):
    values = numpy.full((300, 4, 4, 3), 199, "u2")
    values[250:] = late
    result = import_arrays(tmp_path, Arrays(values, numpy.arange(300) % 3))
    assert result.returncode == 1 and f"the first 300 images have {min(late, 199)} to {most}" in result.stderr, result
