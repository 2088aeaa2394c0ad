"""Tests the conversion of IDX files, the form of MNIST, with a reader of its own and with h5py."""
import gzip
import struct
import subprocess

import h5py
import numpy
import pytest

from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, environment

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
                          text=True, capture_output=True, env=environment(), timeout=HANG_SECONDS)


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


@pytest.mark.parametrize("parts, end", [(1, bytes(70_000)), (2, b""), (3, bytes(1))], ids=["zeros", "two members", "three members and a zero"])
def test_gzip_members_are_one_stream_that_zeros_may_fill_up(tmp_path, parts, end):
    def packed(data):
        size = -(-len(data) // parts)
        return b"".join(gzip.compress(data[at:at + size]) for at in range(0, len(data), size)) + end
    done = convert(tmp_path, packed(idx(PIXELS)), packed(idx(LABELS)))
    assert done.returncode == 0, done.stderr
    pictures, labels, rows = stored(tmp_path)
    assert (pictures.reshape(COUNT, 8, 6) == PIXELS[rows]).all() and (labels == LABELS[rows]).all()


@pytest.mark.parametrize("end", [b"\n", bytes(3) + b"end", bytes(3) + gzip.compress(b"")], ids=["line end", "text after zeros", "member after zeros"])
def test_other_bytes_after_gzip_data_are_an_error_that_says_where_they_begin(tmp_path, end):
    packed = gzip.compress(WHOLE[1])
    done = convert(tmp_path, WHOLE[0], packed + end)
    assert done.returncode == 1 and (f"labels: other bytes follow gzip's data, which end at byte {len(packed)}, "
                                     "expected the end of the file, another gzip member or zero bytes") in done.stderr, done.stderr
    assert f"gzip -dc {tmp_path / 'labels'} > NEW" in done.stderr.splitlines()[1]
    assert not list(tmp_path.glob("o-*"))


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


@pytest.mark.parametrize("pixels, words", [
    (PIXELS // 17, "no pixel of the 60 images is above 15, expected 0 to 255: the pictures are nearly black"),
    (PIXELS // 255, "no pixel of the 60 images is above 1, expected 0 to 255: if its values are 0 and 1, multiply them by 255"),
    (PIXELS * 0, "60 pictures are all zeros, such as [0]"),
], ids=["dark", "masks", "zeros"])
def test_dark_pictures_are_warned_of(tmp_path, pixels, words):
    done = convert(tmp_path, idx(pixels), idx(LABELS))
    assert done.returncode == 0 and f"warning     {words}" in done.stdout, done


WHOLE = idx(PIXELS), idx(LABELS)
@pytest.mark.parametrize("images, labels, words, advice", [
    (WHOLE[0], idx(LABELS, "f4"), "labels: holds floating-point numbers of the shape (60)",
     "write them again as whole numbers: labels.astype('u1')"),
    (WHOLE[0], idx(numpy.eye(5)[LABELS]), "labels: holds whole numbers of the shape (60, 5)", "labels.argmax(axis=1)"),
    (WHOLE[0], WHOLE[0], "labels: holds whole numbers of the shape (60, 8, 6)", "the file of the pictures comes first"),
    (idx(PIXELS / 255, "f4"), WHOLE[1], "images: holds values of type 0x0d", "its values are 0 to 1: write them again as u8: numpy.rint(x * 255)"),
    (idx(numpy.where(numpy.arange(COUNT)[:, None, None] > 4, numpy.nan, PIXELS), "f4"), WHOLE[1], "images: holds values of type 0x0d", "row 5 has NaN"),
    (idx(PIXELS.astype("i2") * 16, "i2"), WHOLE[1], "images: holds values of type 0x0b", "numpy.rint(x.clip(0, 4095) * (255 / 4095)).astype('u1')"),
    (idx(PIXELS.reshape(COUNT, -1)), WHOLE[1], "images: holds values of type 0x08 and the shape (60, 48)", "x.reshape(-1, HEIGHT, WIDTH)"),
], ids=["float labels", "one-hot labels", "two files of pictures", "float pictures", "NaN", "12 bits", "rows"])
def test_a_file_of_another_form_is_told_what_to_do(tmp_path, images, labels, words, advice):
    done = convert(tmp_path, images, labels)
    assert done.returncode == 1 and words in done.stderr and advice in done.stderr.splitlines()[1], done.stderr


def test_labels_from_0_with_first_label_1_are_told_to_leave_it_out(tmp_path):
    done = convert(tmp_path, *WHOLE, "--first-label", "1")
    assert done.returncode == 1 and "leave out --first-label" in done.stderr, done.stderr


@pytest.mark.parametrize("images, labels, words", [
    (b"\0\0\x08", WHOLE[1], "images: is not an IDX file"),
    (b"\x89HDF" + WHOLE[0], WHOLE[1], "images: is not an IDX file"),
    (WHOLE[0][:10], WHOLE[1], "images: ends within its header"),
    (WHOLE[0][:-5], WHOLE[1], f"images: has {COUNT * 48 - 5} bytes after its header, expected {COUNT * 48}"),
    (WHOLE[0] + b"\0", WHOLE[1], f"images: has more bytes after its header, expected {COUNT * 48}"),
    (gzip.compress(WHOLE[0] + b"\0"), WHOLE[1], f"images: has more bytes after its header, expected {COUNT * 48}"),
    (gzip.compress(WHOLE[0]) + gzip.compress(b"\0"), WHOLE[1], f"images: has more bytes after its header, expected {COUNT * 48}"),
    (gzip.compress(WHOLE[0])[:-30], WHOLE[1], "images: gzip's data are cut off or damaged"),
    (gzip.compress(WHOLE[0][:90]) + gzip.compress(WHOLE[0][90:])[:-3], WHOLE[1], "images: gzip's data are cut off or damaged"),
    (gzip.compress(WHOLE[0])[:60] + b"\xff" * 20 + gzip.compress(WHOLE[0])[80:], WHOLE[1], "images: gzip's data are cut off or damaged"),
    (idx(PIXELS / 255, "f4"), WHOLE[1], "images: holds values of type 0x0d"),
    (idx(PIXELS[:50]), WHOLE[1], "images: has 50 pictures, but"),
    (WHOLE[1], WHOLE[0], "the file of the pictures comes first"),
    (WHOLE[0], idx(LABELS - 1, "i1"), "labels: the label of row 0 is -1"),
    (WHOLE[0], idx(LABELS / 2, "f4"), "labels: holds floating-point numbers"),
    (WHOLE[0], idx(numpy.where(numpy.arange(COUNT) == 7, 1_000_000, LABELS), "i4"), "labels: the label of row 7 is 1000000"),
], ids=["short", "magic", "header", "cut-off", "long", "gzip-long", "member-too-many", "gzip-cut-off",
        "second-member-cut-off", "gzip-damaged", "float", "counts", "swapped", "negative", "fractions", "mistyped"])
def test_a_wrong_file_is_one_error_that_names_it(tmp_path, images, labels, words):
    done = convert(tmp_path, images, labels)
    assert done.returncode == 1 and words in done.stderr, done.stderr
    assert not list(tmp_path.glob("o-*"))
