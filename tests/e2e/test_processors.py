"""Tests ranks whose processors have different instruction sets. RINGTRAIN_ISA stands for the processors."""
import socket

import pytest

from conftest import assert_same_bits, last_step, start_ranks

# Rank 1 has an old processor.
OLD = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then export RINGTRAIN_ISA=baseline; fi'
CHECKED = dict(stop__steps=12, communication__check_every_steps=1)


@pytest.fixture(autouse=True)
def two_kinds():
    if "avx2" not in open("/proc/cpuinfo").read():
        pytest.skip("this processor has no instructions beyond the baseline")


def test_all_ranks_compute_with_the_lowest_set_and_one_warning_names_it(workshop):
    run = workshop.folder / "two-kinds"
    job = start_ranks(workshop, 2, OLD, "train", workshop.experiment(run__dir=str(run), **CHECKED))
    result = job.wait()
    assert result.code == 0 and last_step(run) == 12, result
    assert result.err.count("different instruction sets") == 1, result
    assert f"rank 1 on {socket.gethostname()} has baseline, others up to AVX" in result.err, result
    assert "All ranks compute with baseline" in result.err, result
    # oneDNN has been limited as well, to what the old processor has.
    old = workshop.train("old", ranks=2, env={"RINGTRAIN_ISA": "baseline", "ONEDNN_MAX_CPU_ISA": "SSE41"}, **CHECKED)
    assert_same_bits(run, old)


def test_equal_processors_are_not_mentioned(workshop):
    run, job = workshop.start_training("run", ranks=2, stop__steps=2)
    result = job.wait()
    assert result.code == 0 and "instruction sets" not in result.text, result
