"""Runs some fixed faults of the campaign (tests/faults). The job must end or go on as expected, nothing durable may be
lost, and the resumed run must equal the undisturbed one bit for bit."""
import csv
import re
import shutil
import signal
import sys

import h5py
import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "faults"))
import record  # noqa: E402
from draw import (CATALOGUE, ENDS, FAMILIES, GOES_ON, LATER_FAMILIES, LATER_JOBS, LIMIT_FAMILIES, LIMIT_SEEDS, NO_MEMORY, READ_IN_VAIN, FIRST_SEEDS, STOPS, Blow,  # noqa: E402
                  Fault, Rule, draw, has_died)
from jobs import KINDS, run_dirs, undisturbed  # noqa: E402
from outcome import of_the_end, of_the_files, of_the_whole  # noqa: E402
from running import Place, harm_file  # noqa: E402
from trial import clear, strike  # noqa: E402

KILL, STOP, USR1, TERM = (f"signal:{int(getattr(signal, 'SIG' + name))}" for name in ("KILL", "STOP", "USR1", "TERM"))
QUICK = {"communication.timeout_seconds": 3}
SLOW = {"test.slow_rank": 1, "test.slow_seconds": 0.5}


def fault(job, rules=(), blows=(), outcome=ENDS, says="ringtrain: error", **more):
    return Fault(0, 0, "fixed", job, "", "", "", list(rules), list(blows), allowed=(outcome,), says=says, **more)


DOZEN = {
    "a rank is killed in a step": fault("names-2", [Rule("send", 0.5, KILL, rank=1)], says=r"\brank 1\b"),
    "rank 0 is killed in a checkpoint": fault("names-2", [Rule("rename checkpoint", 0.6, KILL, rank=0)], says=r"\brank 0\b"),
    "a rank stands still in start-up": fault("cnn-2", [Rule("open data", 0.3, STOP, rank=1)], keys=QUICK, says="no step was finished for 3 s"),
    "a rank stands still in an evaluation": fault("cnn-2", [Rule("read validation", 0.5, STOP, rank=1)], keys=QUICK,
                                                  says="no step was finished for 3 s"),
    "the writer stands still in a checkpoint": fault("names-2", [Rule("sync checkpoint", 0.5, STOP, rank=0)], keys=QUICK,
                                                     says="no step was finished for 3 s"),
    "a rank pauses": fault("names-2", [Rule("send", 0.4, STOP, rank=1)], [Blow("hit", 0.5, "rank 1", "CONT")], GOES_ON),
    "a signal in an evaluation": fault("cnn-2", [Rule("read validation", 0.5, USR1, rank=1)], outcome=STOPS),
    "a disk that fills up": fault("names-2", [Rule("write any", 0.6, "ENOSPC", count=0, rank=0)], says="No space left"),
    "a disk that fills up under a pipeline": fault("pipeline-2", [Rule("sync checkpoint", 0.5, "ENOSPC", rank=0)], says="No space left"),
    "one rank meets a bad shard": fault("cnn-2", [Rule("read data", 0.7, "EIO", count=0, rank=1)], says=r"pictures-\w+-0000\d-of-00002\.h5"),
    "a checkpoint that is cut off": fault("names-2", [Rule("send", 0.6, TERM, rank=1)], outcome=STOPS, harm=("cut off", 0.7)),
    "a checkpoint of another model": fault("names-2", [Rule("send", 0.6, TERM, rank=0)], outcome=STOPS, harm=("of another model", 0.7)),
    "a disk that does not answer in --resume": fault("names-2", [Rule("send", 0.8, KILL, rank=1)], says=r"\brank 1\b",
                                                     on_resume=[Rule("read checkpoint", 0, "ESTALE", count=0, rank=0)]),
    "short reads": fault("cnn-2", [Rule("read data", 0, "short", count=40)], outcome=GOES_ON),
    "no second names and no locks": fault("names-2", [Rule("link checkpoint", 0, "EOPNOTSUPP", count=0), Rule("lock", 0, "ENOLCK", count=0)],
                                          outcome=GOES_ON),
    # The other ranks wait for a slow one, in a sum through the memory that the ranks of a node share.
    "a rank is killed in a sum": fault("names-3", blows=[Blow("metrics", 1.0, "rank 0", "KILL")], keys=SLOW, says=has_died(0)),
    "a rank whose gradients others read is killed": fault("names-3", blows=[Blow("metrics", 1.0, "rank 1", "KILL")], keys=SLOW, says=has_died(1)),
    "a rank stands still in a sum": fault("cnn-2", blows=[Blow("metrics", 1.5, "rank 0", "STOP")], keys={**QUICK, **SLOW},
                                          says=r"no step was finished for 3 s(.*\n)*.* 0 +\d+ +\d+ +communication .*STOPPED"),
    "mpirun pauses": fault("names-2", blows=[Blow("metrics", 0.1, "mpirun", "STOP"), Blow("hit", 0.5, "mpirun", "CONT")], outcome=GOES_ON),
    "the batch script pauses": fault("batch-2", blows=[Blow("metrics", 0.1, "script", "STOP"), Blow("hit", 0.5, "script", "CONT")],
                                     outcome=GOES_ON),
    "a worker of an asynchronous server is killed": fault("async-3", [Rule("send", 0.5, KILL, rank=2)], says=has_died(2)),
    # mpirun must not wait for a lock that the dead rank held (PMIX_MCA_gds, src/cluster/session.cpp).
    "memory runs out in MPI's start": fault("server-2", [Rule("memory", 0.047, "ENOMEM", count=0, rank=1)], says=NO_MEMORY,
                                            libraries_may_crash=True),
    # oneDNN generates code for each convolution, and its own message does not name memory.
    "memory runs out in oneDNN": fault("cnn-4", [Rule("large memory", 0.902, "ENOMEM", count=0, rank=3)], says=NO_MEMORY,
                                       libraries_may_crash=True),
    "a wall clock a year back": fault("names-2", [Rule("#call=clock,from=20,count=0", 0, "shift:-31536000")], outcome=GOES_ON),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    yield Place(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.fast_cases(
    "rank 0 is killed in a checkpoint", "a disk that fills up", "a checkpoint that is cut off")
@pytest.mark.parametrize("name", DOZEN)
def test_a_fault_loses_nothing(place, name):
    trial = strike(place, DOZEN[name])
    assert not trial.wrong, "\n".join([*trial.wrong, *trial.texts])
    assert "not met" not in trial.outcome, trial.texts
    clear(place, DOZEN[name])


# Damage that a faulty program would leave, and the campaign's word for it.
LOSSES = {
    "a checkpoint that is half-written": ("is not whole", lambda run: harm_file(run / "checkpoints" / "step-000000020.h5", "cut off", 0.9)),
    "a checkpoint with another bit": ("differs", lambda run: flip_a_weight(run / "checkpoints" / "step-000000020.h5")),
    "no last checkpoint": ("the last checkpoint is missing", lambda run: (run / "checkpoints" / "step-000000024.h5").unlink()),
    "a step that is lost": ("metrics.jsonl has the steps", lambda run: edit(run, lambda lines: lines[:6] + lines[7:])),
    "a step that is there twice": ("metrics.jsonl has the steps", lambda run: edit(run, lambda lines: lines[:7] + lines[6:])),
    "another loss": ("step 7 differs", lambda run: edit(run, lambda lines: [re.sub('"loss":[23]', '"loss":4', line) if i == 6 else line
                                                                            for i, line in enumerate(lines)])),
    "a lost evaluation": ("no evaluation of the steps [8]", lambda run: edit(run, lambda lines: [line for line in lines if not (
        "validation_loss" in line and '"step":8,' in line)])),
    "a temporary file": ("temporary files are left", lambda run: (run / "run.json.tmp").write_text("")),
    "a record that is half-written": ("run.json is not whole", lambda run: harm_file(run / "run.json", "cut off", 0.5)),
}


def edit(run, change):
    path = run / "metrics.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def flip_a_weight(path):
    with h5py.File(path, "r+") as file:
        found = []
        file.visititems(lambda name, item: found.append(item) if isinstance(item, h5py.Dataset) and item.dtype == "float32" else None)
        values = found[0][()]
        values.view("uint32").flat[0] ^= 1
        found[0][()] = values


def test_the_campaign_sees_what_a_run_has_lost(place, tmp_path):
    kind = KINDS["names-2"]
    whole = undisturbed(kind, place.folder / "undisturbed", place.preload, CATALOGUE, place.start)
    (tmp_path / "good").mkdir()
    assert place.start(kind, tmp_path / "good", {}).wait().code == 0
    assert of_the_whole(run_dirs(kind, tmp_path / "good"), whole) == []
    for what, (word, lose) in LOSSES.items():
        folder = tmp_path / what
        shutil.copytree(tmp_path / "good", folder)
        lose(folder / "run")
        try:
            wrong = of_the_whole(run_dirs(kind, folder), whole)
        except ValueError:
            wrong = of_the_files("run", folder / "run", whole)
        assert any(word in sentence for sentence in wrong), (what, wrong)


def test_the_campaign_sees_how_a_job_should_not_end():
    expected = fault("names-2", says="No space left")
    assert of_the_end(expected, 1, [], "ringtrain: error: No space left", "write") == []
    assert of_the_end(expected, 1, [], "", "write")
    assert of_the_end(expected, 0, [], "", "write")
    assert of_the_end(expected, None, [], "No space left", "write")
    assert of_the_end(expected, 1, ["123 ringtrain"], "No space left", "write")
    assert of_the_end(expected, 134, [], "No space left\nterminate called after", "write")
    read = fault("cnn-2", outcome=GOES_ON, warns=READ_IN_VAIN)
    unused = "warning (rank 1): set.h5: record 3: 'pixels': cannot read at byte 5: Input/output error; the batch was read ahead, and is thrown away unused"
    assert of_the_end(read, 0, [], unused, "read set.h5") == of_the_end(read, 0, [], "", "") == []
    assert of_the_end(read, 0, [], "", "read set.h5")


def test_a_number_is_the_same_fault_each_time_and_every_family_is_drawn():
    assert draw(1, 17) == draw(1, 17) != draw(2, 17)
    later = {name for names in LATER_JOBS.values() for name in names}
    for seed, families, jobs in ((3, FAMILIES, set(KINDS) - later), (FIRST_SEEDS + 1, FAMILIES + LATER_FAMILIES, set(KINDS)),
                                 (LIMIT_SEEDS + 1, FAMILIES + LATER_FAMILIES + LIMIT_FAMILIES, set(KINDS))):
        drawn = [draw(seed, number) for number in range(400)]
        assert {f.family for f in drawn} == {family.__name__.replace("_", " ") for _, family in families}
        assert {f.job for f in drawn} == jobs
    paused = {f.target for f in drawn if "STOP and CONT" in f.what}
    assert {"mpirun", "launcher", "batch script"} <= paused


def test_the_recorded_faults_are_drawn_again():
    with open(record.RECORD, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 70
    for row in rows:
        again = draw(int(row["seed"]), int(row["number"]))
        assert ([again.family, again.what, again.moment, again.target, again.job]
                == [row[key] for key in ("family", "fault", "moment", "target", "job")]), row


# The pattern of an expected message must not match these lines, which a job may also print without a fault.
HARMLESS = """ranks 0-1 on here: 2 cores
ringtrain: warning: the disk is slow
step 5/24 loss 2.5 samples/s, rank 1 waits
ringtrain: the job of rank 0 began
"""


def test_no_pattern_of_a_message_is_met_by_a_harmless_line():
    for seed in 1, FIRST_SEEDS + 1:
        for number in range(600):
            drawn = draw(seed, number)
            if ENDS in drawn.allowed:
                assert of_the_end(drawn, 1, [], HARMLESS, "write"), (seed, number, drawn.family, drawn.says)
