"""Tests HDF5 files of other people: of every form that is whole, and of every form in which something is missing. HDF5
itself reads what is missing as zeros."""
import os
import re
import resource
import subprocess

import h5py
import numpy
import pytest
import yaml
from h5py import h5d, h5f, h5p, h5s, h5t

from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, PROGRAM, ROOT, environment, steps

COUNT, SHAPE = 60, (60, 8, 6, 3)
HALF = (30, 8, 6, 3)
PIXELS = numpy.random.default_rng(1).integers(1, 255, SHAPE, dtype="u1")
LABELS = numpy.arange(COUNT) % 4
ENUM = h5py.enum_dtype({"a": 0, "b": 1, "c": 2, "d": 3}, basetype=">i2")
MATLAB = {"MATLAB_class": numpy.bytes_("uint8")}


def virtual(parts, fill=None):
    """A virtual data set of parts (first, end, file, first row in the file)."""
    layout = h5py.VirtualLayout(SHAPE, "u1")
    for first, end, name, start in parts:
        is_whole = name in ("sub/up.h5", "a.h5")
        layout[first:end] = h5py.VirtualSource(name, "x", SHAPE if is_whole else HALF)[start:start + end - first]
    return lambda file: file.create_virtual_dataset("x", layout, fillvalue=fill)


def columns(fill):
    """The left four columns of the first 30 images have a source, the right two have none."""
    layout = h5py.VirtualLayout(SHAPE, "u1")
    layout[:30, :, :4] = h5py.VirtualSource("half0.h5", "x", HALF)[:, :, :4]
    layout[30:] = h5py.VirtualSource("half1.h5", "x", HALF)
    return lambda file: file.create_virtual_dataset("x", layout, fillvalue=fill)


def interleaved(*names):
    layout = h5py.VirtualLayout(SHAPE, "u1")
    for start, name in enumerate(names):
        layout[start::2] = h5py.VirtualSource(name, "x", HALF)
    return lambda file: file.create_virtual_dataset("x", layout)


def endless(files, rows=COUNT, block=1):
    """A virtual data set that grows with its sources. Each file has every n-th block of images. A name with %b stands for
    one file per block."""
    def make(file):
        how = h5p.create(h5p.DATASET_CREATE)
        for number, name in enumerate(files):
            target = h5s.create_simple((rows, *SHAPE[1:]), (h5s.UNLIMITED, *SHAPE[1:]))
            target.select_hyperslab((number, 0, 0, 0), (h5s.UNLIMITED, 1, 1, 1), (len(files) * block, 1, 1, 1), (block, *SHAPE[1:]))
            source = h5s.create_simple((block, *SHAPE[1:]), (h5s.UNLIMITED, *SHAPE[1:]))
            if "%b" not in name:
                source.select_hyperslab((0, 0, 0, 0), (h5s.UNLIMITED, 1, 1, 1), (1, 1, 1, 1), (1, *SHAPE[1:]))
            how.set_virtual(target, name.encode(), b"x", source)
        space = h5s.create_simple((0, *SHAPE[1:]), (h5s.UNLIMITED, *SHAPE[1:]))
        h5d.create(file.id, b"x", h5t.NATIVE_UINT8, space, how)
    return make


def chunked(*ranges, **options):
    def make(file):
        data = file.create_dataset("x", SHAPE, "u1", **{"chunks": (10, 8, 6, 3), **options})
        for first, end in ranges:
            data[first:end] = PIXELS[first:end]
    return make


def tiles(fill):
    """The lower half of images 10 to 19 was never written."""
    def make(file):
        data = file.create_dataset("x", SHAPE, "u1", chunks=(10, 4, 6, 3), fillvalue=fill)
        for first in range(0, COUNT, 10):
            for top in (0, 4) if first != 10 else (0,):
                data[first:first + 10, top:top + 4] = PIXELS[first:first + 10, top:top + 4]
    return make


def external(*slots):
    def make(file):
        how = h5p.create(h5p.DATASET_CREATE)
        for name, offset, size in slots:
            how.set_external(name, offset, size)
        h5d.create(file.id, b"x", h5t.NATIVE_UINT8, h5s.create_simple(SHAPE), how)
    return make


def compact(file):
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_layout(h5d.COMPACT)
    h5d.create(file.id, b"x", h5t.NATIVE_UINT8, h5s.create_simple(SHAPE), how).write(h5s.ALL, h5s.ALL, PIXELS)


def pixels(values, **attributes):
    def make(file):
        file["x"] = values
        file["x"].attrs.update(attributes)
    return make


def resized(file):
    data = file.create_dataset("x", data=PIXELS, chunks=(10, 8, 6, 3), maxshape=(None, 8, 6, 3))
    data.resize(75, 0)
    data.resize(60, 0)


def linked(target):
    def make(file):
        file["real"] = PIXELS
        file["x"] = target
    return make


def labelled(labels):
    def make(file):
        file["x"] = PIXELS
        file["y"] = labels
    return make


def half_of_the_labels(file):
    file["x"] = PIXELS
    file.create_dataset("y", (COUNT,), "i8", chunks=(20,))[:40] = LABELS[:40]


RAW = PIXELS.tobytes()
NOT_A_NUMBER = numpy.where(LABELS == 3, numpy.nan, LABELS)
TILES = PIXELS.copy()
TILES[10:20, 4:] = 9
COLUMNS = PIXELS.copy()
COLUMNS[:30, :, 4:] = 7
GREY = PIXELS[..., 0]

# What each file holds: how it is made, the options of the import, and the pixels and labels that come out.
WHOLE = {
    "a virtual data set": (virtual([(0, 30, "half0.h5", 0), (30, 60, "half1.h5", 0)]),),
    "a virtual data set of a virtual one": (virtual([(0, 30, "sub/up.h5", 0), (30, 60, "sub/up.h5", 30)]),),
    "interleaved files": (interleaved("even.h5", "odd.h5"),),
    "a virtual data set that grows": (endless(["grows.h5"]),),
    "two that grow": (endless(["grows_even.h5", "grows_odd.h5"]),),
    "files with numbers": (endless(["n%b.h5"], block=20),),
    "the rows of a virtual data set that are there": (virtual([(0, 30, "half0.h5", 0), (30, 60, "gone.h5", 0)]), "0:30"),
    "a fill value for some columns": (columns(7), None, COLUMNS),
    "chunks": (chunked((0, 60)),),
    "the written rows": (chunked((0, 20), (30, 60)), "30:60"),
    "checked and compressed chunks": (chunked((0, 60), compression="gzip", shuffle=True, fletcher32=True),),
    "scaled chunks": (chunked((0, 60), scaleoffset=0),),
    "lzf that could not compress": (chunked((0, 60), compression="lzf"),),
    "a fill value for parts of images": (tiles(9), None, TILES),
    "resized": (resized,),
    "compact": (compact,),
    "an external file": (external((b"raw.bin", 0, len(RAW))),),
    "an external file without an end": (external((b"raw.bin", 0, h5f.UNLIMITED)),),
    "two external files": (external((b"raw_a.bin", 10, 4000), (b"raw_b.bin", 0, len(RAW) - 4000)),),
    "the rows of a short external file": (external((b"short.bin", 0, len(RAW))), "0:34"),
    "a soft link": (linked(h5py.SoftLink("/real")),),
    "an external link": (linked(h5py.ExternalLink("sub/up.h5", "/x")),),
    "NCHW": (pixels(PIXELS.transpose(0, 3, 1, 2)),),
    "HWCN": (pixels(PIXELS.transpose(1, 2, 3, 0)), None, PIXELS, LABELS, "--layout", "HWCN"),
    "MATLAB, H x W x C x N": (pixels(PIXELS.transpose(0, 3, 2, 1), **MATLAB),),
    "MATLAB, N x H x W x C": (pixels(PIXELS.transpose(3, 2, 1, 0), **MATLAB),),
    "MATLAB, H x W x N": (pixels(GREY.transpose(0, 2, 1), **MATLAB), None, GREY),
    "MATLAB, N x H x W": (pixels(GREY.transpose(2, 1, 0), **MATLAB), None, GREY),
    "labels (1, N)": (labelled(LABELS[None].astype("f8")),),
    "big-endian labels": (labelled(LABELS.astype(">i4")),),
    "big-endian enums": (labelled(LABELS.astype(">i2").astype(ENUM)),),
    "bool": (labelled(LABELS % 2 == 1), None, PIXELS, LABELS % 2),
    "half-precision labels": (labelled(LABELS.astype("f2")),),
    "the labels that were written": (half_of_the_labels, "0:40"),
}

# How a file is made in which something is missing, and what the message says.
MISSING = {
    "a source file": (virtual([(0, 30, "half0.h5", 0), (30, 60, "gone.h5", 0)]),
                      "data set 'x': rows 30 to 59 of this virtual data set come from the file 'gone.h5', which is missing"),
    "a source file, with a fill value": (virtual([(0, 30, "half0.h5", 0), (30, 60, "gone.h5", 0)], fill=0), "'gone.h5', which is missing"),
    "a source data set": (virtual([(0, 30, "half0.h5", 0), (30, 60, "other.h5", 0)]), "other.h5: data set 'x' is missing"),
    "the end of a source": (virtual([(0, 30, "half0.h5", 0), (30, 60, "short.h5", 0)]), "is too short: it has 20 rows, but 30 are needed"),
    "chunks of a source": (virtual([(0, 30, "half0.h5", 0), (30, 60, "half_written.h5", 0)]), "rows 20 to 29 of 30 were never written"),
    "a source that is HDF5": (virtual([(0, 30, "half0.h5", 0), (30, 60, "junk.h5", 0)]), "junk.h5: is not an HDF5 file"),
    "a source of some rows": (virtual([(0, 30, "half0.h5", 0), (40, 60, "half1.h5", 10)], fill=7), "rows 30 to 39 of 60 were never given a source"),
    "a source of some columns": (columns(None), "parts of rows 0 to 29 of 60 were never given a source"),
    "every other image": (interleaved("even.h5", "gone.h5"), "'gone.h5', which is missing"),
    "a file with a number": (endless(["hole%b.h5"], block=20), "the file 'hole1.h5' of this virtual data set is missing, although 'hole2.h5'"),
    "one of two that grow": (endless(["grows_even.h5", "gone.h5"]), "'gone.h5', which is missing"),
    "the end of one of two that grow": (endless(["grows_even.h5", "grows_less.h5"]), "and 8 other rows, were never given a source"),
    "itself": (virtual([(0, 60, "a.h5", 0)]), "consists of itself"),
    "chunks": (chunked((0, 20), (30, 60)), "data set 'x': rows 20 to 29 of 60 were never written"),
    "chunks, with a fill value": (chunked((0, 20), (30, 60), fillvalue=0), "rows 20 to 29 of 60 were never written"),
    "all chunks": (chunked(), "data set 'x' was never written"),
    "parts of images": (tiles(None), "parts of rows 10 to 19 of 60 were never written"),
    "all values": (lambda file: file.create_dataset("x", SHAPE, "u1"), "data set 'x' was never written"),
    "labels": (half_of_the_labels, "data set 'y': rows 40 to 59 of 60 were never written"),
    "an external file": (external((b"gone.bin", 0, len(RAW))), "the external file 'gone.bin', which cannot be read: No such file"),
    "the end of an external file": (external((b"short.bin", 0, len(RAW))), "needs 8640 bytes of the external file"),
    "a link's target": (linked(h5py.SoftLink("/nowhere")), "'x' is a link to '/nowhere', which is not there"),
    "a linked file": (linked(h5py.ExternalLink("gone.h5", "/x")), "'x' is a link to '/x' in the file 'gone.h5', which cannot be opened"),
    "chunks of a linked file": (linked(h5py.ExternalLink("half_written.h5", "/x")), "half_written.h5): rows 20 to 29 of 30 were never written"),
    "a filter": (lambda file: file.create_dataset("x", data=PIXELS * 0, compression="lzf", chunks=(10, 8, 6, 3)),
                 "is compressed with 'lzf', the HDF5 filter 32000, which is not installed here"),
    "values": (lambda file: file.create_dataset("x", data=h5py.Empty("u1")), "was declared without a shape and without values"),
    "rows": (pixels(PIXELS[:0]), "'x' has 0 rows, but 'y' has 60"),
    "whole labels": (labelled(NOT_A_NUMBER), "15 of 60 labels in 'y' are no whole numbers, such as nan in row 3"),
    "labels of three images": (labelled(numpy.where(LABELS == 3, -1, LABELS)), "row 3 of 'y' is -1, expected 0 to 2; 14 other rows"),
    "numbers": (labelled([b"cat", b"dog"] * 30), "'y' holds text, expected numbers from 0"),
    "one number per image": (labelled(numpy.eye(4)[LABELS]), "'y' has the shape (60, 4), expected (N), (N, 1) or (1, N)"),
    "u8 pixels": (pixels(PIXELS / 255), "'x' holds f64, not u8"),
    "u8 pixels, but bool": (pixels(PIXELS > 128), "'x' holds bool, not u8"),
    "the order of the axes": (pixels(PIXELS.transpose(1, 2, 3, 0)), "axis 4 has 60: give the order of the axes with --layout, such as HWCN"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that others refer to."""
    where = tmp_path_factory.mktemp("hdf5")
    (where / "sub").mkdir()
    sources = {"half0": PIXELS[:30], "half1": PIXELS[30:], "short": PIXELS[30:50], "even": PIXELS[::2], "odd": PIXELS[1::2]}
    sources.update({f"n{i}": PIXELS[20 * i:20 * i + 20] for i in range(3)})
    sources.update({f"hole{i}": PIXELS[20 * i:20 * i + 20] for i in (0, 2)})
    for name, values in sources.items():
        with h5py.File(where / f"{name}.h5", "w") as file:
            file["x"] = values
    for name, values in {"grows": PIXELS, "grows_even": PIXELS[::2], "grows_odd": PIXELS[1::2], "grows_less": PIXELS[1:41:2]}.items():
        with h5py.File(where / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=values, chunks=(5, 8, 6, 3), maxshape=(None, 8, 6, 3))
    with h5py.File(where / "half_written.h5", "w") as file:
        file.create_dataset("x", HALF, "u1", chunks=(5, 8, 6, 3))[:20] = PIXELS[30:50]
    with h5py.File(where / "other.h5", "w") as file:
        file["z"] = PIXELS[30:]
    with h5py.File(where / "sub" / "up.h5", "w") as file:
        layout = h5py.VirtualLayout(SHAPE, "u1")
        layout[:30] = h5py.VirtualSource("../half0.h5", "x", HALF)
        layout[30:] = h5py.VirtualSource("../half1.h5", "x", HALF)
        file.create_virtual_dataset("x", layout)
    (where / "junk.h5").write_text("no HDF5")
    for name, values in {"raw": RAW, "short": RAW[:5000], "raw_a": b"0123456789" + RAW[:4000], "raw_b": RAW[4000:]}.items():
        (where / f"{name}.bin").write_bytes(values)
    return where


def import_file(folder, make, *options, ranks=None, **more):
    with h5py.File(folder / "a.h5", "w") as file:
        make(file)
        if "y" not in file:
            file["y"] = LABELS
    launcher = [] if ranks is None else [LAUNCHER, ranks]
    words = [*launcher, CONVERTER, "import", folder / "a.h5", "--images", "x", "--labels", "y", "--out", folder / "out", "--force", *options]
    return subprocess.run([str(word) for word in words], cwd=ROOT, env=environment(), text=True, capture_output=True, timeout=HANG_SECONDS, **more)


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_whole_is_imported(folder, name):
    make, rows, images, labels, *options = (*WHOLE[name], *(None, PIXELS, LABELS)[len(WHOLE[name]) - 1:])
    result = import_file(folder, make, *options, *(["--rows", rows] if rows else []))
    assert result.returncode == 0 and "HDF5-DIAG" not in result.stderr, result
    assert ("have parts that were never written" in result.stdout) == name.startswith("a fill value"), result
    first, end = map(int, rows.split(":")) if rows else (0, COUNT)
    counts = f"rows        {COUNT} found = {end - first} used + 0 broken + {COUNT - end + first} left out"
    assert (counts in result.stdout) == bool(rows), result
    with h5py.File(folder / "out-train-00000-of-00001.h5") as file:
        keys = [int(key.decode()[2:-1]) for key in file["keys"]]
        assert sorted(keys) == list(range(first, end))
        assert numpy.array_equal(file["images"][:].reshape(images[keys].shape), images[keys])
        assert numpy.array_equal(file["labels"], labels[keys])


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_named_once(folder, name):
    make, message = MISSING[name]
    result = import_file(folder, make)
    assert result.returncode == 1 and message in result.stdout + result.stderr, result
    assert result.stderr.count("\n") <= 3 and "HDF5-DIAG" not in result.stderr, result


def test_a_damaged_chunk_is_an_error_that_is_said_once(folder):
    assert import_file(folder, chunked((0, 60), fletcher32=True)).returncode == 0
    with h5py.File(folder / "a.h5") as file:
        offset = file["x"].id.get_chunk_info(2).byte_offset
    with open(folder / "a.h5", "r+b") as file:
        file.seek(offset + 5)
        file.write(b"\0\xff\0")
    words = [CONVERTER, "import", folder / "a.h5", "--images", "x", "--labels", "y", "--out", folder / "out", "--force"]
    results = [subprocess.run([str(word) for word in [*words, *more]], text=True, capture_output=True, timeout=HANG_SECONDS)
               for more in ([], ["--broken", "skip"])]
    assert results[0].returncode == 1 and results[0].stderr.count("cannot read rows 20 to 29 of 'x'") == 1, results[0]
    assert results[0].stdout.count("cannot read") == 0 and "HDF5-DIAG" not in results[0].stderr, results[0]
    assert results[1].returncode == 0 and "broken      10, left out" in results[1].stdout, results[1]


def test_more_files_than_may_be_open_are_no_zeros(folder):
    """HDF5 reads zeros where it cannot open one more file."""
    layout = h5py.VirtualLayout(SHAPE, "u1")
    for row in range(COUNT):
        with h5py.File(folder / f"one{row}.h5", "w") as file:
            file["x"] = PIXELS[row:row + 1]
        layout[row:row + 1] = h5py.VirtualSource(f"one{row}.h5", "x", (1, *SHAPE[1:]))
    make = lambda file: file.create_virtual_dataset("x", layout)  # noqa: E731
    few = import_file(folder, make, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48)))
    assert few.returncode == 1 and "consists of 60 files: the program needs" in few.stderr and "48 files open (ulimit -n)" in few.stderr, few
    raised = import_file(folder, make, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 1024)))
    assert raised.returncode == 0, raised
    with h5py.File(folder / "out-train-00000-of-00001.h5") as file:
        assert file["images"][:].min() > 0


def test_two_ranks_say_an_error_once(folder):
    for options in (["--rows", "0:99"], ["--labels", "z"], ["--layout", "N"], ["--encoding", "raw", "--check", "x"]):
        result = import_file(folder, chunked((0, 60)), *options, ranks=2)
        assert result.returncode == 1 and result.stderr.count("error:") == 1, result


def test_a_file_that_is_cut_off_is_called_so(folder):
    assert import_file(folder, chunked((0, 60))).returncode == 0
    whole = (folder / "a.h5").read_bytes()
    for size in (8, 50, 96, 800, len(whole) // 2, len(whole) - 1):
        (folder / "a.h5").write_bytes(whole[:size])
        words = [CONVERTER, "import", folder / "a.h5", "--images", "x", "--labels", "y", "--out", folder / "cut"]
        result = subprocess.run(words, text=True, capture_output=True, timeout=HANG_SECONDS)
        assert result.returncode == 1 and re.search("a.h5: cannot open as HDF5.*\n.*(cut off|incomplete copy)", result.stderr), result


def test_ranks_import_the_same(folder):
    one, two = (import_file(folder, interleaved("even.h5", "odd.h5"), ranks=ranks) for ranks in (None, 2))
    assert one.returncode == two.returncode == 0, (one, two)
    assert [line for line in one.stdout.splitlines() if "uuid" in line] == [line for line in two.stdout.splitlines() if "uuid" in line]


# ---- shards that other programs have rewritten: verify and train find the same -----------------------------------------


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    where = tmp_path_factory.mktemp("shard")
    with h5py.File(where / "toy.h5", "w") as file:
        file["x"], file["y"] = PIXELS, LABELS
    result = subprocess.run([CONVERTER, "import", where / "toy.h5", "--images", "x", "--labels", "y", "--out", where / "toy"], timeout=HANG_SECONDS)
    assert result.returncode == 0
    return (where / "toy-train-00000-of-00001.h5").read_bytes()


def rewrite(name, dtype=None, **storage):
    """Writes a data set of a shard again, with its attributes."""
    def change(file):
        old = file[name]
        attributes, values = dict(old.attrs), old[:]
        del file[name]
        file.create_dataset(name, data=values.astype(dtype or old.dtype), **storage).attrs.update(attributes)
    return change


def never_written(name, rows=None):
    def change(file):
        old = file[name]
        attributes, values, dtype = dict(old.attrs), old[:], old.dtype
        del file[name]
        new = file.create_dataset(name, values.shape, dtype, **({} if rows is None else {"chunks": (20, *values.shape[1:])}))
        new.attrs.update(attributes)
        if rows is not None:
            new[:rows] = values[:rows]
    return change


def in_another_file(name):
    def change(file):
        path = os.path.join(os.path.dirname(file.filename), "other.h5")
        with h5py.File(path, "w") as other:
            other["before"] = numpy.zeros(5000, "u1")
            file.copy(name, other, name)
        del file[name]
        file[name] = h5py.ExternalLink("other.h5", name)
    return change


def all_fields(file):
    for name, dtype in {"labels": ">i4", "shapes": ">i4", "sample_ids": ">u8", "crc32c": ">u4"}.items():
        rewrite(name, dtype)(file)
    for owner in file, file["images"]:
        for name, value in list(owner.attrs.items()):
            if isinstance(value, numpy.ndarray) or numpy.issubdtype(type(value), numpy.number):
                value = numpy.asarray(value)
                owner.attrs.create(name, value.astype(value.dtype.newbyteorder(">")), dtype=value.dtype.newbyteorder(">"))


REWRITTEN = {
    "as it was": lambda file: None,
    "big-endian labels": rewrite("labels", ">i4"),
    "all fields big-endian": all_fields,
    "chunked pixels": rewrite("images", chunks=(7, 8, 6, 3)),
    "compressed pixels": rewrite("images", chunks=(7, 8, 6, 3), compression="gzip", shuffle=True, fletcher32=True),
    "pixels in another file": in_another_file("images"),
    "labels in another file": in_another_file("labels"),
}
HOLES = {
    "labels": (never_written("labels"), "data set 'labels' was never written"),
    "some labels": (never_written("labels", 40), "data set 'labels': rows 40 to 59 of 60 were never written"),
    "ids": (never_written("sample_ids"), "data set 'sample_ids' was never written"),
    "pixels": (never_written("images"), "data set 'images' was never written"),
    "some pixels": (never_written("images", 40), "data set 'images': rows 40 to 59 of 60 were never written"),
    "class names": (lambda file: (file.__delitem__("class_names"), file.create_dataset("class_names", (4,), "S1")),
                    "data set 'class_names' was never written"),
    "a filter": (lambda file: rewrite("labels", chunks=(60,), compression="lzf")(file), "is compressed with 'lzf'"),
}


def verify_and_train(tmp_path, shard, change):
    path = tmp_path / "toy-train-00000-of-00001.h5"
    path.write_bytes(shard)
    with h5py.File(path, "r+") as file:
        change(file)
    verified = subprocess.run([CONVERTER, "verify", path], text=True, capture_output=True, timeout=HANG_SECONDS)
    experiment = {"name": "toy", "model": {"kind": "cnn"}, "batch": {"global": 20, "worker": 20}, "optimizer": {"kind": "sgd"},
                  "data": {"train": str(tmp_path / "toy-train"), "image_size": 8, "resize": 8, "augmentation": "flip_crop"},
                  "learning_rate": {"base": 0.05}, "stop": {"steps": 3}, "run": {"dir": str(tmp_path / "run"), "threads": 1, "log_every_steps": 1}}
    experiment["data"].pop("augmentation")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(experiment))
    trained = subprocess.run([LAUNCHER, "1", PROGRAM, "train", tmp_path / "toy.yaml"], text=True, capture_output=True, timeout=HANG_SECONDS,
                             env=environment())
    return verified, trained


@pytest.fixture(scope="module")
def losses(tmp_path_factory, shard):
    where = tmp_path_factory.mktemp("as-it-was")
    verified, trained = verify_and_train(where, shard, REWRITTEN["as it was"])
    assert verified.returncode == trained.returncode == 0, (verified, trained)
    return [record["loss"] for record in steps(where / "run")]


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten_shards_are_read_alike(tmp_path, shard, losses, name):
    verified, trained = verify_and_train(tmp_path, shard, REWRITTEN[name])
    assert verified.returncode == 0 and "no faults found" in verified.stdout, verified
    assert trained.returncode == 0 and "HDF5-DIAG" not in trained.stderr, trained
    assert [record["loss"] for record in steps(tmp_path / "run")] == losses


@pytest.mark.parametrize("name", HOLES)
def test_what_a_shard_lacks_is_found_by_verify_and_train(tmp_path, shard, name):
    change, message = HOLES[name]
    for result in verify_and_train(tmp_path, shard, change):
        assert result.returncode != 0 and message in result.stdout + result.stderr, result
        assert "HDF5-DIAG" not in result.stderr, result
