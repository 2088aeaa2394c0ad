"""Tests what `plan --device` says about a GPU's memory traffic. A build without CUDA cannot say it."""
import re

import pytest

from conftest import built_with_cuda

pytestmark = pytest.mark.skipif(not built_with_cuda(), reason="this build is without CUDA")


@pytest.mark.thorough
def test_plan_says_what_a_step_moves_through_a_described_gpus_memory(workshop):
    cache = {"XDG_CACHE_HOME": str(workshop.folder / "cache")}
    result = workshop.run("plan", workshop.experiment(), "--device", "h200", "precision=bf16", ranks=0, env=cache)
    assert result.code == 0, result
    section = result.out.split("memory traffic of one rank's GPU, bytes per sample")[1]
    rows = {name: int(value.replace(",", "")) for name, value in re.findall(r"^  (\w[\w' ]+?) +([\d,]+)$", section, re.M)}
    assert rows["total"] == pytest.approx(rows["forward"] + rows["backward"] + rows["weights' own copies"], abs=2)
    assert min(rows["forward"], rows["backward"], rows["FLOPs"]) > 0
    assert re.search(r"joined kernels +\d+ sites, nothing timed", section)
    (least,) = re.findall(r"^bound  the passes of a step take at least (\S+) ms with 4.3 TB/s and 790 TFLOP/s$", result.out, re.M)
    assert float(least) > 0
    on_cpu = workshop.run("plan", workshop.experiment(), ranks=0)
    assert "memory traffic" not in on_cpu.out and "bound  " not in on_cpu.out


@pytest.mark.thorough
def test_plan_takes_what_a_search_has_kept_and_says_when_it_cannot(workshop):
    plans = workshop.folder / "plans"
    plans.mkdir()
    (plans / "fusions").write_text("not a table\n")
    result = workshop.run("plan", workshop.experiment(), "--device", "h200", f"machine.plan_cache={plans}", ranks=0)
    assert result.code == 0, result
    assert f"{plans}/fusions: line 1 of the table of fusions is not understood" in result.text


@pytest.mark.thorough
def test_plan_shows_the_stages_of_a_pipeline_on_gpus(workshop):
    cache = {"XDG_CACHE_HOME": str(workshop.folder / "cache")}
    words = ["--device", "h200", "--ranks", "4", "parallel.kind=pipeline", "parallel.stages=2", "batch.micro=2"]
    result = workshop.run("plan", workshop.experiment(), *words, ranks=0, env=cache)
    assert result.code == 0, result
    section = result.out.split("pipeline, 1f1b")[1]
    assert len(re.findall(r"stage [01] .* of the GPU's memory per rank, .* in flight", section)) == 2, result
    assert re.search(r"to stage 1: .* of activations a micro-batch, .* of gradients back", section)


@pytest.mark.thorough
def test_plan_refuses_what_does_not_fit_into_the_gpu(workshop):
    """With memory.limit_gib 0, the limit is the memory of the GPU. Weights, gradients and Adam's state need 192 GiB,
    which is more than an H200 has."""
    words = ["--device", "h200", "model.hidden=32768"]
    cache = {"XDG_CACHE_HOME": str(workshop.folder / "cache")}
    result = workshop.run("plan", workshop.experiment(), *words, ranks=0, env=cache)
    assert result.code == 1 and "its GPU has 139." in result.err and "no batch.micro fits" in result.err, result
    result = workshop.run("plan", workshop.experiment(), *words, "memory.limit_gib=1000", ranks=0, env=cache)
    assert result.code == 0, result
