"""Tests the commands for one process, started in a job of two ranks. Rank 0 does what one process does, and the job
ends well."""
import pytest
from conftest import CONVERTER, LAUNCHER, Job, arrays, checkpoints


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
