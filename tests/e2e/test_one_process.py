"""Tests the commands for one process, started in a job of two ranks. Rank 0 does what one process does, and the job
ends well."""
import subprocess

import pytest
from conftest import CONVERTER, HANG_SECONDS, LAUNCHER, PROGRAM, Job, arrays, checkpoints, environment
from PIL import Image


def same_output(workshop, *words):
    """Expects the same output without mpirun and on two ranks."""
    alone, job = (workshop.run(*words, ranks=ranks) for ranks in (0, 2))
    assert alone.code == 0, alone
    assert job.code == 0 and job.out == alone.out, job


def convert(workshop, ranks, *words):
    launcher = [LAUNCHER, ranks] if ranks > 1 else []
    job = Job([*launcher, CONVERTER, *words], workshop.folder / f"output-{next(workshop.numbers)}",
              {"OMPI_MCA_btl_vader_backing_directory": str(workshop.folder)})
    workshop.jobs.append(job)
    return job.wait()


def test_plan_is_for_the_ranks_of_the_job(workshop):
    experiment = workshop.experiment()
    alone = workshop.run("plan", experiment, "--ranks", 2, ranks=0)
    job = workshop.run("plan", experiment, ranks=2)
    assert alone.code == 0 and job.code == 0 and job.out == alone.out, job
    same_output(workshop, "plan", experiment, "--ranks", 4)


def test_sample_prints_once(workshop):
    same_output(workshop, "sample", workshop.train("run"), "--count", 5)


def test_export_writes_the_same_bytes(workshop):
    run = workshop.train("run")
    files = {ranks: workshop.folder / f"{ranks}.safetensors" for ranks in (0, 2)}
    for ranks, file in files.items():
        result = workshop.run("export", run, "--out", file, ranks=ranks)
        assert result.code == 0 and result.out.count(str(file)) == 1, result
    assert files[0].read_bytes() == files[2].read_bytes()


def test_import_makes_one_run(workshop):
    file = workshop.folder / "weights.safetensors"
    assert workshop.run("export", workshop.train("run"), "--out", file, ranks=0).code == 0
    stored = []
    for ranks in 0, 2:
        run = workshop.folder / f"imported-{ranks}"
        result = workshop.run("import", file, workshop.experiment(run__dir=str(run)), ranks=ranks)
        assert result.code == 0 and result.out.count("evaluate with") == 1, result
        stored.append({name: values.tobytes() for name, values in arrays(checkpoints(run)[0]).items()})
    assert stored[0] == stored[1] and stored[0]


def test_an_error_is_said_once_and_ends_the_job(workshop):
    for words in ["sample", "/nowhere"], ["sample"], ["plan", workshop.experiment(), "--ranks", 3], ["export", "/nowhere"]:
        result = workshop.run(*words, ranks=2)
        assert result.code not in (0, 85) and result.err.count("ringtrain: error") == 1, result


def differing(workshop, words, *more):
    """Starts two ranks of a program. Rank 1 has more arguments."""
    text = f'[ $OMPI_COMM_WORLD_RANK = 0 ] || set -- "$@" {" ".join(map(str, more))}; exec "$@"'
    job = Job([LAUNCHER, 2, "bash", "-c", text, "bash", *words], workshop.folder / f"output-{next(workshop.numbers)}",
              {"OMPI_MCA_btl_vader_backing_directory": str(workshop.folder)})
    workshop.jobs.append(job)
    return job.wait()


def test_ranks_with_different_arguments_are_refused(workshop):
    pictures, run = workshop.folder / "in", workshop.folder / "run"
    for label in "a", "b":
        for number in range(3):
            (pictures / label).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(pictures / label / f"{number}.jpg")
    for words, more, program in (
        ([PROGRAM, "train", workshop.experiment(run__dir=str(run))], ["stop.steps=2"], "ringtrain"),
        ([PROGRAM, "train", workshop.experiment(run__dir=str(run))], ["--no-such-option"], "ringtrain"),
        ([CONVERTER, "images", pictures, "--out", workshop.folder / "set"], ["--validation", "0.4"], "ringtrain-data"),
    ):
        result = differing(workshop, words, *more)
        assert result.code == 1 and result.err.count(f"{program}: error") == 1, result
        assert f"the ranks of this job have different arguments: rank 1 has '{words[1]} " in result.err, result
    assert not run.exists() and not list(workshop.folder.glob("set*"))


@pytest.mark.parametrize("words", [["verify"], ["names", "--help"], ["--help"], ["--manual-page"], ["--bash-completion"], ["names", "--out"]])
def test_a_converter_that_cannot_write_its_report_says_so(workshop, words):
    operands = {"verify": [workshop.data], "--out": [workshop.folder / "data", workshop.data.parent / "names.txt"]}.get(words[-1], [])
    with open("/dev/full", "w") as full:
        done = subprocess.run([CONVERTER, *words, *operands], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=HANG_SECONDS)
    assert done.returncode == 1 and done.stderr.count("error: cannot write to standard output") == 1, done


@pytest.mark.parametrize("kind", ["names", "text"])
def test_text_is_converted_once(workshop, kind):
    source = workshop.data.parent / "names.txt"
    files = []
    for ranks in 1, 2:
        prefix = workshop.folder / str(ranks) / "data"
        result = convert(workshop, ranks, kind, source, "--out", prefix)
        assert result.code == 0 and result.out.count("train  ") == 1, result
        files.append({path.name: path.read_bytes() for path in prefix.parent.iterdir()})
    assert files[0] == files[1] and len(files[0]) == 4


def test_verify_says_once_what_it_finds(workshop):
    alone, job = (convert(workshop, ranks, "verify", workshop.data) for ranks in (1, 2))
    assert alone.code == 0 and job.code == 0 and job.out == alone.out, job
    job = convert(workshop, 2, "verify", workshop.folder / "missing")
    assert job.code == 1 and job.err.count("fault:") == 1, job


def test_a_converters_error_is_said_once_and_ends_the_job(workshop):
    result = convert(workshop, 2, "names", workshop.folder / "missing.txt", "--out", workshop.folder / "data")
    assert result.code != 0 and result.err.count("ringtrain-data: error") == 1, result
