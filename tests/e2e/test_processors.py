"""Tests ranks whose processors have different instruction sets, and a processor with AVX2 alone. RINGTRAIN_ISA, and
oneDNN's own variable, stand for the processors."""
import os
import socket
import subprocess

import pytest

from conftest import HANG_SECONDS, ROOT, assert_same_bits, last_step, start_ranks
from test_fixed_order import IMAGES, assert_same_on_all
from test_images import make_images

# Rank 1 has an old processor.
OLD = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then export RINGTRAIN_ISA=baseline; fi'
CHECKED = dict(stop__steps=12, communication__check_every_steps=1)
# oneDNN's code for AVX2 cuts its work in another way than that for AVX-512, and so shows other faults.
AVX2 = {"RINGTRAIN_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2"}


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


@pytest.mark.parametrize("tests", ["Muon.*", "*ConvolutionWeights*"])
def test_unit_tests_pass_with_avx2(tests):
    program = ROOT / "build/tests/unit_tests"
    if not program.exists():
        pytest.skip("build/tests/unit_tests is not built")
    done = subprocess.run([program, f"--gtest_filter={tests}"], env={**os.environ, **AVX2}, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0 and "[  PASSED  ]" in done.stdout, done.stdout + done.stderr


def test_pictures_in_fixed_order_with_avx2(workshop, tmp_path, monkeypatch):
    for name, value in AVX2.items():
        monkeypatch.setenv(name, value)
    workshop.data = make_images(tmp_path, "raw", 32)
    assert_same_on_all(workshop, [2], **IMAGES)
