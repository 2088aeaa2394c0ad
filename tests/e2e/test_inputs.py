"""Gives the programs some inputs of the campaign (tests/inputs), and shows that each of the campaign's checks finds what it
should."""
import json
import re
import shutil
import sys

import h5py
import pytest

from conftest import ROOT

sys.path[:0] = [str(ROOT / "tests" / "inputs"), str(ROOT / "tests" / "faults")]
import checks  # noqa: E402
import stored  # noqa: E402
from campaign import strike  # noqa: E402
from input_families import FAMILIES, draw, make  # noqa: E402
from made import REFUSED, Draw, Made, Names, Pictures, Shard, Text  # noqa: E402
from input_programs import Done, convert  # noqa: E402

SEED = 7
SOME = [1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 17, 18, 21]
TRAINED = [1, 2, 3]


@pytest.mark.parametrize("number", SOME)
def test_an_input_is_converted_or_refused_as_it_should(tmp_path, number):
    trial = strike(tmp_path, SEED, number, train_too=number in TRAINED)
    assert not trial.wrong, (str(trial.drawn), trial.more, trial.wrong)


def test_a_number_is_the_same_input_each_time_and_every_change_is_drawn(tmp_path):
    drawn = [draw(3, number) for number in range(1500)]
    assert drawn == [draw(3, number) for number in range(1500)] and drawn != [draw(4, number) for number in range(1500)]
    for name, (family, _) in FAMILIES.items():
        assert {d.change for d in drawn if d.family == name} == set(family.CHANGES)
        assert {d.form for d in drawn if d.family == name} == set(family.FORMS)
    table = next(d for d in drawn if d.family == "tables" and d.change == "as it is")
    made = [make(table, tmp_path / side)[0] for side in "ab"]
    assert [open(m.words[1], "rb").read() for m in made][0] == open(made[1].words[1], "rb").read()


# ---- each check fails when it should -----------------------------------------------------------------------------------

def first(family, change, form=None):
    """The number of the first input of this kind."""
    return next(n for n in range(5000) if (d := draw(SEED, n)).family == family and d.change == change and form in (None, d.form))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Finished data sets, and what is right for them."""
    found = {}
    for family in "arrays", "tables", "texts":
        place = tmp_path_factory.mktemp(family)
        made, _ = make(draw(SEED, first(family, "as it is")), place / "in")
        done = convert(made.words, place / "one" / "set")
        assert done.code == 0, done
        found[family] = made, done, place / "one" / "set"
    return found


@pytest.mark.parametrize("code, out, err, says", [
    (None, "", "", "hangs"), (-11, "", "", "exit code -11"), (1, "", "", "0 errors"), (0, "", "ringtrain-data: error: x\n", "1 errors"),
    (1, "", "ringtrain-data: error: x\n" * 2, "2 errors"), (1, "", "HDF5-DIAG: Error\nringtrain-data: error: x\n", "HDF5-DIAG"),
    (1, "", "ringtrain-data: error: " + "x" * 5000, "a line of more"), (1, "", "ringtrain-data: error: x\n" + "one\n" * 40, "41 lines"),
    (1, "", "ringtrain-data: error: basic_string_view::substr\n", "basic_string")])
def test_words_that_are_wrong_are_found(code, out, err, says):
    found = checks.of_the_words(Done(code, out, err, "ringtrain-data names"))
    assert any(says in sentence for sentence in found), found
    assert checks.of_the_words(Done(1, "", "ringtrain-data: error: a.csv: is empty\n  hint\n", "")) == []


@pytest.mark.parametrize("kind, right, wrong", [
    ("names", "kept        3 of 5 (3 distinct)\ndropped     2 blank line\n", "kept        3 of 5 (3 distinct)\ndropped     1 blank line\n"),
    ("images", "train       1,002 images\nfiles       1005 found = 1002 used + 1 broken + 2 left out\nleft out    2 hidden\nbroken      1, left out\n",
     "train       1,002 images\nfiles       1005 found = 1002 used + 1 broken + 2 left out\nleft out    1 hidden\nbroken      1, left out\n"),
    ("import", "train       40 images\nvalidation  2 images\n", "train       40 images\nvalidation  1 images\n")])
def test_counts_that_do_not_add_up_are_found(kind, right, wrong):
    expected = {"names": 5, "images": 1005, "import": 42}[kind]
    assert checks.of_the_counts(Done(0, right, "", ""), kind, expected) == []
    assert checks.of_the_counts(Done(0, wrong, "", ""), kind, expected)


def test_a_refusal_without_its_reason_or_file_is_found():
    made = Made(["names", "pets.csv"], REFUSED, says="quot")
    assert checks.of_a_refusal(Done(1, "", "pets.csv: line 3: a quoted field never ends", ""), made, "pets.csv", made.says) == []
    assert checks.of_a_refusal(Done(1, "", "line 3: a quoted field never ends", ""), made, "pets.csv", made.says)
    assert checks.of_a_refusal(Done(1, "", "pets.csv: is wrong", ""), made, "pets.csv", made.says)


def changed(prefix, folder, name, change):
    """A copy of the data set with other values in the first shard."""
    folder.mkdir()
    for path in stored.shards(prefix, "train") + stored.shards(prefix, "validation"):
        shutil.copy(path, folder)
    with h5py.File(stored.shards(folder / "set", "train")[0], "r+") as file:
        values = file[name][:]
        change(values)
        file[name][...] = values
    return folder / "set"


def test_shards_that_hold_something_else_are_found(whole, tmp_path):
    def add_one(values):
        values.reshape(-1)[3] ^= 1

    def swap(values):
        values[[0, 1]] = values[[1, 0]]

    for number, (family, name, change) in enumerate([("arrays", "labels", add_one), ("arrays", "images", lambda v: swap(v)), ("arrays", "keys", swap),
                                                     ("arrays", "sample_ids", lambda v: v.__setitem__(0, v[1])), ("tables", "tokens", add_one),
                                                     ("tables", "name_index", add_one), ("texts", "tokens", add_one)]):
        made, _, prefix = whole[family]
        assert stored.wrong(prefix, made.wanted, "bytes" in made.words) == []
        other = changed(prefix, tmp_path / str(number), name, change)
        assert stored.wrong(other, made.wanted, "bytes" in made.words), (family, name)
    made, _, prefix = whole["arrays"]
    assert stored.wrong(prefix, Pictures({**made.wanted.records, "x[999]": (0, None)}, made.wanted.classes))
    assert stored.wrong(prefix, Pictures(made.wanted.records, made.wanted.classes[1:]))
    made, _, prefix = whole["tables"]
    assert stored.wrong(prefix, Names({**made.wanted.counts, "nobody": 1}))
    made, _, prefix = whole["texts"]
    assert stored.wrong(prefix, Text(made.wanted.text + "x"))


def test_other_data_from_other_ranks_or_from_a_tar_file_are_found(tmp_path):
    made, _ = make(draw(SEED, first("pictures", "as it is")), tmp_path / "in")
    done = convert(made.words, tmp_path / "one" / "set")
    arguments = done, tmp_path / "one" / "set", tmp_path
    assert checks.of_the_twin(made, *arguments) == [] == checks.of_other_runs(made, *arguments, Draw(1))
    other, _ = make(draw(SEED, first("pictures", "as it is")), tmp_path / "elsewhere")
    path = next(p for p in sorted((tmp_path / "elsewhere").rglob("*.j*")) if p.is_file())
    path.write_bytes(path.read_bytes() + b"x")
    assert any("other bytes" in w for w in checks.of_other_runs(other, *arguments[:2], tmp_path / "a", Draw(1)))
    path.unlink()
    made.twin = other.words
    found = checks.of_the_twin(made, *arguments[:2], tmp_path / "b")
    assert any("other data" in w for w in found), found
    made.twin_refused = "x"
    assert any("wrong tar file is converted" in w for w in checks.of_the_twin(made, *arguments[:2], tmp_path / "c"))


def test_a_training_that_differs_is_found(whole, tmp_path, monkeypatch):
    _, _, prefix = whole["arrays"]
    real = checks.train

    def train(prefix, run_dir, *more):
        done = real(prefix, run_dir, *more)
        if str(run_dir).endswith("1"):
            path = run_dir / "metrics.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            lines[0]["loss"] *= 1.001
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return done
    monkeypatch.setattr(checks, "train", train)
    found = checks.of_the_training(prefix, tmp_path, Draw(1), "x")
    assert any("training differs" in sentence for sentence in found), found


def test_verify_and_train_that_disagree_are_found(tmp_path, monkeypatch):
    made, _ = make(draw(SEED, first("shards", "wrong values", "pixels")), tmp_path / "in")
    assert isinstance(made, Shard) and checks.of_a_shard(made, tmp_path / "a", Draw(1))[1] == []
    made.same, made.says = True, ""
    assert any("harmless" in w for w in checks.of_a_shard(made, tmp_path / "b", Draw(1))[1])
    made.same, made.says = False, "no such words"
    assert any("does not say" in w for w in checks.of_a_shard(made, tmp_path / "c", Draw(1))[1])
    good = Done(0, "no faults found", "", "ringtrain-data verify")
    monkeypatch.setattr(checks, "run", lambda words: good)
    assert any(re.search("verify finds nothing, but training does", w) for w in checks.of_a_shard(made, tmp_path / "d", Draw(1))[1])
    made.prefix = made.unchanged
    monkeypatch.setattr(checks, "run", lambda words: Done(1, "fault: x", "", "ringtrain-data verify"))
    assert any("training accepts" in w for w in checks.of_a_shard(made, tmp_path / "e", Draw(1))[1])
