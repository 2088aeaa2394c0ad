"""Writes run folders without a run, as `ringtrain train` would leave them. The curves follow formulas."""

import json

import yaml

TARGET = 0.6  # validation accuracy of pictures; for text a loss of 1.6


def steps_needed(batch, s_min=100, e_min=40000):
    return s_min + e_min / batch


def experiment(batch, rate, seed, image=True, **more):
    """Makes an experiment. `more` maps sections to keys that are added to them."""
    tree = {
        "name": "made",
        "seed": seed,
        "precision": "fp32",
        "model": {"kind": "cnn" if image else "char_lstm"},
        "data": {"train": "data/made-train", "validation": "data/made-validation"},
        "batch": {"global": batch, "worker": 16},
        "optimizer": {"kind": "sgd", "weight_decay": 0.0001},
        "learning_rate": {"base": rate, "base_batch": 0, "scaling": "none"},
        "stop": {"steps": 0, "target_metric": "", "target_value": 0},
        "run": {"dir": f"somewhere/{batch}/{seed}", "threads": 1},
    }
    for section, keys in more.items():
        tree[section] = {**tree.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return tree


def start(batch, ranks, seconds, outcome, samples=1000, **more):
    return {
        "started": "2026-01-01T00:00:00Z",
        "commit": "abc1234",
        "ranks": ranks,
        "hosts": {"node1": list(range(ranks))},
        "versions": {"MPI": "Open MPI"},
        "backend": "CPU",
        "precision": "fp32",
        "batch": {"global": batch},
        "train": {"path": "data/made-train", "samples": samples},
        "validation": {"path": "", "samples": 100},
        "memory_bytes_per_rank": {"weights": 2**20, "activations": batch * 2**14},
        "energy_joules": {"package": 3.6e6},
        "elapsed_seconds": seconds,
        "outcome": outcome,
        **more,
    }


def update(step, batch, ranks, rate, need):
    """Makes a step's record. Forward and backward time fall with the number of ranks, and communication time grows."""
    parts = {
        "input_seconds": 0.001,
        "forward_seconds": 0.02 * batch / 64 / ranks,
        "backward_seconds": 0.04 * batch / 64 / ranks,
        "communication_seconds": 0.002 * (ranks - 1),
        "update_seconds": 0.003,
    }
    seconds = sum(parts.values()) + 0.001
    scale = 50 * (1 + step / need)
    return {
        "step": step,
        "epoch": step * batch / 1000,
        "samples": step * batch,
        "loss": 2.5 - min(1.4, 0.9 * step / need),
        "accuracy": 0.5,
        "lr": rate,
        "global_batch": batch * (2 if step > need else 1),
        "grad_norm": 1.0,
        "seconds": seconds,
        "samples_per_second": batch / seconds,
        "elapsed_seconds": seconds * step,
        **parts,
        "noise_trace": 1.0,
        "noise_gradient": 0.01,
        "noise_scale": scale,
        "noise_scale_low": scale / 2,
        "noise_scale_high": scale * 2,
    }


def evaluation(step, batch, need):
    done = min(1.4, step / need)
    return {
        "step": step,
        "epoch": step * batch / 1000,
        "samples": step * batch,
        "validation_loss": 2.5 - 0.9 * done,
        "validation_accuracy": TARGET * done**0.5 if done < 1 else min(0.9, TARGET + 0.1 * (done - 1)),
        "validation_targets": 100,
        "evaluation_seconds": 0.5,
        "best": True,
    }


def write(folder, batch, rate=0.1, seed=1, ranks=1, need=None, outcome="finished", every=None, **more):
    """Writes a run that reaches the target after `need` steps and goes on for 20 % more, with an evaluation `every`
    steps."""
    need = round(need if need is not None else steps_needed(batch))
    every, last = every or max(1, need // 20), round(need * 1.2)
    lines = []
    for step in range(1, last + 1):
        if step % max(1, last // 60) == 0 or step % every == 0:
            lines.append(update(step, batch, ranks, rate, need))
        if step % every == 0:
            lines.append(evaluation(step, batch, need))
    seconds = lines[-1].get("elapsed_seconds", lines[-2].get("elapsed_seconds"))
    write_files(folder, experiment(batch, rate, seed, **more), start(batch, ranks, seconds, outcome), lines)
    return folder


def write_files(folder, tree, record, lines):
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    top = {key: record[key] for key in ("outcome", "elapsed_seconds")}
    (folder / "run.json").write_text(
        json.dumps({"name": tree["name"], **top, "final_step": lines[-1]["step"], "starts": [record]})
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def grid(folder, batches=(32, 128, 512, 2048), seeds=(1, 2, 3), rates=(0.05, 0.1, 0.2), **more):
    """Writes a study in which the middle rate is the best one."""
    for batch in batches:
        for rate in rates:
            for seed in seeds:
                slow = 1 if rate == 0.1 else 1.5
                write(
                    folder / f"b{batch}-r{rate}-s{seed}",
                    batch,
                    rate,
                    seed,
                    need=slow * steps_needed(batch) * (0.98 + 0.01 * seed),
                    **more,
                )
    for ranks in (2, 4):
        write(folder / f"ranks{ranks}", 512, 0.1, 1, ranks, need=0.99 * steps_needed(512), **more)
    write(
        folder / "boom",
        512,
        9.0,
        1,
        need=30,
        outcome="error: step 3: the loss is 1e+22, but the gradient's norm is NaN",
        **more,
    )
    return folder


def branch_study(folder, parent_batch=64, points=(500, 1500), factors=(1, 2, 4, 8), samples=32000, critical=200):
    """Writes a parent and a study of its branches. At the same number of samples, the loss of a branch exceeds that of
    the parent by 0.005 (batch / critical)^2 x (1000 / step). `step` is the parent's step at which the branch begins. So
    the largest batch that costs no extra samples grows along the run."""
    parent = folder / "parent"
    lines = [
        {**update(step, parent_batch, 1, 0.1, 2000), "loss": 3 - 0.0005 * step, "noise_scale": 0.2 * step}
        for step in range(1, 2501)
    ]
    write_files(parent, experiment(parent_batch, 0.1, 1, image=False), start(parent_batch, 1, 9.0, "finished"), lines)
    for point in points:
        for factor in factors:
            batch = factor * parent_batch
            extra = 0.005 * (batch / critical) ** 2 * 1000 / point
            steps = samples // batch
            own = []
            for number in range(1, steps + 1):
                record = update(point + number, parent_batch, 1, 0.1, 2000)
                seen = point * parent_batch + number * batch
                own.append(
                    {**record, "samples": seen, "loss": 3 - 0.0005 * seen / parent_batch + extra, "global_batch": batch}
                )
            own.append({**evaluation(own[-1]["step"], batch, 2000), "samples": own[-1]["samples"]})
            place = {
                "from": f"{parent}/checkpoints/step-{point:09}.h5",
                "run": str(parent),
                "step": point,
                "samples": point * parent_batch,
                "epoch": point * parent_batch / 1000,
                "batch_factor": factor,
            }
            record = start(batch, 1, 3.0, "finished", branch=place, resumed_from_step=point)
            changes = {"branch": {"from": f"{parent}@{point}steps", "batch_factor": factor, "samples": samples}}
            tree = experiment(batch, 0.1, 1, image=False, **changes)
            write_files(folder / "branches" / f"at-{point}steps_x{factor}", tree, record, own)
    return folder / "branches"


def halving_study(folder, losses=((2.0, 1.5, 1.2), (2.1, 1.6, 1.4), (2.2, 1.7), (2.3,), (2.4,), (2.5,), (None,))):
    """Writes a search with one trial for each list in `losses`. A list holds a loss for each rung that the trial
    ended. A trial that did not go on has paused at the end of its last rung."""
    trials, samples = [], (1000, 3000, 9000)
    for number, own in enumerate(losses):
        name = f"t{number}"
        outcome = "finished" if len(own) == len(samples) else f"paused after {samples[len(own) - 1]} samples"
        write(folder / name, 64, 0.1 * (number + 1), need=20 * 3 ** (len(own) - 1), outcome=outcome, image=False)
        trials.append(
            {"name": name, "state": "finished", "rung": len(own), "promoted": len(own) > 1, "rung_losses": own}
        )
    rungs = [{"rung": i + 1, "samples": n, "trials": t} for i, (n, t) in enumerate(zip(samples, (7, 3, 2)))]
    record = {"name": folder.name, "search": {"kind": "halving", "factor": 3, "rungs": rungs}, "trials": trials}
    (folder / "study.json").write_text(json.dumps(record))
    return folder
