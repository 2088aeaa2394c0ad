"""Tests the conversion of IDX files, the form of MNIST, with a reader of its own and with h5py."""
import gzip
import struct
import subprocess

import h5py
import numpy
import pytest

from conftest import CONVERTER, LAUNCHER, environment

COUNT = 60
PIXELS = numpy.random.default_rng(3).integers(0, 256, (COUNT, 8, 6), dtype="u1")
LABELS = (numpy.arange(COUNT) * 7) % 5
TYPES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13}


def idx(values, kind="u1"):
    values = numpy.asarray(values)
    return bytes([0, 0, TYPES[kind], values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape) + values.astype(">" + kind).tobytes()


def convert(folder, images, labels, *words, ranks=None):
    (folder / "images").write_bytes(images)
    (folder / "labels").write_bytes(labels)
    launcher = [] if ranks is None else [LAUNCHER, ranks]
    return subprocess.run([str(w) for w in [*launcher, CONVERTER, "idx", folder / "images", folder / "labels", "--out", folder / "o", *words]],
                          text=True, capture_output=True, env=environment(), timeout=180)


def stored(folder, split="train"):
    """Returns the pictures, labels and rows of a split, in the order of the file."""
    with h5py.File(next(folder.glob(f"o-{split}-*.h5"))) as file:
        return file["images"][()], file["labels"][()], [int(key.strip(b"[]")) for key in file["keys"][()]]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind, channels", [("u1", 0), ("i4", 3)])
def test_pictures_and_labels_are_those_of_the_files(tmp_path, packed, kind, channels):
    pixels = numpy.repeat(PIXELS[..., None], channels, 3) if channels else PIXELS
    files = [idx(pixels), idx(LABELS, kind)]
    done = convert(tmp_path, *(gzip.compress(f) if packed else f for f in files))
    assert done.returncode == 0, done.stderr
    pictures, labels, rows = stored(tmp_path)
    assert len(pictures) == COUNT
    for picture, label, row in zip(pictures, labels, rows):
        assert (picture.reshape(8, 6, -1) == pixels[row].reshape(8, 6, -1)).all() and label == LABELS[row]


def test_labels_may_count_from_1(tmp_path):
    done = convert(tmp_path, idx(PIXELS), idx(LABELS + 1), "--first-label", "1")
    assert done.returncode == 0 and "classes     5, " in done.stdout and "warning" not in done.stdout, done
    _, labels, rows = stored(tmp_path)
    assert (labels == LABELS[rows]).all()
    (tmp_path / "list").write_text("1 a\n2 b\n4 d\n3 c\n5 e\n")
    done = convert(tmp_path, idx(PIXELS), idx(LABELS + 1), "--force", "--first-label", "1", "--class-list", tmp_path / "list")
    assert done.returncode == 1 and "list: class 3 has the id '4', but its rows have the label 3" in done.stderr, done


def test_two_ranks_write_the_same_bytes_and_hold_out_the_same_share(tmp_path):
    found = []
    for ranks in None, 2:
        folder = tmp_path / str(ranks)
        folder.mkdir()
        done = convert(folder, idx(PIXELS), idx(LABELS), "--validation", "0.2", ranks=ranks)
        assert done.returncode == 0, done.stderr
        assert len(stored(folder)[0]) == 50 and len(stored(folder, "validation")[0]) == 10  # a fifth of each class of 12
        found.append({path.name: path.read_bytes() for path in folder.glob("o-*.h5")})
    assert found[0] == found[1]


WHOLE = idx(PIXELS), idx(LABELS)
@pytest.mark.parametrize("images, labels, words", [
    (b"\0\0\x08", WHOLE[1], "images: is not an IDX file"),
    (b"\x89HDF" + WHOLE[0], WHOLE[1], "images: is not an IDX file"),
    (WHOLE[0][:10], WHOLE[1], "images: ends within its header"),
    (WHOLE[0][:-5], WHOLE[1], f"images: has {COUNT * 48 - 5} bytes after its header, expected {COUNT * 48}"),
    (WHOLE[0] + b"\0", WHOLE[1], f"images: has more bytes after its header, expected {COUNT * 48}"),
    (gzip.compress(WHOLE[0])[:-30], WHOLE[1], "images: gzip's data are cut off or damaged"),
    (gzip.compress(WHOLE[0])[:60] + b"\xff" * 20 + gzip.compress(WHOLE[0])[80:], WHOLE[1], "images: gzip's data are cut off or damaged"),
    (idx(PIXELS / 255, "f4"), WHOLE[1], "images: holds values of type 0x0d"),
    (idx(PIXELS[:50]), WHOLE[1], "images: has 50 pictures, but"),
    (WHOLE[1], WHOLE[0], "the file of the pictures comes first"),
    (WHOLE[0], idx(LABELS - 1, "i1"), "labels: the label of row 0 is -1"),
    (WHOLE[0], idx(LABELS / 2, "f4"), "labels: holds floating-point numbers"),
    (WHOLE[0], idx(numpy.where(numpy.arange(COUNT) == 7, 1_000_000, LABELS), "i4"), "labels: the label of row 7 is 1000000"),
], ids=["short", "magic", "header", "cut-off", "long", "gzip-cut-off", "gzip-damaged", "float", "counts", "swapped", "negative", "fractions", "mistyped"])
def test_a_wrong_file_is_one_error_that_names_it(tmp_path, images, labels, words):
    done = convert(tmp_path, images, labels)
    assert done.returncode == 1 and words in done.stderr, done.stderr
    assert not list(tmp_path.glob("o-*"))
