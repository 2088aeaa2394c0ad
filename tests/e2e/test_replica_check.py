"""A bit of one rank's memory flips. The job must end before the next checkpoint, say where the flip was, and continue
from the last good checkpoint."""
import socket

import h5py
import pytest

from conftest import assert_same_bits, checkpoints, last_step
from test_images import RESNET, data_sets, images  # noqa: F401 (fixtures)


def flip(step, tensor, rank=1):
    return {"flip_bit_rank": rank, "flip_bit_step": step, "flip_bit_in": tensor}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("tensor", ["weights/lstm.weight_hh_l0", "optimizer/exp_avg/linear.bias"])
@pytest.mark.thorough
def test_a_flipped_bit_ends_the_job_before_the_next_checkpoint(workshop, ranks, tensor):
    common = dict(ranks=ranks, stop={"epochs": 0, "steps": 20}, evaluate__every_epochs=0, checkpoint={"every_steps": 5, "every_epochs": 0, "keep": 10})
    whole = workshop.train("whole", **common)
    run, job = workshop.start_training("run", **common, test=flip(12, tensor))
    result = job.wait()
    assert result.code not in (0, 85), result
    host = socket.gethostname()
    who = (f"rank 1 on {host} has a copy of the model that differs from that of the 3 other ranks" if ranks == 4
           else f"ranks 0 on {host} and 1 on {host} have different copies of the model")
    good = next(path for path in checkpoints(run) if "10" in path.name)
    assert f"after step 15, {who}; the first tensor that differs is" in result.err, result
    assert f"known to be good, {good} (after step 10)" in result.err, result
    assert result.err.count("ringtrain: error") == 1, result
    assert not any("15" in path.name for path in checkpoints(run))
    workshop.train("run", resume=True, **common)
    assert_same_bits(whole, run)


def test_every_so_many_steps_it_is_found_in_the_next_comparison_and_without_it_not_at_all(workshop):
    common = dict(ranks=2, stop={"epochs": 0, "steps": 20}, checkpoint={"every_epochs": 0}, evaluate__every_epochs=0)
    result = workshop.train_badly("run", **common, test=flip(5, "weights/linear.weight"), communication__check_every_steps=2)
    assert "after step 6, " in result.err and "there is no checkpoint that is known to be good" in result.err, result
    run = workshop.train("unseen", **common, test=flip(5, "weights/linear.weight"), communication__check_every_steps=0)
    assert last_step(run) == 20


@pytest.mark.parametrize("first", [dict(ranks=1), dict(ranks=2, communication__check_every_steps=0)])
@pytest.mark.thorough
def test_a_checkpoint_that_was_written_without_a_comparison_is_not_called_good(workshop, first):
    common = dict(evaluate__every_epochs=0, checkpoint={"every_steps": 5, "every_epochs": 0, "keep": 2})
    run = workshop.train("run", **first, **common, stop={"epochs": 0, "steps": 10})
    with h5py.File(checkpoints(run)[-1]) as file:
        assert file.attrs["compared"] == 0
    result = workshop.train_badly("run", ranks=2, resume=True, **common, stop={"epochs": 0, "steps": 20}, test=flip(12, "weights/linear.weight"))
    assert f"start the run again, or --resume from {run}/checkpoints/step-000000010.h5 (after step 10), which is not known to be good" in result.err, result
    # The next checkpoint is written after a comparison.
    result = workshop.train_badly("run", ranks=2, resume=True, **common, stop={"epochs": 0, "steps": 20}, test=flip(17, "weights/linear.weight"))
    assert f"--resume from the last checkpoint that is known to be good, {run}/checkpoints/step-000000015.h5 (after step 15)," in result.err, result
    with h5py.File(checkpoints(run)[-1]) as file:
        assert file.attrs["compared"] == 1


@pytest.mark.parametrize("way", [{"mode": "async"}, {"backup_workers": 1}])
def test_ranks_that_seldom_meet_refuse_a_number_of_steps(workshop, way):
    result = workshop.train_badly("run", ranks=3, parallel={"kind": "server", **way}, communication__check_every_steps=4)
    assert "communication.check_every_steps is 4, expected -1 (these ranks compare their copies when all of them meet" in result.err, result


@pytest.mark.parametrize("way, ranks, who, tensor", [
    ({"shard_state": True}, 2, "ranks 0 on {host} and 1 on {host} have different copies of the model", "linear.weight"),
    ({"kind": "server"}, 4, "rank 1 on {host} has a copy of the model that differs from that of the 3 other ranks", "lstm.weight_ih_l0"),
    ({"kind": "pipeline", "stages": 2, "cuts": ["lstm.l1"]}, 4,
     "ranks 1 on {host} and 3 on {host} have different copies of the model of stage 1", "linear.weight"),
])
@pytest.mark.thorough
def test_it_is_found_whichever_way_ranks_work_together(workshop, way, ranks, who, tensor):
    result = workshop.train_badly("run", ranks=ranks, parallel=way, stop={"epochs": 0, "steps": 20}, evaluate__every_epochs=0,
                                  model={"layers": 2}, checkpoint={"every_epochs": 0}, communication__check_every_steps=4,
                                  test=flip(8, f"weights/{tensor}"))
    expected = f"after step 8, {who.format(host=socket.gethostname())}; the first tensor that differs is weights/{tensor}"
    assert expected in result.err, result


@pytest.mark.parametrize("tensor", ["layer2.0.bn1.running_var", "layer3.0.conv1.weight"])
def test_it_is_found_in_running_statistics(images, tensor):  # noqa: F811
    result = images.train_badly("run", ranks=2, **RESNET, test=flip(1, f"weights/{tensor}"),
                                communication__check_every_steps=1)
    assert "after step 1, ranks 0 on" in result.err, result
    assert f"the first tensor that differs is weights/{tensor}" in result.err, result
