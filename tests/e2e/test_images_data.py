"""Tests ringtrain-data on images, as users start it: several ranks, kills and resumes, real tar files, and messages."""
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zlib

import h5py
import numpy
import pytest
from matplotlib import pyplot

from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, ROOT, environment


def png(height, width, seed):
    """Makes a small PNG file, from which the converter makes a JPEG."""
    pixels = numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=numpy.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Makes train/ and val/ with three classes of different sizes."""
    folder = tmp_path_factory.mktemp("images")
    seed = 0
    for split, counts in ("train", (31, 17, 24)), ("val", (5, 6, 4)):
        for name, count in zip(("ant", "bee keeper", "wasp"), counts):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                seed += 1
                (folder / split / name / f"{name} {i}.png").write_bytes(png(10 + seed % 7, 12, seed))
    return folder


def data(*words, ranks=None, timeout=HANG_SECONDS):
    launcher = [] if ranks is None else [LAUNCHER, ranks]
    return subprocess.run([str(w) for w in [*launcher, CONVERTER, *words]], cwd=ROOT, env=environment(), text=True,
                          capture_output=True, timeout=timeout)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.thorough
def test_the_number_of_ranks_does_not_change_a_byte(images, tmp_path):
    expected = None
    for ranks in None, 1, 2, 3:
        out = tmp_path / f"ranks-{ranks}"
        result = data("images", images, "--out", out / "set", "--shards", 4, "--statistics", ranks=ranks)
        assert result.returncode == 0, result
        assert result.stdout.count("train       72 images") == 1, result.stdout
        expected = expected or digests(out)
        assert len(expected) == 9 and digests(out) == expected
    assert data("verify", tmp_path / "ranks-3" / "set").returncode == 0


def test_a_conversion_that_was_killed_is_resumed(images, tmp_path):
    words = ["images", images, "--shards", 72, "--threads", 1]
    assert data(*words, "--out", tmp_path / "whole" / "set").returncode == 0
    killed = tmp_path / "killed"
    process = subprocess.Popen([str(w) for w in [CONVERTER, *words, "--out", killed / "set"]], env=environment(),
                               stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (killed.exists() and len(list(killed.glob("*.tmp"))) >= 5):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(killed.glob("*.h5")), "it was over before the kill"
    result = data("verify", killed / "set")
    assert result.returncode == 1 and "unfinished conversion" in result.stderr
    result = data(*words, "--out", killed / "set", "--resume", ranks=2)
    assert result.returncode == 0, result
    assert "taken over (--resume)" in result.stdout, result.stdout
    assert digests(killed) == digests(tmp_path / "whole")


def test_broken_images_end_all_ranks_and_nothing_is_written(images, tmp_path):
    source = tmp_path / "in"
    shutil.copytree(images, source)
    whole = (source / "train/ant/ant 3.png").read_bytes()
    (source / "train/ant/ant 3.png").write_bytes(whole[:len(whole) // 2])
    (source / "val/wasp/wasp 0.png").write_bytes(b"")
    result = data("images", source, "--out", tmp_path / "out" / "set", ranks=3)
    assert result.returncode != 0
    assert "2 of 87 images cannot be used" in result.stderr
    assert "ant 3.png: PNG: " in result.stdout and "wasp 0.png: is empty (0 bytes)" in result.stdout
    assert "re-encoded" not in result.stdout and not (tmp_path / "out").exists()
    result = data("images", source, "--out", tmp_path / "out" / "set", "--broken", "skip", ranks=3)
    assert result.returncode == 0, result
    assert "train       71 images" in result.stdout and "broken      2, left out" in result.stdout
    assert data("verify", tmp_path / "out" / "set").returncode == 0


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_leaves_no_unfinished_file_and_says_so(images, tmp_path, stop):
    process = subprocess.Popen([str(w) for w in [CONVERTER, "images", images, "--shards", 72, "--threads", 1, "--out", tmp_path / "out" / "set"]],
                               env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/*.tmp")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.001)
    process.send_signal(stop)
    said = process.communicate(timeout=HANG_SECONDS)[1]
    assert process.returncode == 128 + stop and f"ringtrain-data: stopped by {stop.name}" in said, (process.returncode, said)
    assert not list(tmp_path.glob("out/*.lock"))
    for path in tmp_path.glob("out/*.tmp"):  # finished ones stay for --resume
        with h5py.File(path) as file:
            assert file.attrs["complete"] == 1


@pytest.mark.parametrize("kind", ["images", "names"])
def test_a_file_that_may_not_grow_leaves_nothing(images, tmp_path, kind):
    (tmp_path / "names.txt").write_text("\n".join(f"{a}{b}" for a in "bcdfghklmn" for b in ("ella", "ax", "una", "ex", "ine", "oris")))
    source = images if kind == "images" else tmp_path / "names.txt"
    done = subprocess.run(["bash", "-c", 'ulimit -f 8; exec "$0" "$@"', CONVERTER, kind, source, "--out", tmp_path / "out" / "set"],
                          env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1 and done.stderr.count("error:") == 1 and "ulimit -f" in done.stderr, done
    assert not (tmp_path / "out").exists(), list((tmp_path / "out").iterdir())


def test_ten_of_a_kind_are_listed_and_all_are_in_a_file(images, tmp_path):
    source = tmp_path / "in"
    shutil.copytree(images, source)
    broken = sorted((source / "train/ant").glob("*.png"))[:11]
    for path in broken:
        path.write_bytes(b"")
    result = data("images", source, "--out", tmp_path / "out" / "set", "--broken", "skip")
    assert result.returncode == 0, result
    notes = tmp_path / "out" / "set-notes.txt"
    told = [line for line in result.stdout.splitlines() if line.startswith(("re-encoded", "broken"))]
    assert sum(": " in line and "more: " not in line for line in told if line.startswith("broken")) == 10, told
    assert f"broken      ... and {len(broken) - 10} more: {notes} lists all of them" in told
    title, *listed = notes.read_text().splitlines()
    assert title.startswith("Notes of ringtrain-data")
    assert [line.split(":")[0].split("/", 1)[-1] for line in listed if line.startswith("broken")] == \
        [str(path).split("/", 1)[-1] for path in broken]
    kinds = [line.split()[0] for line in listed]
    assert kinds == sorted(kinds)  # the broken ones come first


def test_real_tar_files_give_the_records_of_the_folders(images, tmp_path):
    assert data("images", images, "--out", tmp_path / "folders" / "set").returncode == 0

    def records(prefix):
        with h5py.File(f"{prefix}-00000-of-00001.h5") as file:
            offsets = file["offsets"][:]
            images = file["images"][:].tobytes()
            names = [key.decode().rsplit("/", 1)[1] for key in file["keys"][:]]
            return {name: (images[offsets[i]:offsets[i + 1]], int(file["labels"][i])) for i, name in enumerate(names)}

    for form in tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT:
        source = tmp_path / f"tar-{form}"
        for folder in sorted(images.glob("*/*")):
            (source / folder.parent.name).mkdir(parents=True, exist_ok=True)
            with tarfile.open(source / folder.parent.name / f"{folder.name}.tar", "w", format=form) as archive:
                deep = "d" * 60 + "/" + "e" * 60  # longer than a header's name
                archive.add(folder, arcname=deep if form != tarfile.GNU_FORMAT else ".")
        out = tmp_path / f"out-{form}"
        result = data("images", source, "--out", out / "set", ranks=2)
        assert result.returncode == 0, result
        for split in "train", "validation":
            assert records(out / f"set-{split}") == records(tmp_path / "folders" / f"set-{split}")


def test_tar_files_give_the_labels_of_the_folders_whatever_their_names(images, tmp_path):
    """In the order of their names, pig-iron.tar comes before pig.tar, but the folder pig comes before pig-iron."""
    folders = [path for path in sorted(images.glob("*/*")) if path.is_dir()][:2]
    for folder, name in zip(folders, ["pig", "pig-iron"], strict=True):
        shutil.copytree(folder, tmp_path / "folders" / name)
        (tmp_path / "tars").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "tars" / f"{name}.tar", "w") as archive:
            archive.add(folder, arcname=".")
    labels = {}
    for kind in "folders", "tars":
        out = tmp_path / f"out-{kind}" / "set"
        result = data("images", tmp_path / kind, "--out", out)
        assert result.returncode == 0, result
        with h5py.File(f"{out}-train-00000-of-00001.h5") as file:
            labels[kind] = sorted((key.decode().split("/")[-2].removesuffix(".tar"), int(label))
                                  for key, label in zip(file["keys"][:], file["labels"][:], strict=True))
    assert labels["tars"] == labels["folders"] and {label for _, label in labels["tars"]} == {0, 1}


def test_files_say_what_the_schema_asks_for(images, tmp_path):
    assert data("images", images, "--out", tmp_path / "set", "--license", "CC0", "--seed", 7).returncode == 0
    with h5py.File(tmp_path / "set-train-00000-of-00001.h5") as file:
        attributes = dict(file.attrs)
        for name, value in {"schema": b"ringtrain", "kind": b"image", "split": b"train", "dataset_name": b"set",
                            "num_samples": 72, "num_samples_total": 72, "shard_index": 0, "num_shards": 1,
                            "shuffle_seed": 7, "num_classes": 3, "license": b"CC0", "created_by": b"ringtrain-data",
                            "complete": 1}.items():
            found = attributes[name].encode() if isinstance(attributes[name], str) else attributes[name]
            assert found == value, name
        assert list(attributes["schema_version"]) == [1, 0]
        assert len(attributes["mean"]) == len(attributes["std"]) == 3
        kinds = {name: (set_.dtype.kind, set_.dtype.itemsize) for name, set_ in file.items()}
        assert kinds.pop("class_names")[0] == kinds.pop("class_ids")[0] == kinds.pop("keys")[0] == "S"
        assert kinds == {"images": ("u", 1), "offsets": ("u", 8), "labels": ("i", 4), "shapes": ("i", 4),
                         "sample_ids": ("u", 8), "crc32c": ("u", 4)}
        for set_ in file.values():
            assert set_.chunks is None and set_.compression is None
            if set_.nbytes >= 4096:
                assert set_.id.get_offset() % 4096 == 0
        assert file["images"].attrs["encoding"] in ("jpeg", b"jpeg")
        assert list(file["class_ids"]) == [b"ant", b"bee keeper", b"wasp"]


@pytest.mark.parametrize("words, message", [
    (["images"], "expected one INPUT"),
    (["images", "nowhere", "--out", "OUT"], "nowhere: does not exist"),
    (["images", "IN", "--out", "OUT", "--shards", "0"], "--shards: '0', expected a whole number of at least 1"),
    (["images", "IN", "--out", "OUT", "--quality", "101"], "--quality 101: expected 1 to 100"),
    (["images", "IN", "--out", "OUT", "--size", "x"], "--size: 'x', expected a whole number of at least 1"),
    (["images", "IN", "--out", "OUT", "--seed", "18446744073709551616"],
     "--seed: '18446744073709551616', expected a whole number from 0 to 18446744073709551615"),
    (["images", "IN", "--out", "-x"], "--out is '-x', and names that begin with '-' are taken for options"),
    (["images", "IN", "--out", "OUT/"], "--out ends in a folder"),
    (["images", "IN", "--out", "OUT\n2"], "which has a line end or another control character"),
    (["images", "IN", "--out", "OUT", "--sort"], "unknown option --sort"),
    (["import", "nowhere.h5", "--images", "x", "--labels", "y", "--out", "OUT"], "nowhere.h5: cannot open"),
])
def test_mistakes_give_one_clear_error(images, tmp_path, words, message):
    replaced = [str(images) if w == "IN" else w.replace("OUT", str(tmp_path / "out")) for w in words]
    result = data(*replaced)
    assert result.returncode == 1
    assert message in result.stderr and result.stderr.count("error:") == 1, result.stderr


def sheet_of(*words):
    return subprocess.run([str(word) for word in (sys.executable, ROOT / "results" / "contact_sheet.py", *words)], text=True,
                          capture_output=True, timeout=HANG_SECONDS)


@pytest.mark.parametrize("options", [[], ["--encoding", "raw", "--size", "12"]])
@pytest.mark.thorough
def test_a_contact_sheet_shows_its_images_and_depends_on_the_seed_alone(images, tmp_path, options):
    assert data("images", images, "--out", tmp_path / "set", "--shards", 3, *options).returncode == 0
    sheets = []
    for seed in 1, 1, 2:
        result = sheet_of(tmp_path / "set", "-o", tmp_path / "sheet.png", "--count", 5, "--columns", 3, "--seed", seed)
        assert result.returncode == 0 and f"5 of 72 images of {tmp_path / 'set-train'}" in result.stdout, result
        sheets.append((tmp_path / "sheet.png").read_bytes())
    assert sheets[0] == sheets[1] != sheets[2]
    pixels = pyplot.imread(tmp_path / "sheet.png")[..., :3]
    height, width, _ = pixels.shape
    # The images are noise with many colours. The last place of the second row is empty, and there is text below the images.
    assert numpy.unique(pixels[:height // 3, :width // 4].reshape(-1, 3), axis=0).shape[0] > 50
    assert pixels[height // 2:, int(width * 0.7):].min() == 1 and pixels[int(height * 0.4):int(height * 0.49), :width // 3].min() < 0.2


def test_a_contact_sheet_of_something_else_is_refused(images, tmp_path):
    result = sheet_of(tmp_path / "missing", "-o", tmp_path / "sheet.png")
    assert result.returncode == 1 and "there is no data set at" in result.stderr and "Traceback" not in result.stderr, result
    (tmp_path / "names.txt").write_text("ann\nbea\ncleo\n")
    assert data("names", tmp_path / "names.txt", "--out", tmp_path / "names").returncode == 0
    result = sheet_of(tmp_path / "names", "-o", tmp_path / "sheet.png")
    assert result.returncode == 1 and "is a data set of kind 'text'" in result.stderr, result


@pytest.mark.thorough
def test_eurosat_converts_and_verifies(tmp_path):
    eurosat = ROOT.parent / "shared" / "data" / "eurosat"
    if not eurosat.is_dir():
        pytest.skip("../shared/data/eurosat is not there")
    result = data("images", eurosat, "--out", tmp_path / "eurosat", ranks=2)
    assert result.returncode == 0, result
    result = data("verify", tmp_path / "eurosat")
    assert result.returncode == 0 and "no faults found" in result.stdout, result
    assert "5,000 images" in result.stdout and "10 classes" in result.stdout
    assert sheet_of(tmp_path / "eurosat", "-o", tmp_path / "sheet.png").returncode == 0
    assert os.path.getsize(tmp_path / "sheet.png") > 10000
