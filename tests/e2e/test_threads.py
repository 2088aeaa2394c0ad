"""Tests variables that let OpenMP start fewer threads than a run asks for. The run computes the same, or it is refused
with the variable's name."""
import pytest

from conftest import steps

NO_LEVELS = {"OMP_MAX_ACTIVE_LEVELS": "0"}  # every region would have one thread
LIMIT = {"OMP_THREAD_LIMIT": "1"}


def curve(run):
    return [(line["loss"], line["grad_norm"]) for line in steps(run)]


def test_smaller_teams_are_switched_off(workshop):
    settings = {"stop__steps": 3, "run__threads": 2}
    whole = workshop.train("whole", **settings)
    assert len(curve(whole)) == 3
    for number, env in enumerate([NO_LEVELS, {"OMP_DYNAMIC": "true"}, {"OMP_NESTED": "true"}]):
        assert curve(workshop.train(f"run-{number}", env=env, **settings)) == curve(whole), env


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_limit_of_threads_is_refused_by_name(workshop, ranks):
    result = workshop.train_badly("run", ranks=ranks, env=LIMIT, run__threads=2, stop__steps=2)
    assert "OMP_THREAD_LIMIT is 1" in result.err and "run.threads=1" in result.err, result
    assert not (workshop.folder / "run" / "metrics.jsonl").exists()
    workshop.train("one", ranks=ranks, env=LIMIT, run__threads=1, stop__steps=2)


def test_evaluate_and_bench_refuse_it_too(workshop):
    run = workshop.train("run", stop__steps=2, run__threads=2)
    for words in (["evaluate", run], ["bench", "step", workshop.experiment(run__threads=2)]):
        result = workshop.run(*words, env=LIMIT)
        assert result.code not in (0, 85) and "OMP_THREAD_LIMIT is 1" in result.err, result
