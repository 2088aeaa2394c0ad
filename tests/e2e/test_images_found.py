"""Tests which images ringtrain-data finds in folders and tar files of strangers, and what it says about the others."""
import os
import re
import shutil
import tarfile
import unicodedata
import zlib

import h5py
import numpy
import pytest
from PIL import Image, ImageOps

from test_images_data import data

ORIENTATION = 0x112


def picture(path, seed=None, orientation=None, form=None, shape=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    if seed is None:  # from the part of the path that is the same in every run of the tests
        seed = zlib.crc32(re.sub(r".*?/pytest-\d+/", "", str(path)).encode())
    pixels = numpy.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype="u1")
    exif = Image.Exif()
    if orientation:
        exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(path, form, **({"exif": exif} if orientation else {}))


def stored(prefix):
    """Returns (label, bytes) of each record by its key, without the ending of tar files."""
    with h5py.File(f"{prefix}-00000-of-00001.h5") as file:
        offsets, images = file["offsets"][:], file["images"][:].tobytes()
        return {key.decode().replace(".tar/", "/"): (int(label), images[offsets[i]:offsets[i + 1]])
                for i, (key, label) in enumerate(zip(file["keys"][:], file["labels"][:], strict=True))}


def good(*words):
    result = data("images", *words)
    assert result.returncode == 0, result
    return result.stdout


def bad(*words):
    result = data("images", *words)
    assert result.returncode == 1 and result.stderr.count("error:") == 1, result
    return result.stderr


def pack(folder, archive, arcname="."):
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname)


@pytest.mark.parametrize("train, validation, test", [
    ("Train", None, "Test"), ("training", None, "testing"), ("train", "valid", "test"), ("TRAIN", "dev", "holdout"),
    ("train_set", "eval", "test_set"), ("train2017", "val2017", "test2017"), ("Training", "Validation", None)])
def test_names_of_splits_are_known_in_any_case(tmp_path, train, validation, test):
    for split in filter(None, (train, validation, test)):
        for name in "cat", "dog":
            for n in range(2):
                picture(tmp_path / "in" / split / name / f"{n}.jpg")
    said = good(tmp_path / "in", "--out", tmp_path / "set")
    assert len(stored(tmp_path / "set-train")) == 4 and "classes     2, 2 to 2" in said
    assert f"validation  {'4 images' if validation else 'none'}" in said
    if test:
        assert f"ringtrain-data images {tmp_path}/in/{test} --split validation --out {tmp_path}/set-test; --class-list" in said
        assert f"left out    4 file(s) in {test}/, which is neither training nor validation data" in said
        assert f"files       {12 if validation else 8} found = {8 if validation else 4} used + 0 broken + 4 left out" in said


@pytest.mark.parametrize("folders, message", [
    (["fold1/cat", "fold1/dog", "fold2/cat", "fold2/dog"], "hold the same folders ('cat', 'dog')"),
    (["cat/train", "cat/val", "dog/train", "dog/val"], "every folder of a class holds a folder that is called like a split"),
    (["cat", "dog", "test"], "test: is called like a split, but lies beside 'cat', 'dog'"),
    (["Train/cat", "train/cat"], "has both Train/ and train/"),
    (["train/cat", "val/cat", "dev/cat"], "has both dev/ and val/"),
    (["test/cat", "test/dog"], "has test/ but no train/"),
    (["pets/cat", "pets/dog"], "its only class, 'pets', holds no images but the folders 'cat', 'dog'"),
    (["pets/cat", "pets/dog", "pets"], "its only class, 'pets', holds few images but the folders 'cat', 'dog'"),
    (["pets/all/cat", "pets/all/dog"], "/in/pets/all; if not, name the class"),
    (["train/Cat", "train/dog", "val/cat", "val/dog"], "'Cat' there differs only in upper and lower case"),
])
def test_folders_that_may_be_splits_or_classes_are_an_error(tmp_path, folders, message):
    for folder in folders:
        picture(tmp_path / "in" / folder / "0.jpg")
    assert message in bad(tmp_path / "in", "--out", tmp_path / "set")
    assert not list(tmp_path.glob("set*.h5"))


def test_a_class_may_be_called_like_a_split_if_it_is_said(tmp_path):
    for name in "bus", "train":
        picture(tmp_path / "in" / name / "0.jpg")
    (tmp_path / "classes.txt").write_text("bus\ntrain\n")
    good(tmp_path / "in", "--out", tmp_path / "a", "--class-list", tmp_path / "classes.txt")
    good(tmp_path / "in", "--out", tmp_path / "b", "--split", "train")
    assert len(stored(tmp_path / "a-train")) == len(stored(tmp_path / "b-train")) == 2


def test_a_tar_file_whose_classes_lie_deep_is_to_be_unpacked(tmp_path):
    for name in "cat", "dog":
        picture(tmp_path / "in/home/me/pets" / name / "0.jpg")
    pack(tmp_path / "in", tmp_path / "a.tar")
    assert f"unpack {tmp_path}/a.tar: INPUT is its folder home/me/pets; if not" in bad(tmp_path / "a.tar", "--out", tmp_path / "set")


def test_tar_files_of_a_web_dataset_are_no_classes(tmp_path):
    (tmp_path / "tars").mkdir()
    for number in range(2):
        for n in range(3):
            picture(tmp_path / f"in{number}" / f"{n}.jpg")
            (tmp_path / f"in{number}" / f"{n}.cls").write_text("1")
        pack(tmp_path / f"in{number}", tmp_path / "tars" / f"shard-{number}.tar")
    assert "holds 3 file(s) with the ending .cls beside its 3 image(s): it is a part of a WebDataset" in bad(tmp_path / "tars", "--out", tmp_path / "set")


def test_packed_files_beside_the_classes_are_warned_of(tmp_path):
    for name in "cat", "dog":
        picture(tmp_path / "in" / name / "0.jpg")
    (tmp_path / "in/bird.tar.gz").write_bytes(b"x")
    said = good(tmp_path / "in", "--out", tmp_path / "set")
    assert "warning     1 packed file(s) beside the classes, which are not opened, such as bird.tar.gz: unpack those that hold a class" in said


def make_odd_folder(root):
    """Makes three images of two classes, and files of every kind that is left out."""
    picture(root / "cat/a.jpg")
    os.link(root / "cat/a.jpg", root / "cat/b.jpg")
    os.symlink("../dog/d.JPG", root / "cat/soft.jpg")
    os.symlink("..", root / "cat/up")
    os.symlink("nowhere", root / "cat/lost")
    picture(root / "cat/.ipynb_checkpoints/c.jpg")
    picture(root / "cat/@eaDir/a.jpg/SYNOPHOTO_THUMB_M.jpg")
    picture(root / "cat/thumbnails/a.jpg")
    picture(root / "cat/without", form="JPEG")
    (root / "cat/._a.jpg").write_bytes(b"mac")
    (root / "cat/Thumbs.db").write_bytes(b"windows")
    picture(root / "dog/d.JPG", form="JPEG")
    (root / "dog/notes.txt").write_text("x")


@pytest.mark.parametrize("share", [[], ["--validation", "0.5"]])
def test_a_folder_and_tar_files_of_it_give_the_same_data(tmp_path, share):
    folder = tmp_path / "pets"
    make_odd_folder(folder)
    tars = tmp_path / "tars"
    tars.mkdir()
    pack(folder, tmp_path / "inside.tar")
    pack(folder, tmp_path / "outside.tar", "pets")
    said = good(folder, "--out", tmp_path / "folder", *share)
    for line in ("files       13 found = 4 used + 0 broken + 9 left out", "1 link(s) to a folder above them",
                 "1 link(s) that lead nowhere", "2 hidden file(s)", "3 file(s) that programs leave",
                 "1 file(s) with the ending .txt, such as dog/notes.txt",
                 "1 file(s) without an ending, such as cat/without, which is a JPEG or PNG by its content"):
        assert line in said, said
    for name in "inside", "outside":
        assert [line for line in good(tmp_path / f"{name}.tar", "--out", tmp_path / name, *share).splitlines()
                if line.startswith(("files", "left out", "uuid"))] == \
            [line for line in said.splitlines() if line.startswith(("files", "left out", "uuid"))]
        for split in ["train"] + ["validation"] * bool(share):
            assert stored(tmp_path / f"{name}-{split}") == stored(tmp_path / f"folder-{split}")


def test_a_tar_file_per_class_holds_out_the_same_images(tmp_path):
    for name in "cat", "dog":
        for n in range(9):
            picture(tmp_path / "in" / name / f"{n}.jpg")
        (tmp_path / "tars").mkdir(exist_ok=True)
        pack(tmp_path / "in" / name, tmp_path / "tars" / f"{name}.tar")
    for source in "in", "tars":
        good(tmp_path / source, "--out", tmp_path / f"out-{source}", "--validation", "0.3")
    for split in "train", "validation":
        assert stored(tmp_path / f"out-in-{split}") == stored(tmp_path / f"out-tars-{split}")


def test_damaged_tar_files_are_named(tmp_path):
    (tmp_path / "zeros.tar").write_bytes(bytes(10240))
    assert "zeros.tar: is an empty tar file, which has no members" in bad(tmp_path / "zeros.tar", "--out", tmp_path / "set")
    picture(tmp_path / "in/cat/0.jpg")
    picture(tmp_path / "in/dog/1.jpg")
    tars = tmp_path / "tars"
    tars.mkdir()
    pack(tmp_path / "in/cat", tars / "cat.tar")
    pack(tmp_path / "in/dog", tmp_path / "dog.tar")
    (tars / "cat.tar").write_bytes((tars / "cat.tar").read_bytes() + (tmp_path / "dog.tar").read_bytes())
    assert "two tar files were joined" in bad(tars, "--out", tmp_path / "set")
    pack(tmp_path / "in/cat", tars / "cat.tar")
    cut = tmp_path / "cut.tar"
    pack(tmp_path / "in", cut)
    with tarfile.open(cut) as tar:
        middle = tar.getmember("./dog/1.jpg").offset_data + 100
    cut.write_bytes(cut.read_bytes()[:middle])
    assert "it is cut off within the member" in bad(cut, "--broken", "skip", "--out", tmp_path / "set")
    with tarfile.open(tars / "dog.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "in/dog", ".")
    assert "dog.tar.gz: is a compressed tar file" in bad(tars, "--out", tmp_path / "set")
    for name in "train", "val":
        pack(tmp_path / "in", tmp_path / f"splits-{name}.tar")
        (tmp_path / "splits").mkdir(exist_ok=True)
        shutil.move(tmp_path / f"splits-{name}.tar", tmp_path / "splits" / f"{name}.tar")
    assert "is called like a split" in bad(tmp_path / "splits", "--out", tmp_path / "set")


def test_a_listed_picture_that_is_broken_is_named_with_its_line_in_a_folder_and_in_a_tar_file(tmp_path):
    for name in "cat/0.jpg", "dog/1.jpg":
        picture(tmp_path / "in" / name)
    (tmp_path / "in/dog/2.jpg").write_bytes(b"\xff\xd8\xff" + bytes(20))
    pack(tmp_path / "in", tmp_path / "in.tar")
    (tmp_path / "list.txt").write_text("cat/0.jpg\tcat\ndog/1.jpg\tdog\ndog/2.jpg\tdog\n")
    for place in "in", "in.tar":
        done = data("images", tmp_path / place, "--list", tmp_path / "list.txt", "--out", tmp_path / "set")
        assert done.returncode == 1 and f"({tmp_path}/list.txt, line 3)" in done.stdout, done


def test_all_endings_of_jpeg_are_read_and_other_formats_are_counted(tmp_path):
    for n, ending in enumerate(("jpg", "JPG", "jpeg", "jpe", "jfif", "jif", "jfi", "pjpeg")):
        picture(tmp_path / "in" / "ab"[n % 2] / f"{n}.{ending}", form="JPEG")
    good(tmp_path / "in", "--out", tmp_path / "set")
    assert len(stored(tmp_path / "set-train")) == 8
    for name in "x.heic", "y.heic":
        (tmp_path / "in/a" / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(20))
    picture(tmp_path / "in/b/z.bmp")
    said = bad(tmp_path / "in", "--out", tmp_path / "set", "--force")
    assert "3 of 11 images cannot be used" in said
    assert f"heif-convert {tmp_path}/in/a/x.heic {tmp_path}/in/a/x.png (package libheif-examples)" in said
    assert f"mogrify -format png {tmp_path}/in/b/z.bmp (ImageMagick" in said and "then delete the originals" in said
    assert "2 (is HEIC, neither a JPEG nor a PNG file), 1 (is BMP, neither a JPEG nor a PNG file)" in said
    said = good(tmp_path / "in", "--out", tmp_path / "set", "--force", "--broken", "skip")
    assert "files       11 found = 8 used + 3 broken + 0 left out" in said
    assert f"warning     convert other formats to PNG or JPEG: heif-convert {tmp_path}/in/a/x.heic" in said


def test_a_wrapping_folder_is_entered_when_it_holds_the_splits(tmp_path):
    for split in "train", "val":
        for name in "cat", "dog":
            picture(tmp_path / "in/dataset" / split / name / "0.jpg")
    picture(tmp_path / "in/__MACOSX/dataset/train/cat/0.jpg")
    said = good(tmp_path / "in", "--out", tmp_path / "set")
    assert "train       2 images" in said and "validation  2 images" in said and "classes     2" in said


def test_an_image_beside_the_classes_changes_no_class(tmp_path):
    for name in "cat", "dog":
        picture(tmp_path / "pets" / name / "0.jpg")
    picture(tmp_path / "pets/cover.jpg")
    pack(tmp_path / "pets", tmp_path / "pets.tar", "pets")
    for source in "pets", "pets.tar":
        said = good(tmp_path / source, "--out", tmp_path / f"set-{source}")
        assert "files       3 found = 2 used + 0 broken + 1 left out" in said and "1 image(s) beside the folders" in said
    assert stored(tmp_path / "set-pets-train") == stored(tmp_path / "set-pets.tar-train")
    for split in "train", "val":
        shutil.copytree(tmp_path / "pets", tmp_path / "wrapped/pets" / split)
        (tmp_path / "wrapped/pets" / split / "cover.jpg").rename(tmp_path / "wrapped/pets/cover.jpg")
    assert "classes     2, 1 to 1" in good(tmp_path / "wrapped", "--out", tmp_path / "wrapped-set")


def test_links_that_lead_nowhere_are_named_with_their_targets(tmp_path):
    for name in "cat", "dog":
        picture(tmp_path / "in" / name / "0.jpg")
    os.symlink("../gone/1.jpg", tmp_path / "in/cat/1.jpg")
    os.symlink("2.jpg", tmp_path / "in/dog/2.jpg")
    pack(tmp_path / "in", tmp_path / "in.tar")
    for source in tmp_path / "in", tmp_path / "in.tar":
        said = good(source, "--out", tmp_path / f"set-{source.name}", "--broken", "skip")
        for text in "cat/1.jpg: is a link to '../gone/1.jpg', which", "dog/2.jpg: is a link to '2.jpg', which", "4 found = 2 used + 2 broken":
            assert text in said, said


def test_exif_orientation_is_counted_and_can_be_applied(tmp_path):
    for n in range(1, 9):
        picture(tmp_path / "in/a" / f"{n}.jpg", orientation=n)
        picture(tmp_path / "in/b" / f"{n}.png", orientation=n)
    raw = ["--encoding", "raw", "--size", "16"]
    said = good(tmp_path / "in", "--out", tmp_path / "keep")
    assert "turned      14 image(s) have an EXIF orientation, which was not applied" in said
    assert stored(tmp_path / "keep-train")["a/6.jpg"][1] == (tmp_path / "in/a/6.jpg").read_bytes()
    for name in "a/1.jpg", "b/1.png":
        shutil.copy(tmp_path / "in" / name, tmp_path / name.replace("/", "-"))
    said = good(tmp_path / "in", "--out", tmp_path / "apply", "--orientation", "apply")
    assert "turned      14 image(s) have an EXIF orientation, and were turned upright" in said
    records = stored(tmp_path / "apply-train")
    assert records["a/1.jpg"][1] == (tmp_path / "in/a/1.jpg").read_bytes()
    assert data("verify", tmp_path / "apply").returncode == 0
    square = tmp_path / "square"
    for n in range(1, 9):  # pixels of one size can be compared exactly
        picture(square / "a" / f"{n}.png", orientation=n, shape=(16, 16), seed=1)
        picture(square / "b" / f"{n}.png", seed=2, shape=(16, 16))
    good(square, "--out", tmp_path / "raw", "--orientation", "apply", *raw)
    with h5py.File(tmp_path / "raw-train-00000-of-00001.h5") as file:
        for key, pixels in zip(file["keys"][:], file["images"][:], strict=True):
            right = ImageOps.exif_transpose(Image.open(square / key.decode())).convert("RGB")
            assert (pixels == numpy.asarray(right)).all(), key


def test_doubtful_jpegs_are_listed_and_counted(tmp_path):
    for name in "a/0", "a/1", "b/2", "b/3":
        picture(tmp_path / f"in/{name}.jpg", shape=(64, 64))
    path = tmp_path / "in/a/0.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + b"\x55" * 50 + whole[-2:])
    path = tmp_path / "in/b/2.jpg"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2:len(whole) // 2 + 60] = bytes(60)
    path.write_bytes(whole)
    with open(tmp_path / "in/b/3.jpg", "ab") as file:  # bytes after the picture's end are nobody's
        file.write(bytes(500))
    said = good(tmp_path / "in", "--out", tmp_path / "set")
    assert re.search(r"a/0.jpg: Corrupt JPEG data: \d\d extraneous bytes before marker 0xd9", said), said
    assert "b/2.jpg: " in said and "doubtful    2 of 4 images (50.0 %)" in said


def test_classes_without_images_and_equal_images_are_named(tmp_path):
    for name, count in ("a", 3), ("b", 1), ("c", 3):
        for n in range(count):
            picture(tmp_path / "in" / name / f"{n}.jpg")
    assert "warning     1 of 3 classes have no image in the validation split: 'b'" in good(
        tmp_path / "in", "--out", tmp_path / "held", "--validation", "0.4")
    (tmp_path / "in/b/0.jpg").write_bytes(b"no picture")
    assert "warning     1 of 3 classes have no image in the train split: 'b'" in good(
        tmp_path / "in", "--out", tmp_path / "set", "--broken", "skip")
    shutil.copy(tmp_path / "in/a/0.jpg", tmp_path / "in/c/9.jpg")
    assert "1 image(s) have the same bytes as an image of another class, such as a/0.jpg and c/9.jpg" in good(
        tmp_path / "in", "--out", tmp_path / "same", "--broken", "skip")
    (tmp_path / "list.txt").write_text("a/0.jpg 1\r\na/1.jpg 3\r\n")
    said = good(tmp_path / "in", "--list", tmp_path / "list.txt", "--out", tmp_path / "list")
    assert "left out    6 image(s) that no list names, such as a/2.jpg" in said and "files       8 found = 2 used" in said
    assert "warning     2 of 4 classes have no image in the train split: '0', '2'" in said
    picture(tmp_path / "cases/Cat/0.jpg")
    picture(tmp_path / "cases/cat/1.jpg")
    assert "the classes 'Cat' and 'cat' differ only in upper and lower case" in good(
        tmp_path / "cases", "--out", tmp_path / "cases-set")


def test_labels_with_blanks_in_a_list_need_tabs(tmp_path):
    for name in "0.jpg", "1.jpg":
        picture(tmp_path / "in" / name)
    (tmp_path / "list.txt").write_text("0.jpg Birnen reif\n1.jpg Birnen\n")
    said = bad(tmp_path / "in", "--list", tmp_path / "list.txt", "--out", tmp_path / "set")
    assert "list.txt, line 1: " in said and "the label seems to be 'Birnen reif'" in said and "a tab between path and label" in said
    (tmp_path / "classes.txt").write_text("Birnen reif\n\u00c4pfel\n")
    picture(tmp_path / "folders/Birnen reif/0.jpg")
    said = bad(tmp_path / "folders", "--class-list", tmp_path / "classes.txt", "--out", tmp_path / "set")
    assert "the id 'Birnen', which has no folder, but there is a folder 'Birnen reif'" in said and "a tab between id and name" in said


@pytest.mark.parametrize("option, content, says", [
    ("--list", "0.jpg\tcat\t0\t0\n", "line 1: has 4 columns, expected a path and a label"),
    ("--list", "cat/0.jpg 7.0\ndog/0.jpg 10.0\n", "line 1: the label '7.0' has a decimal point"),
    ("--list", "0.jpg\tcat\n".encode("utf-16"), "is UTF-16 text, expected UTF-8"),
    ("--class-list", "cat Katze\ndog K\u00e4fer\n".encode("cp1252"), "line 2: the class's name is not valid UTF-8"),
])
def test_lists_in_other_forms_are_refused(tmp_path, option, content, says):
    for name in "cat", "dog":
        picture(tmp_path / "in" / name / "0.jpg")
    (tmp_path / "list.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in bad(tmp_path / "in", option, tmp_path / "list.txt", "--out", tmp_path / "set")


def test_a_listed_file_that_is_missing_is_named_with_its_line(tmp_path):
    picture(tmp_path / "in/0.jpg")
    (tmp_path / "list.txt").write_text("0.jpg 0\n9.jpg 1\n")
    done = data("images", tmp_path / "in", "--list", tmp_path / "list.txt", "--out", tmp_path / "set")
    assert done.returncode == 1 and re.search(r"9.jpg: cannot open: .*\(.*list.txt, line 2\)", done.stdout), done


@pytest.mark.parametrize("folders, options, says", [
    (["Training/cat", "Training/dog", "Validierung/cat", "Validierung/dog"], [], "rename it to val"),
    (["cat", "dog"], ["--validation", "0.2"], "warning     --validation 0.2 held out no image, because no class has two"),
])
def test_a_validation_split_that_is_missing_is_said(tmp_path, folders, options, says):
    for folder in folders:
        picture(tmp_path / "in" / folder / "0.jpg")
    assert says in good(tmp_path / "in", "--out", tmp_path / "set", *options)


def test_a_class_that_loses_its_validation_images_as_broken_ones_is_explained(tmp_path):
    for name in "cat", "dog":
        for number in range(4):
            picture(tmp_path / "in" / name / f"{number}.jpg")
    good(tmp_path / "in", "--out", tmp_path / "whole", "--validation", "0.25")
    for key in stored(tmp_path / "whole-validation"):
        if key.startswith("cat"):
            (tmp_path / "in" / key).write_bytes(b"")
    said = good(tmp_path / "in", "--out", tmp_path / "set", "--validation", "0.25", "--broken", "skip")
    assert "have no image in the validation split: 'cat'; 1 of theirs are broken: repair or remove them" in said


def test_zip_archives_are_named(tmp_path):
    for path in tmp_path / "pets.zip", tmp_path / "in/pets.zip", tmp_path / "pets":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"PK\x03\x04" + bytes(60))
        said = bad(path if path.parent == tmp_path else path.parent, "--out", tmp_path / "set")
        assert f"{path}: is a ZIP archive" in said and f"unzip {path} -d FOLDER" in said


@pytest.mark.parametrize("splits, says", [([""], "remove the folder, or"), (["train/", "val/"], "from both splits")])
def test_an_empty_class_folder_is_to_be_removed(tmp_path, splits, says):
    for split in splits:
        picture(tmp_path / "in" / split / "cat/0.jpg")
        (tmp_path / "in" / split / "dog").mkdir()
    assert says in bad(tmp_path / "in", "--out", tmp_path / "new/set") and not (tmp_path / "new").exists()


def test_pictures_with_alpha_are_counted(tmp_path):
    for name, mode in ("a", "RGBA"), ("b", "LA"), ("c", "RGB"), ("d", "P"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new(mode, (8, 8)).save(tmp_path / "in" / name / "0.png", **({"transparency": 0} if mode == "P" else {}))
    said = good(tmp_path / "in", "--out", tmp_path / "set")
    assert "alpha       3 image(s) have an alpha channel" in said and said.count(": PNG with alpha") == 3


COMPOSED, DECOMPOSED = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")


def test_class_folders_in_two_unicode_forms_are_two_classes_if_it_is_said(tmp_path):
    """They may come from a Mac and from Linux."""
    for name in COMPOSED, DECOMPOSED, "tea":
        for number in range(4):
            picture(tmp_path / "in" / name / f"{number}.png")
    assert f"has two folders '{DECOMPOSED}' and '{COMPOSED}'" in bad(tmp_path / "in", "--out", tmp_path / "set")
    (tmp_path / "classes.txt").write_text("\n".join(sorted([COMPOSED, DECOMPOSED, "tea"], key=str.encode)))
    said = good(tmp_path / "in", "--validation", "0.25", "--out", tmp_path / "set", "--class-list", tmp_path / "classes.txt")
    assert "3, 3 to 3 training images each" in said, said
    with h5py.File(tmp_path / "set-train-00000-of-00001.h5") as file:
        assert [n.decode() for n in file["class_ids"][:]] == sorted([COMPOSED, DECOMPOSED, "tea"], key=str.encode)
    verified = data("verify", tmp_path / "set")
    assert verified.returncode == 0 and verified.stdout.count("(NFC) and once decomposed (NFD)") == 2, verified  # once for each split


def test_the_other_split_may_use_the_other_unicode_form(tmp_path):
    for split, name in ("train", COMPOSED), ("val", DECOMPOSED):
        for label in name, "tea":
            picture(tmp_path / "in" / split / label / "0.png")
    said = good(tmp_path / "in", "--out", tmp_path / "set")
    assert f"warning     1 folder(s) have the name of a class in another Unicode form, and are taken for that class: '{tmp_path}/in/val/" in said
    labels = [{unicodedata.normalize("NFC", key.split("/")[1]): label for key, (label, _) in stored(tmp_path / f"set-{split}").items()}
              for split in ("train", "validation")]
    assert labels[0] == labels[1] and len(labels[0]) == 2


def test_classes_that_differ_in_blanks_only_are_named(tmp_path):
    for name in "cat", "cat ":
        picture(tmp_path / "in" / name / "0.jpg")
    assert "the classes 'cat' and 'cat ' differ only in" in good(tmp_path / "in", "--out", tmp_path / "set")


def test_verify_warns_of_letters_in_two_forms(tmp_path):
    """Converters make one form. Data sets of other programs may have both."""
    vocabulary = [" ", "\n", "c", "a", "f", "e", "\u0301", "\u00e9"]
    text = f"{COMPOSED}\n{DECOMPOSED}\n"
    (tmp_path / "plain.txt").write_text("cafe " * 40)
    assert data("text", tmp_path / "plain.txt", "--shards", "1", "--out", tmp_path / "set").returncode == 0
    assert "NFD" not in data("verify", tmp_path / "set").stdout
    path = tmp_path / "set-train-00000-of-00001.h5"
    with h5py.File(path, "r+") as file:
        ids = numpy.array([vocabulary.index(letter) for letter in text * 20], "u1")[:file["tokens"].shape[0]]
        file["tokens"][:] = ids
        del file["crc32c"]
        file["tokens"].attrs.create("vocab", vocabulary, dtype=h5py.string_dtype())
        if "num_classes" in file.attrs:
            file.attrs["num_classes"] = len(vocabulary)
    verified = data("verify", tmp_path / "set-train")
    assert verified.returncode == 0, verified
    assert "letters are two symbols" in verified.stdout and "also one symbol in this data set" in verified.stdout, verified


def test_png_files_of_16_bits_are_counted_and_dark_ones_are_warned_of(tmp_path):
    for folder, highest in ("cat", 65536), ("dog", 4096):
        (tmp_path / "in" / folder).mkdir(parents=True)
        for i in range(3):
            pixels = numpy.random.default_rng(i).integers(0, highest, (16, 16)).astype("u2")
            Image.fromarray(pixels).save(tmp_path / "in" / folder / f"{i}.png")
    said = good(tmp_path / "in", "--out", tmp_path / "set")
    assert "16 bits     6 PNG file(s) have 16 bits a channel, of which the upper 8 are kept\n" in said
    assert "warning     3 PNG file(s) of 16 bits are nearly black" in said


def test_a_file_of_the_user_is_never_replaced_by_notes(tmp_path):
    for name in "cat/0.jpg", "dog/1.jpg":
        picture(tmp_path / "in" / name)
    own = tmp_path / "set-notes.txt"
    own.write_text("mine\n")
    for force in [], ["--force"]:
        assert "set-notes.txt: exists, and ringtrain-data did not write it" in bad(tmp_path / "in", "--out", tmp_path / "set", *force)
        assert own.read_text() == "mine\n" and not list(tmp_path.glob("set-*.h5"))
