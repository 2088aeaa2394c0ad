"""Tests that the experiment does not depend on the machine. Ranks and micro-batches change the speed. Up to rounding,
they never change the result."""
import platform
from pathlib import Path

import pytest

from conftest import assert_close, assert_same_bits, curve, evaluations, steps

VARIANTS = {
    "adam": {},
    "sgd, dropout, clipping, decay": {"optimizer": {"kind": "sgd", "momentum": 0.9, "nesterov": True, "clip_norm": 0.5,
                                                    "weight_decay": 0.001},
                                      "learning_rate__base": 0.5, "model__dropout": 0.4},
    "masked blanks": {"data__blanks": "masked"},
    "lars": {"optimizer": {"kind": "lars", "trust_coefficient": 0.5, "weight_decay": 0.001}},
    "lamb": {"optimizer": {"kind": "lamb", "weight_decay": 0.01}},
    "muon": {"optimizer": {"kind": "muon", "momentum": 0.95, "weight_decay": 0.01, "other_rate": 0.5},
             "learning_rate__base": 0.02},
    "schedule-free": {"optimizer": {"kind": "sgd", "schedule_free": True}, "learning_rate__base": 1},
}
# In streams, each global row carries its hidden state from step to step.
TEXT = {"data__order": "streams", "data__sequence": 12, "batch": {"global": 16, "worker": 4}}


def has(instructions):
    """Returns whether this processor has an instruction set. `instructions` is avx2, avx512 or avx512_bf16."""
    cpu = Path("/proc/cpuinfo")
    flag = {"avx512": "avx512vl"}.get(instructions, instructions)
    return platform.machine() == "x86_64" and cpu.exists() and flag in cpu.read_text()


@pytest.mark.fast_cases("sgd, dropout, clipping, decay", "muon")
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_rank_is_two_ranks_is_four_ranks(workshop, variant):
    one, two, four = (workshop.train(f"ranks-{n}", ranks=n, **VARIANTS[variant]) for n in (1, 2, 4))
    assert len(steps(one)) == 20 and evaluations(one)
    assert_close(one, two)
    assert_close(one, four)


def test_carried_state_belongs_to_the_row_and_not_to_the_rank(workshop, text):
    workshop.data = text
    one, two, four = (workshop.train(f"ranks-{n}", ranks=n, **TEXT) for n in (1, 2, 4))
    assert_close(one, two)
    assert_close(one, four)


@pytest.mark.fast_cases("masked")
@pytest.mark.parametrize("blanks", ["counted", "masked"])
def test_accumulation_does_not_change_the_result(workshop, blanks):
    whole, halves, pieces = (workshop.train(f"micro-{n}", batch__micro=n, data__blanks=blanks) for n in (32, 16, 4))
    assert_close(whole, halves)
    assert_close(whole, pieces)


def test_the_size_of_workers_does_not_change_a_model_without_batch_norm(workshop):
    assert_close(workshop.train("eights", batch__worker=8), workshop.train("fours", batch__worker=4, ranks=2))


@pytest.mark.fast_cases("2")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_run_twice_has_the_same_bits(workshop, ranks):
    assert_same_bits(workshop.train("first", ranks=ranks), workshop.train("second", ranks=ranks))


def test_buckets_and_messages_of_any_size_give_the_same_result(workshop):
    large = workshop.train("large", ranks=2)
    small = workshop.train("small", ranks=2, communication__bucket_mib=0.001, communication__chunk_kib=1)
    assert_close(large, small)


def test_another_seed_is_another_run(workshop):
    a, b = (curve(workshop.train(f"seed-{seed}", seed=seed, stop__steps=3)) for seed in (1, 2))
    assert all(record_a[3] != record_b[3] for record_a, record_b in zip(a, b))


def test_training_learns(workshop):
    losses = [record["loss"] for record in steps(workshop.train("run", stop__steps=60))]
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]


@pytest.mark.skipif(not has("avx512_bf16"), reason="this processor has no AVX-512 BF16")
def test_bf16_gives_the_same_first_step_on_any_number_of_ranks(workshop):
    one, two, four = (steps(workshop.train(f"bf16-{n}", ranks=n, precision="bf16", stop__steps=2)) for n in (1, 2, 4))
    exact = steps(workshop.train("fp32", stop__steps=2))
    for other in two, four:
        assert one[0]["loss"] == pytest.approx(other[0]["loss"], rel=1e-4)
        assert one[0]["grad_norm"] == pytest.approx(other[0]["grad_norm"], rel=1e-2)
    assert one[0]["loss"] == pytest.approx(exact[0]["loss"], rel=1e-2)
    assert one[0]["grad_norm"] == pytest.approx(exact[0]["grad_norm"], rel=5e-2)
    assert one[0]["grad_norm"] != exact[0]["grad_norm"], "bf16 was asked for and fp32 has run"


def test_bf16_without_the_instructions_is_an_error_that_names_them(workshop):
    result = workshop.train_badly("run", precision="bf16", env={"RINGTRAIN_ISA": "baseline"})
    assert "AVX-512 BF16" in result.err and "avx512_bf16" in result.err, result


def test_every_instruction_set_gives_the_same_curve(workshop):
    best = workshop.train("best")
    for isa in ["baseline"] + [i for i in ("avx2", "avx512") if has(i)]:
        assert_close(best, workshop.train(isa, env={"RINGTRAIN_ISA": isa}))


def test_more_threads_than_the_affinity_mask_has_are_a_warning(workshop):
    run, job = workshop.start_training("run", run__threads=64, stop__steps=1)
    result = job.wait()
    assert result.code == 0 and "run.threads is 64" in result.err, result
