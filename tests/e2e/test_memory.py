"""Tests models that do not fit into memory. Recomputation changes no bit of a run, and a limit chooses what fits."""
import json
import re

import pytest

from conftest import assert_same_bits, last_step
from test_images import RESNET, data_sets, images  # noqa: F401 (fixtures)

TEXT = {"model__dropout": 0.2, "model__layers": 3, "stop__steps": 6}


def memory_of(run_dir):
    return json.loads((run_dir / "run.json").read_text())["starts"][-1]["memory_bytes_per_rank"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_recomputed_layers_of_a_text_model_change_no_bit(workshop, ranks):
    plain = workshop.train("plain", ranks=ranks, **TEXT)
    again = workshop.train("again", ranks=ranks, memory__recompute=["lstm"], **TEXT)
    assert_same_bits(plain, again)
    assert sum(memory_of(again).values()) < sum(memory_of(plain).values())


@pytest.mark.thorough
def test_recomputed_blocks_of_a_resnet_change_no_bit(images):
    small = {**RESNET, "batch": {"global": 16, "worker": 4, "micro": 8}, "stop": {"steps": 6}}
    plain = images.train("plain", ranks=2, **small)
    again = images.train("again", ranks=2, memory__recompute=["conv1", "layer1", "layer3.1"], **small)
    assert_same_bits(plain, again)
    assert sum(memory_of(again).values()) < sum(memory_of(plain).values())


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.thorough
def test_recomputed_blocks_of_stages_change_no_bit(images, schedule):
    small = {**RESNET, "batch": {"global": 32, "worker": 4, "micro": 8}, "stop": {"steps": 4},
             "parallel": {"kind": "pipeline", "stages": 2, "schedule": schedule}}
    plain = images.train("plain", ranks=2, **small)
    again = images.train("again", ranks=2, memory__recompute=["layer1", "layer3"], **small)
    assert_same_bits(plain, again)
    assert sum(memory_of(again).values()) < sum(memory_of(plain).values())


def test_a_limit_is_for_the_fullest_stage(images):
    staged = {**RESNET, "batch": {"global": 64, "worker": 4, "micro": 4}, "parallel": {"kind": "pipeline", "stages": 2}}

    def planned(*words):
        result = images.run("plan", images.experiment(**staged), "--ranks", 2, *words, ranks=0)
        sizes = [float(value) * {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1}[unit] for value, unit in
                 re.findall(r"parameters, ([\d.]+) (KiB|MiB|GiB) per rank", result.out)]
        return result, sizes

    _, plain = planned("parallel.schedule=gpipe")
    result, less = planned("parallel.schedule=gpipe", f"memory.limit_gib={max(plain) * 0.97}", "memory.recompute=auto")
    assert result.code == 0 and "recompute as chosen" in result.out, result
    assert max(less) <= 0.98 * max(plain) and len(less) == 2
    result, _ = planned("memory.limit_gib=0.001")
    assert result.code != 0 and "no batch.micro fits" in result.err, result


@pytest.mark.thorough
def test_a_run_goes_on_with_other_blocks(images):
    small = {**RESNET, "stop": {"steps": 6}}
    whole = images.train("whole", **small)
    images.train("parts", **{**small, "stop": {"steps": 3}})
    parts = images.train("parts", resume=True, memory__recompute=["layer1", "layer2"], **small)
    assert last_step(parts) == 6
    assert_same_bits(whole, parts)


def test_a_limit_chooses_the_micro_batch_and_the_blocks(images):
    def planned(*words):
        return images.run("plan", images.experiment(**RESNET), *words, ranks=0)
    roomy = planned("memory.limit_gib=4")
    assert roomy.code == 0 and "largest micro-batch 16" in roomy.out, roomy
    assert "of a step's flops" in roomy.out and "recompute all blocks" in roomy.out, roomy
    # How much memory convolutions need depends on the processor.
    nothing, all_blocks = (float(re.search(rf"recompute {what} +([\d.]+) MiB with a micro-batch of 16,", roomy.out)[1])
                           for what in ("nothing", "all blocks"))
    tight = planned(f"memory.limit_gib={(nothing + all_blocks) / 2 / 1024}", "batch.micro=16", "memory.recompute=auto")
    assert tight.code == 0 and "recompute as chosen" in tight.out, tight
    refused = planned("memory.limit_gib=0.001")
    assert refused.code != 0 and "no batch.micro fits" in refused.out + refused.err, refused


def test_what_cannot_be_is_refused_with_the_reason(images):
    for words, reasons in {
        ("memory.recompute=auto",): ["set memory.limit_gib"],
        ("memory.recompute=[layer9]",): ["memory.recompute", "layer9", "layer4.1"],
        ("memory.offload=true",): ["memory.offload", "CPU"],
        ("memory.limit_gib=-1",): ["memory.limit_gib"],
        ("batch.micro=16", "memory.limit_gib=0.02"): ["micro-batch of 16", "memory.limit_gib"],
    }.items():
        result = images.run("plan", images.experiment(**RESNET), *words, ranks=0)
        assert result.code != 0 and all(r in result.out + result.err for r in reasons), (words, result)
