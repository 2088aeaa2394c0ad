"""Tests HDF5 arrays of MATLAB, Octave, R, Julia and h5py: in which order they are read, and what is said of them."""
import fcntl
import os
import re
import subprocess

import h5py
import numpy
import pytest
import yaml

from array_files import (COUNT, FLOATS, GREY, LABELS, MASKS, MATLAB_7, PIXELS, REVERSED, REVERSED_GREY, Arrays, axes_called, cell_of,
                         group, import_arrays, matlab, named, one_label, references)
from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, PROGRAM, environment

UINT8 = matlab("uint8")


def one_value(value):
    """Pixels as floats. In row 5 one of them, and in row 7 another one, is no number."""
    pixels = PIXELS.astype("f8")
    pixels[5, 2, 1, 0] = value
    pixels[7, 0, 0, 0] = numpy.nan
    return pixels


NOTE = "note        read as {0}; arrays of h5create (MATLAB), R and Julia are usually {1}: --layout {1}. results/contact_sheet.py shows the pictures"

# The file, the options, and what is printed. The pictures that come out are always PIXELS or GREY, the labels LABELS.
READ = {
    "MATLAB's mark": (Arrays(REVERSED, of_x=UINT8), [], ["pixels 8 x 6 x 3, stored NCWH as MATLAB does\n"]),
    "MATLAB's first bytes": (Arrays(REVERSED, start=MATLAB_7), [], ["stored NCWH as MATLAB does\n"]),
    "R": (Arrays(REVERSED, of_x={"rhdf5-NA.OK": 1}), [], ["stored NCWH as R does\n"]),
    "Octave": (Arrays(REVERSED, group="s/", of_group={"OCTAVE_NEW_FORMAT": 1}), [], ["stored NCWH as Octave does\n"]),
    "JLD2": (Arrays(REVERSED, start=b"HDF5-based Julia Data Format, version 0.1.1\0"), [], ["stored NCWH as Julia does\n"]),
    "JLD": (Arrays(REVERSED_GREY, start=b"Julia data file (HDF5), version 0.1.3\0"), [], ["stored NWH as Julia does\n"]),
    "unmarked NHWC": (Arrays(), [], ["stored NHWC\n", "!note"]),
    "unmarked NCHW": (Arrays(PIXELS.transpose(0, 3, 1, 2)), [], ["stored NCHW\n", NOTE.format("NCHW", "NCWH")]),
    "unmarked grey": (Arrays(GREY), [], ["pixels 8 x 6 x 1, stored NHW\n", NOTE.format("NHW", "NWH")]),
    "unmarked, with --layout": (Arrays(REVERSED), ["--layout", "NCWH"], ["stored NCWH as --layout says\n", "!note"]),
    "labels of the axes": (Arrays(axes_called(PIXELS.transpose(0, 2, 1, 3), "N", "W", "H", "C")), [],
                           ["stored NWHC as the labels of its axes say\n"]),
    "words at the axes": (Arrays(axes_called(GREY.transpose(0, 2, 1), "Batch", "width", "height")), [],
                          ["stored NWH as the labels of its axes say\n", "!note"]),
    "wrong labels of the axes, with --layout": (Arrays(axes_called(PIXELS, "N", "time", "", "C")), ["--layout", "NHWC"],
                                                ["as --layout says\n"]),
    "labels from 1": (Arrays(y=LABELS + 1), ["--first-label", "1"], ["classes     4, 15 to 15 training images each", "!warning"]),
    "labels from 1, as big numbers": (Arrays(y=(LABELS + 2**20).astype("u8")), ["--first-label", str(2**20)], ["classes     4,"]),
}

# What is only said: the file, the options, what is printed.
SAID = {
    "masks": (Arrays(MASKS), [], ["no pixel of the 60 images is above 1, expected 0 to 255: if its values are 0 and 1, multiply them by 255"]),
    "masks among the rows": (Arrays(numpy.where(numpy.arange(COUNT)[:, None, None, None] < 9, PIXELS, MASKS)), ["--rows", "9:30"],
                             ["no pixel of the 21 images is above 1,"]),
    "black pictures": (Arrays(PIXELS * 0), [], ["!no pixel", "warning     60 pictures are all zeros, such as x[0]\n"]),
    "two black pictures": (Arrays(numpy.where(numpy.arange(COUNT)[:, None, None, None] // 2 == 4, 0, PIXELS)), [],
                           ["warning     2 pictures are all zeros, such as x[8]\n", "!nearly black"]),
    "four bits": (Arrays(PIXELS // 17), [], ["no pixel of the 60 images is above 14, expected 0 to 255: the pictures are nearly black",
                                            "numpy.rint(x * (255 / 14)).astype('u1')"]),
    "five bits": (Arrays(PIXELS // 15), [], ["!nearly black", "!no pixel"]),
    "names of labels": (Arrays(y=named(ant=0, bee=1, cat=2, dog=3)), [], ["classes     0 is 'ant', 1 is 'bee', 2 is 'cat', ...\n", "!warning"]),
    "names of labels with a gap": (Arrays(y=named(ant=0, bee=1, cat=2, dog=3, eel=7)), [],
                                   ["the file names its labels (0 is 'ant', 7 is 'eel'), but they do not run from 0 without a gap", "--class-list"]),
    "names of labels and a list": (Arrays(y=named(ant=0, bee=1, cat=2, dog=3)), ["--class-list", "a\nb\nc\nd\n"], ["classes     0 is 'a', 1 is 'b'"]),
    "labels from 1 in two splits": (Arrays(y=LABELS + 1), ["--validation", "0.4"],
                                    ["once:warning", "class 0 has no pictures in the train and validation splits: do the labels count from 1?"]),
    "a gap in two splits": (Arrays(y=LABELS + LABELS // 2), ["--validation", "0.4"],
                            ["once:warning", "1 of 5 classes have no image in the train and validation splits: '2'"]),
    "-1 in one byte in two splits": (Arrays(y=numpy.where(LABELS == 3, 255, LABELS).astype("u1")), ["--validation", "0.4"],
                                     ["once:warning", "in the train and validation splits: '3', '4',", "label 255 is often -1 in one byte"]),
    "--first-label that leaves class 0 empty": (Arrays(y=LABELS + 2), ["--first-label", "1"],
                                                ["!Give --first-label", "1 of 5 classes have no image in the train split: '0'"]),
    "labels from 1": (Arrays(y=LABELS + 1), [], ["do the labels count from 1? They must count from 0. Give --first-label 1"]),
    "-1 in one byte": (Arrays(y=numpy.where(LABELS == 3, 255, LABELS).astype("u1")), [], ["label 255 is often -1 in one byte"]),
    "names of several words": (Arrays(), ["--class-list", "0 polar bear\n1 lion\n2 frog\n3 newt\n"],
                               ["classes     0 is 'polar bear', 1 is 'lion', 2 is 'frog', ...\n"]),
    "a comment in a list": (Arrays(), ["--class-list", "# my classes\na\nb\nc\nd\n"], ["classes     0 is 'a', 1 is 'b'", "!warning"]),
    "a class called #": (Arrays(), ["--class-list", "a\n# hash\nc\nd\n"], ["classes     0 is 'a', 1 is 'hash', 2 is 'c'", "!warning"]),
    "a list of an old Mac": (Arrays(), ["--class-list", "a\rb\rc\rd\r"], ["classes     0 is 'a', 1 is 'b'"]),
    "names without numbers": (Arrays(), ["--class-list", "polar bear\nlion\nfrog\nnewt"], ["classes     0 is 'bear', 1 is 'lion'"]),
    "a tab": (Arrays(), ["--class-list", "ice bear\tpolar bear\nlion\t  big cat\nfrog\nnewt"], ["0 is 'polar bear', 1 is 'big cat', 2 is 'frog'"]),
    "two classes from 1": (Arrays(y=LABELS % 2 + 1), ["--first-label", "1", "--class-list", "a\nb"], ["classes     1 is 'a', 2 is 'b'\n"]),
}

# What is refused: the file, the options, the error, the advice.
REFUSED = {
    "logical pictures": (Arrays(REVERSED, of_x=matlab("logical")), [], "'x' holds MATLAB's logical values, 0 and 1, expected pixels from 0 to 255",
                         "in MATLAB: x = uint8(x) * 255;"),
    "text of MATLAB": (Arrays(y=numpy.full((5, COUNT), 97, "u2"), of_y=matlab("char")), [], "'y' holds text, expected numbers from 0",
                       "the same list for all splits; in MATLAB: classes = {'cat', 'dog'}; [~, y] = ismember(cellstr(y), classes); y = y - 1;"),
    "empty labels": (Arrays(y=numpy.array([0, 0], "u8"), of_y=matlab("double", MATLAB_empty=numpy.uint8(1))), [], "'y' is empty in MATLAB", "filled"),
    "a cell of labels": (Arrays(y=references, of_y=matlab("cell")), [], "'y' is a cell array of MATLAB", "y = cell2mat(y);"),
    "a cell of names": (Arrays(y=cell_of("char", numpy.array([[99], [97]], "u2")), of_y=matlab("cell")), [], "'y' is a cell array of MATLAB",
                        "the same list for all splits; in MATLAB: classes = {'cat', 'dog'}; [~, y] = ismember(y, classes); y = y - 1;"),
    "strings of MATLAB": (Arrays(y=numpy.zeros((1, 6), "u4"), of_y=matlab("string", MATLAB_object_decode=numpy.int32(3))), [], "an object of MATLAB",
                          "[~, y] = ismember(y, classes);"),
    "names": (Arrays(y=numpy.array([b"cat", b"dog"] * 30)), [], "'y' holds text, expected numbers from 0",
              "the same list for all splits: classes = ['cat', 'dog']; y = [classes.index(name) for name in labels.asstr()[:]]"),
    "numbers as text": (Arrays(y=numpy.array([b"1", b"10"] * 30)), [], "'y' holds text", "labels[:].astype(int)"),
    "labels of axes that are no order": (Arrays(axes_called(PIXELS, "N", "time", "", "C")), [],
                                         "the labels of the axes of 'x' are 'N', 'time', '', 'C', expected N, H, W and C", "--layout"),
    "labels of axes that do not fit": (Arrays(axes_called(PIXELS, "N", "C", "H", "W")), [],
                                       "does not fit the labels of its axes, NCHW: 8 channels, expected 1 or 3", "--layout"),
    "a field of a struct": (Arrays(PIXELS / 255, group="imdb/images/", of_x=matlab("double")), [], "holds f64, not u8",
                            "in MATLAB: imdb.images.x = uint8(round(imdb.images.x * 255));"),
    "too few labels": (Arrays(y=LABELS[:59]), [], "'x' has 60 rows, but 'y' has 59", "if they are the last ones, cut them off: x[:59]"),
    "labels in batches": (Arrays(y=LABELS.reshape(6, 10)), [], "the shape (6, 10)", "in batches, join them: labels[:].reshape(-1)"),
    "two labels of each image": (Arrays(y=numpy.stack([LABELS, LABELS], 1)), [], "the shape (60, 2)", "choose one: labels[:, 0];"),
    "two labels of each image in MATLAB": (Arrays(y=numpy.stack([LABELS, LABELS]), of_y=matlab("double")), [], "the shape (2, 60)", "y = y(:, 1);"),
    "labels from 0 and --first-label": (Arrays(), ["--first-label", "1"], "row 0 of 'y' is 0, expected 1 to 3", "leave out --first-label"),
    "JPEG as text": (Arrays(numpy.array([b"\xff\xd8\xff\xe0"] * COUNT, object)), [], "'x' holds string, not u8", "ends at the first zero byte"),
    "paths": (Arrays(numpy.array([f"cats/{i}.JPG" for i in range(COUNT)], object)), [],
              "'x' holds string, not u8", "images FOLDER --list list.txt"),
    "fields": (Arrays(numpy.zeros(COUNT, [("image", "u1", (8, 6, 3)), ("label", "i4")])), [], "records of several fields", "f['images'] = x['FIELD']"),
    "a cell of pictures": (Arrays(references, of_x=matlab("cell")), [], "'x' is a cell array of MATLAB", "x = cat(4, x{:});"),
    "a sparse matrix": (Arrays(y=group, of_y=matlab("double", MATLAB_sparse=numpy.uint64(60))), [], "'y' is a sparse matrix of MATLAB", "y = full(y);"),
    "a categorical": (Arrays(y=numpy.zeros((1, 6), "u4"), of_y=matlab("categorical", MATLAB_object_decode=numpy.int32(3))), [],
                      "'y' is an object of MATLAB, such as a categorical or a table", "[~, y] = ismember(cellstr(y), classes); y = y - 1;"),
    "a mistyped label": (Arrays(y=one_label(1000000)), [], "row 5 of 'y' is 1000000, which is not a label: expected less than 10960", "--class-list"),
    "a label of 64 bits": (Arrays(y=one_label(2**64 - 3, "u8")), [], "row 5 of 'y' is 18446744073709551613, which is not a label", "--rows"),
    "labels from 1 and a list": (Arrays(y=LABELS + 1), ["--class-list", "a\nb\nc\nd"], "row 3 of 'y' is 4, expected 0 to 3",
                                 "the labels run from 1 to 4: --first-label 1"),
    "a label below the first": (Arrays(), ["--first-label", "1"], "row 0 of 'y' is 0, expected 1 to 3", "--first-label"),
    "0 to 1": (Arrays(FLOATS), [], "'x' holds f64, not u8: the first 60 images have 0.00784314 to 0.996078", "numpy.rint(x * 255).astype('u1')"),
    "NaN": (Arrays(one_value(numpy.nan)), [], "'x' holds f64, not u8: row 5 has NaN", "numpy.isfinite finds them"),
    "infinity": (Arrays(one_value(-numpy.inf).transpose(1, 2, 3, 0), of_x=matlab("double")), [], "not u8: row 5 has an infinite value",
                 "no pixel can be made of it: replace such values (isfinite finds them)"),
    "-1 to 1": (Arrays(FLOATS * 2 - 1), [], "have -0.984314 to 0.992157", "numpy.rint((x + 1) * 127.5).astype('u1')"),
    "0 to 255": (Arrays(PIXELS.astype("f4")), [], "'x' holds f32, not u8: the first 60 images have 2 to 254", "numpy.rint(x).astype('u1')"),
    "16 bits": (Arrays(PIXELS.astype("u2") * 257), [], "have 514 to 65278", "(x // 257).astype('u1')"),
    "12 bits in MATLAB": (Arrays(REVERSED.astype("u2") * 16, of_x=matlab("uint16")), [], "have 32 to 4064", "x = uint8(double(x) * (255 / 4095));"),
    "8 bits with a sign in MATLAB": (Arrays(REVERSED.astype("i2") - 128, of_x=matlab("int16")), [], "'x' holds i16", "same numbers for all splits"),
    "another range": (Arrays(FLOATS - 4), [], "have -3.99216 to", "scale them to 0 to 255 first"),
    "0 to 1 in MATLAB": (Arrays(REVERSED / 255, of_x=matlab("double")), [], "'x' holds f64, not u8", "in MATLAB: x = uint8(round(x * 255));"),
    "16 bits in MATLAB": (Arrays(REVERSED.astype("u2") * 257, of_x=matlab("uint16")), [], "'x' holds u16", "x = uint8(x / 257);"),
    "alpha": (Arrays(numpy.concatenate([PIXELS, PIXELS[..., :1]], 3)), [], "as NHWC: 4 channels, expected 1 or 3", "x[..., :3]"),
    "alpha, NCHW": (Arrays(PIXELS.transpose(0, 3, 1, 2)[:, [0, 1, 2, 0]]), [], "as NCHW: 4 channels, expected 1 or 3", "x[:, :3]"),
    "two channels": (Arrays(PIXELS[..., :2]), [], "as NHWC: 2 channels, expected 1 or 3", "x[..., :1]"),
    "alpha in MATLAB": (Arrays(REVERSED[:, [0, 1, 2, 0]], of_x=UINT8), [], "as NCWH: 4 channels, expected 1 or 3", "X = X(:,:,1:3,:);"),
    "--layout": (Arrays(REVERSED), ["--layout", "HWCN"], r"does not fit --layout HWCN: 6 channels, expected 1 or 3",
                 "the letters follow the axes as h5py and h5dump show them; MATLAB's HWCN is NCWH here"),
    "--layout of grey pictures": (Arrays(REVERSED_GREY), ["--layout", "HWN"], "does not fit --layout HWN: 8 images, but 60 labels",
                                  "MATLAB's HWN is NWH here"),
    "one-hot": (Arrays(y=numpy.eye(4)[LABELS]), [], "the shape (60, 4), expected (N)", "labels.argmax(axis=1)"),
    "one-hot, reversed": (Arrays(y=numpy.eye(4)[LABELS].T), [], "the shape (4, 60), expected (N)", "labels.argmax(axis=0)"),
    "one-hot in MATLAB": (Arrays(y=numpy.eye(4)[LABELS].T, of_y=matlab("double")), [], "expected (N)", "[~, y] = max(y, [], 2); y = y - 1;"),
    "swapped": (Arrays(LABELS, PIXELS), [], "'y' has the shape (60, 8, 6, 3), expected (N)", "are --images and --labels swapped?"),
    "MATLAB 5": (b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + bytes(500), [], "is a .mat file of MATLAB's formats v5 to v7, not an HDF5 file", "'-v7.3')"),
    "MATLAB 7.3, cut off": (MATLAB_7 + bytes(500), [], "is a .mat file of MATLAB 7.3 that is cut off", "copy or make it again"),
    "a list in another order": (Arrays(), ["--class-list", "0 a\n1 b\n3 d\n2 c\n"], "class 3 has the id '3', but its rows have the label 2", "sort the lines"),
    "a list with commas": (Arrays(), ["--class-list", "id,name\n0,a\n1,b\n2,c\n3,d\n"], "looks like a table, such as 'id,name'", "without a header"),
    "a missing name": (Arrays(), ["--labels", "labels"], "has no data set 'labels'", "its data sets: x u8 (60, 8, 6, 3), y i64 (60)"),
    "a group": (Arrays(group="data/"), ["--labels", "data"], "'data' is not a data set", "its data sets: data/x u8 (60, 8, 6, 3), data/y i64 (60)"),
    "no name": (Arrays(), ["--labels", ""], "--labels KEY is missing", "its data sets: x u8"),
    "an external link": (Arrays(y=lambda file, name: file.__setitem__(name, h5py.ExternalLink("other.h5", "/z"))), [],
                         "'y' is a link to '/z' in the file 'other.h5', which has no '/z'", "copy what the link names"),
}


def expect_words(result, words):
    """Words that begin with ! must not be printed. Those that begin with once: begin one line."""
    for word in words:
        if word.startswith("once:"):
            assert ("\n" + result.stdout).count("\n" + word[5:]) == 1, result
            continue
        assert (word.lstrip("!") in result.stdout) != word.startswith("!"), (word, result)


def expect_imported(folder, arrays, options, words):
    """The arrays must be imported, and the words be printed. Returns the result."""
    result = import_arrays(folder, arrays, options)
    assert result.returncode == 0, result
    expect_words(result, words)
    return result


@pytest.mark.parametrize("name", READ)
def test_the_order_of_the_axes_is_known(tmp_path, name):
    result = expect_imported(tmp_path, *READ[name])
    with h5py.File(tmp_path / "out-train-00000-of-00001.h5") as file:
        rows = [int(key.decode().split("[")[1][:-1]) for key in file["keys"]]
        wanted = GREY[..., None] if "x 1, stored" in result.stdout else PIXELS
        assert numpy.array_equal(file["images"], wanted[rows]) and numpy.array_equal(file["labels"], LABELS[rows])


@pytest.mark.parametrize("name", SAID)
def test_what_is_odd_is_said(tmp_path, name):
    expect_imported(tmp_path, *SAID[name])


@pytest.mark.parametrize("name", REFUSED)
def test_the_advice_fits_the_program_that_wrote_the_array(tmp_path, name):
    arrays, options, error, advice = REFUSED[name]
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    result = import_arrays(tmp_path, arrays, options)
    assert result.returncode == 1 and error in result.stderr and advice in result.stderr.split("\n")[1], result
    assert result.stderr.count("\n") == 2 and not list(tmp_path.glob("out*.h5")), result


def test_a_file_that_may_not_be_read_is_not_made_again(tmp_path):
    assert import_arrays(tmp_path, Arrays()).returncode == 0
    experiment = {"name": "toy", "model": {"kind": "cnn"}, "batch": {"global": 20, "worker": 20}, "data": {"train": str(tmp_path / "out-train")},
                  "optimizer": {"kind": "sgd"}, "learning_rate": {"base": 0.05}, "stop": {"steps": 3}}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(experiment))
    as_others = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # root may read every file
    for path, *words in ((tmp_path / "out-train-00000-of-00001.h5", PROGRAM, "plan", tmp_path / "toy.yaml"),
                         (tmp_path / "arrays.mat", CONVERTER, "import", tmp_path / "arrays.mat", "--images", "x", "--labels", "y", "--out", "o")):
        path.chmod(0)
        result = subprocess.run([*as_others, *words], text=True, capture_output=True, timeout=HANG_SECONDS, env=environment())
        said = " ".join(result.stderr.split())
        assert result.returncode == 1 and "cannot open: Permission denied" in said and f"chmod a+r {path}" in said, result
        assert "again" not in said, result


def test_a_file_that_is_being_written_is_refused(tmp_path):
    Arrays().write(tmp_path / "arrays.mat")
    words = ["import", tmp_path / "arrays.mat", "--images", "x", "--labels", "y", "--out", tmp_path / "out", "--force"]
    with open(tmp_path / "arrays.mat", "r+b") as file:
        for lock, more, code in (fcntl.LOCK_EX, {}, 1), (fcntl.LOCK_EX, {"HDF5_USE_FILE_LOCKING": "FALSE"}, 0), (fcntl.LOCK_SH, {}, 0):
            fcntl.flock(file, lock)
            result = subprocess.run([CONVERTER, *words], text=True, capture_output=True, timeout=HANG_SECONDS, env=environment(more))
            assert result.returncode == code, result
            if code == 1:
                assert "arrays.mat: is open for writing in another process\n  wait until it is closed" in result.stderr, result
    result = subprocess.run([LAUNCHER, "2", CONVERTER, *words], text=True, capture_output=True, timeout=HANG_SECONDS, env=environment())
    assert result.returncode == 0, result


def test_an_import_does_not_replace_its_input(tmp_path):
    path = tmp_path / "out-train-00000-of-00001.h5"
    Arrays().write(path)
    before = path.read_bytes()
    words = [CONVERTER, "import", path, "--images", "x", "--labels", "y", "--out", tmp_path / "out", "--force"]
    result = subprocess.run(words, text=True, capture_output=True, timeout=HANG_SECONDS, env=environment())
    assert result.returncode == 1 and f"{path}: is the input, and this conversion would replace it" in result.stderr, result
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_share_that_holds_out_nothing_is_warned_of(tmp_path):
    result = import_arrays(tmp_path, Arrays(y=numpy.arange(60)), ["--validation", "0.1"])
    assert result.returncode == 0 and "--validation 0.1 held out no image, because no class has two" in result.stdout, result


def test_an_array_that_h5py_added_to_a_file_of_matlab_has_its_own_order(tmp_path):
    path = tmp_path / "a.mat"
    Arrays(REVERSED, of_x={"MATLAB_class": numpy.bytes_("uint8")}, start=MATLAB_7).write(path)
    with h5py.File(path, "r+") as file:
        file["added"] = PIXELS
    done = subprocess.run([CONVERTER, "import", path, "--images", "added", "--labels", "y", "--out", tmp_path / "out"], capture_output=True, text=True,
                          timeout=HANG_SECONDS, env=environment())
    assert done.returncode == 0 and "MATLAB" not in done.stdout, done
    with h5py.File(next(tmp_path.glob("out-train*"))) as file:
        assert set(map(tuple, file["shapes"][:])) == {PIXELS.shape[1:]}


def test_a_class_that_one_split_lacks_is_no_sign_of_labels_from_1(tmp_path):
    labels = numpy.where(numpy.arange(60) == 0, 0, 1 + numpy.arange(60) % 3)
    result = import_arrays(tmp_path, Arrays(y=labels), ["--validation", "0.2"])
    assert result.returncode == 0 and "1 of 4 classes have no image in the validation split: '0'" in result.stdout, result
    assert "count from 1" not in result.stdout, result


def test_a_file_whose_writer_was_killed_is_called_so(tmp_path):
    path = tmp_path / "killed.h5"
    code = f"import h5py, os; file = h5py.File({str(path)!r}, 'w', libver='latest'); file['x'] = [1]; file.flush(); os._exit(0)"
    subprocess.run(["/usr/bin/python3", "-c", code], timeout=HANG_SECONDS, check=True)
    result = subprocess.run([CONVERTER, "import", path, "--images", "x", "--labels", "y", "--out", tmp_path / "out"], text=True, capture_output=True,
                            timeout=HANG_SECONDS)
    assert re.search(rf"killed.h5: is open for writing, or its writer was killed\n  close it there; .*h5clear -s {path}", result.stderr), result


def test_the_synopsis_shows_what_is_required():
    page = subprocess.run([CONVERTER, "import", "--help"], text=True, capture_output=True, timeout=HANG_SECONDS).stdout
    assert "import FILE.h5 --images KEY --labels KEY [--layout LETTERS]" in " ".join(page.split()), page


def test_other_files_given_to_verify_and_plan_are_called_so(tmp_path):
    for name in "set.mat", "set.h5":
        Arrays().write(tmp_path / name)
    experiment = {"name": "toy", "model": {"kind": "cnn"}, "batch": {"global": 20, "worker": 20}, "data": {"train": str(tmp_path / "set.mat")},
                  "optimizer": {"kind": "sgd"}, "learning_rate": {"base": 0.05}, "stop": {"steps": 3}}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(experiment))
    for name, *words in (("set.mat", CONVERTER, "verify", tmp_path / "set.mat"), ("set.mat", PROGRAM, "plan", tmp_path / "toy.yaml"),
                         ("set.h5", CONVERTER, "verify", tmp_path / "set.h5")):
        result = subprocess.run(words, text=True, capture_output=True, timeout=HANG_SECONDS, env=environment())
        assert result.returncode != 0, result
        assert (f"{name}: is an HDF5 file without the attribute 'schema', so it is not a data set of ringtrain: convert it with bin/ringtrain-data import {tmp_path / name} --images KEY "
                f"--labels KEY --out {tmp_path}/set\n") in result.stderr, result


def test_plan_warns_of_pictures_that_are_enlarged(tmp_path):
    assert import_arrays(tmp_path, Arrays()).returncode == 0
    experiment = {"name": "toy", "model": {"kind": "cnn"}, "batch": {"global": 20, "worker": 20}, "optimizer": {"kind": "sgd"},
                  "data": {"train": str(tmp_path / "out-train")}, "learning_rate": {"base": 0.05}, "stop": {"steps": 3}}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(experiment))
    for size, warns in (16, False), (32, True):
        result = subprocess.run([PROGRAM, "plan", tmp_path / "toy.yaml", f"data.image_size={size}", "data.resize=0"], text=True, capture_output=True,
                                timeout=HANG_SECONDS, env=environment())
        text = " ".join((result.stdout + result.stderr).split())
        assert result.returncode == 0 and ("have 8 x 6 pixels, and data.image_size is 32" in text) == warns, result


def test_each_data_set_is_named_once_also_where_groups_hold_themselves(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = PIXELS, LABELS
        for i in range(12):
            file[f"a{i}/up"] = h5py.SoftLink("/")
        file["b/z"] = LABELS
        file["c"] = file["b"]
    done = subprocess.run([CONVERTER, "import", tmp_path / "a.h5", "--images", "no", "--labels", "y", "--out", tmp_path / "o"],
                          capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1 and "its data sets: x u8 (60, 8, 6, 3), y i64 (60), b/z i64 (60)\n" in done.stderr, done
