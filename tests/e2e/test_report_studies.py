"""Tests how results/report.py shows branches, a search, and the information of a study about its trials."""

import fcntl
import io
import json
import math
import re
import shutil
import sys

import pytest

import made_runs
from conftest import ROOT

sys.path.insert(0, str(ROOT / "results"))
from reporting import branches, cells, figures_curves, fit, measures, runs, sections, small_svg, speed, style, tables  # noqa: E402


def items(*folders):
    """Maps names to figures or tables of the whole report."""
    found = [item for section in sections.make(runs.read_all(folders)) for item in section.items]
    return {item.name: item for item in found if not isinstance(item, style.Missing)}


# ---- Branches ------------------------------------------------------------------------------------------------------


def expected_excess(factor, point, samples=32000):
    """Returns how much higher the loss of this branch is because of its batch, by the formula of
    made_runs.branch_study."""
    return 0.005 * (64 * factor / 200) ** 2 * 1000 / point


def test_the_largest_batch_without_loss_is_found_at_each_point(tmp_path):
    study = made_runs.branch_study(tmp_path)
    points, _ = branches.points_of(runs.read_all([study]))
    assert [(p.step, p.samples, p.epoch) for p in points] == [(500, 32000, 32.0), (1500, 96000, 96.0)]
    assert [(p.largest, p.batch_of(p.largest)) for p in points] == [(2, 128), (4, 256)]
    for point in points:
        for factor, loss in point.losses.items():
            own = [b for b in point.branches if b.factor == factor]
            falls = 0.0005 * factor  # how far the loss falls in a step
            at_end = (
                3 - 0.0005 * (point.samples + own[0].steps * own[0].batch) / 64 + expected_excess(factor, point.step)
            )
            assert loss == pytest.approx(at_end + falls, abs=1e-6)  # an average of halves lags by one step
    rows = items(study)["branch_points"].rows
    assert [r["times_the_batch"] for r in rows if r["largest_without_loss"]] == [2, 4]


def test_a_larger_batch_counts_only_against_all_smaller_ones():
    def point(losses):
        made = [branches.Branch(None, k, 64 * k, loss, 100, None) for k, loss in losses.items()]
        return branches.Point(None, 1, 64, 1.0, made)

    assert point({1: 2.0, 2: 2.009, 4: 2.011, 8: 2.5}).largest == 2
    assert point({1: 2.0, 2: 2.5, 4: 2.0}).largest == 4
    assert point({1: 2.0, 2: 1.9, 4: 1.95}).largest == 2
    assert point({1: 2.0, 2: math.inf}).largest == 1
    assert point({1: math.inf, 2: 2.0}).largest == 2
    assert point({1: math.inf}).largest is None


def test_smoothing_halves_the_past():
    assert branches.smoothed([4.0, 2.0, 1.0]) == 0.5 * (0.5 * 4 + 0.5 * 2) + 0.5 * 1
    assert branches.smoothed([]) == math.inf and branches.smoothed([1.0, math.nan]) == math.inf


def test_without_a_branch_at_the_same_batch_the_parent_itself_is_the_smallest(tmp_path):
    study = made_runs.branch_study(tmp_path, factors=(1, 4))
    with_one = {p.step: p.losses for p in branches.points_of(runs.read_all([study]))[0]}
    for folder in study.glob("*_x1"):
        shutil.rmtree(folder)
    points, _ = branches.points_of(runs.read_all([study]))
    for point in points:
        assert point.losses[4] == with_one[point.step][4] and point.batch_of(1) == 64
        excess = expected_excess(1, point.step)  # the parent's loss has no such part
        assert point.losses[1] == pytest.approx(with_one[point.step][1] - excess, abs=1e-9)


def test_a_branch_figure_tells_what_makes_it_weak(tmp_path):
    study = made_runs.branch_study(tmp_path, points=(500,), factors=(1, 2, 128))
    record = json.loads((study / "at-500steps_x2" / "run.json").read_text())
    record["outcome"] = "error: step 510: the loss is NaN"
    (study / "at-500steps_x2" / "run.json").write_text(json.dumps(record))
    warned = " ".join(items(study)["branches"].warnings)
    assert "fewer than 5 steps in the branches at x 128" in warned
    assert "the branches at x 2 did not finish" in warned


def test_branches_are_in_no_figure_of_whole_runs(tmp_path):
    study = made_runs.branch_study(tmp_path)
    made = sections.make(runs.read_all([study, tmp_path / "parent"]))
    assert [s.title for s in made] == ["Char lstm on made", "Branches", "Trials"]
    assert made[0].text.startswith("1 run of 1 experiment:")
    assert {r["batch"] for r in made[2].items[0].rows} == {64, 128, 256, 512}


# ---- Search --------------------------------------------------------------------------------------------------------


def test_a_search_shows_its_rungs_and_who_went_on(tmp_path):
    found = items(made_runs.halving_study(tmp_path / "search"))
    columns = ("rung", "samples", "trials_begun", "went_on", "best_validation_loss", "worst_validation_loss")
    assert [tuple(row[c] for c in columns) for row in found["rungs"].rows] == [
        (1, 1000, 7, 3, 2.0, 2.5),
        (2, 3000, 3, 2, 1.5, 1.7),
        (3, 9000, 2, None, 1.2, 1.4),
    ]
    assert [row["trial"] for row in found["halving_trials"].rows] == ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]
    assert found["halving_trials"].rows[2]["loss_at_rung_2"] == 1.7
    assert len(found["halving"].rows) == 12


def test_a_figure_with_an_interval_without_points_is_made_smaller():
    drawing, (axis,) = style.panels(height=2)
    axis.vlines([3], [math.nan], [4])  # matplotlib writes a path without coordinates
    axis.plot([1, 2], [3, 4])
    text = io.StringIO()
    drawing.savefig(text, format="svg")
    assert any('d="' not in path for path in re.findall(r"<path[^>]*>", text.getvalue()))
    assert "<path" in small_svg.smaller(text.getvalue())


def test_each_search_of_a_study_has_its_own_rungs(tmp_path):
    folder = made_runs.halving_study(tmp_path / "search")
    record = json.loads((folder / "study.json").read_text())
    rungs = record["search"].pop("rungs")
    parts = [{"value": "64", "names": ["t0", "t1", "t2"], "rungs": rungs},
             {"value": "128", "names": ["t3", "t4", "t5", "t6"], "rungs": [{"rung": 1, "samples": 1000, "trials": 4}]}]
    record["search"].update(within="batch.global", searches=parts)
    (folder / "study.json").write_text(json.dumps(record))
    found = items(folder)
    assert [row["trials_begun"] for row in found["rungs"].rows] == [3, 3, 2]
    assert [row["trials_begun"] for row in found["rungs_2"].rows] == [4]
    assert found["halving"].title == "Successive halving, batch.global 64"


def test_a_trial_that_reached_its_target_in_an_early_rung_has_finished(tmp_path):
    folder = made_runs.halving_study(tmp_path / "search")
    path = folder / "t3" / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "outcome": "finished", "end": "target reached"}))
    states = {row["trial"]: row["state"] for row in items(folder)["trials"].rows}
    assert states["t3"] == "finished" and states["t4"] == "stopped"


def test_a_trial_that_did_not_go_on_has_no_final_value(tmp_path):
    found = items(made_runs.halving_study(tmp_path / "search"))
    rows = found["experiments"].rows
    assert sum(row["finished"] for row in rows) == 2 and sum(row["mean"] is not None for row in rows) == 2
    assert [row["state"] for row in found["trials"].rows] == ["finished"] * 2 + ["stopped"] * 5
    assert not found["failures"].rows


# ---- The information of a study -------------------------------------------------------------------------------------


def study_of(folder, **trials):
    """Writes study.json with these trials, as name -> information."""
    folder.mkdir(exist_ok=True)
    listed = [{"name": name, "overrides": {"batch.global": 64}, **said} for name, said in trials.items()]
    (folder / "study.json").write_text(json.dumps({"name": folder.name, "trials": listed}))
    return folder


def test_a_killed_trial_has_the_studys_words(tmp_path):
    made_runs.write(tmp_path / "s" / "killed", 64, outcome="not ended")
    made_runs.write(tmp_path / "s" / "waits", 64, seed=2, outcome="not ended")
    made_runs.write(tmp_path / "s" / "fine", 64, seed=3)
    study_of(
        tmp_path / "s",
        killed={"state": "failed", "error": "rank 1 was lost"},
        waits={"state": "waiting"},
        fine={"state": "finished", "also": ["same-as-fine"]},
        never={"state": "failed", "error": "error: batch.global is 0"},
    )
    made = runs.read_all([tmp_path / "s"])
    assert {r.name: r.state for r in made} == {
        "killed": "failed",
        "waits": "stopped",
        "fine": "finished",
        "never": "failed",
    }
    rows = {row["trial"]: row for row in tables.failures(made).rows}
    assert rows["killed"]["why"] == "rank 1 was lost" and rows["never"]["why"] == "error: batch.global is 0"
    assert {row["trial"]: row["also"] for row in tables.trials(made).rows}["fine"] == "same-as-fine"


def test_a_trial_that_was_killed_before_its_first_record_is_dead(tmp_path):
    trial = tmp_path / "s" / "a"
    made_runs.write(tmp_path / "s" / "b", 64)
    trial.mkdir()
    (trial / "trial.json").write_text('{"name": "a", "overrides": {"batch.global": 128}, "state": "running"}')
    (tmp_path / "s" / "study.json").write_text('{"trials": [{"name": "a", "overrides": {"batch.global": 128}, "state": "running"}]}')
    lock = trial / ".lock"
    lock.touch()
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert next(run.state for run in runs.read_all([tmp_path / "s"]) if run.name == "a") == "running"
    assert [(run.state, run.outcome) for run in runs.read_all([tmp_path / "s"]) if run.name == "a"] == [("killed", "killed")]


def test_a_run_whose_lock_nobody_holds_is_dead(tmp_path):
    lock = made_runs.write(tmp_path / "s" / "a", 64, outcome="not ended") / ".lock"
    lock.touch()
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert [(run.state, run.outcome) for run in runs.read_all([tmp_path / "s"])] == [("running", "not ended")]
    assert [(run.state, run.outcome) for run in runs.read_all([tmp_path / "s"])] == [("killed", "killed")]
    found = items(tmp_path / "s")
    assert [(row["state"], row["why"]) for row in found["failures"].rows] == [("killed", "killed")]
    assert [row["killed"] for row in found["experiments"].rows] == [1]


def test_a_trials_own_file_stands_in_for_the_studys(tmp_path):
    folder = made_runs.write(tmp_path / "s" / "a", 64, outcome="not ended")
    (folder / "trial.json").write_text(json.dumps({"name": "a", "state": "diverged", "error": "the loss is NaN"}))
    (made,) = runs.read_all([tmp_path / "s"])
    assert (made.state, made.outcome) == ("diverged", "the loss is NaN")


def test_a_folder_without_an_experiment_does_not_end_the_report(tmp_path):
    made_runs.write(tmp_path / "s" / "a", 64)
    made_runs.write(tmp_path / "s" / "b", 64, seed=2)
    (tmp_path / "s" / "b" / "experiment.yaml").unlink()
    made = runs.read_all([tmp_path / "s"])
    assert [row["trial"] for row in tables.failures(made).rows] == ["b"]
    assert "no experiment.yaml" in tables.failures(made).rows[0]["why"]
    assert items(tmp_path / "s")["experiments"].rows[0]["finished"] == 1


def test_the_place_of_an_error_is_told(tmp_path):
    folder = made_runs.write(tmp_path / "s" / "a", 64, outcome="error: no space left")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "thrown_at": "checkpoint/writer.cpp:80"}))
    (row,) = tables.failures(runs.read_all([tmp_path / "s"])).rows
    assert (row["where"], row["why"]) == ("checkpoint/writer.cpp:80", "error: no space left")


# ---- Names of lines ------------------------------------------------------------------------------------------------


def test_families_are_named_by_what_tells_them_apart(tmp_path):
    """Keys that always change together appear once. Defaults appear only if no other key is left."""
    adam = {"optimizer": {"kind": "adam", "beta2": 0.999}, "learning_rate": {"schedule": "constant"}}
    sgd = {"optimizer": {"kind": "sgd", "beta2": 0.9}, "learning_rate": {"schedule": "step"}}
    scale = {"optimizer": {"kind": "sgd", "beta2": 0.9, "adascale": True}, "learning_rate": {"schedule": "step"}}
    for name, more in {"a": adam, "b": sgd, "c": scale}.items():
        made_runs.write(tmp_path / "s" / name, 64, **more)
    made = cells.make_cells(runs.read_all([tmp_path / "s"]))
    words = sorted(cells.label(family) for family in cells.families(made))
    assert words == ["optimizer.kind adam, adascale false", "optimizer.kind sgd", "optimizer.kind sgd, adascale true"]


def test_a_folder_older_than_a_key_is_of_the_family_of_its_default(tmp_path):
    for name, more in {"old": {}, "new": {"optimizer": {"adascale": False}}}.items():
        made_runs.write(tmp_path / "s" / name, 64, seed=len(name), **more)
    assert len(cells.make_cells(runs.read_all([tmp_path / "s"]))) == 1


# ---- Energy --------------------------------------------------------------------------------------------------------


def test_energy_is_that_of_all_parts_and_nodes_of_every_start():
    def run(*starts):
        return runs.Run(None, "r", "", {}, {"starts": list(starts)})

    hosts = {"a": [0], "b": [1]}
    assert speed.energy_joules(run({"energy_joules": {"package-0": 2.0, "package-0 dram": 0.5}, "hosts": hosts})) == 5
    assert speed.energy_joules(run({"energy_joules": 3}, {"energy_joules": {"package-0": 1}})) == 4
    assert speed.energy_joules(run({"energy_joules": 3}, {})) is None  # a part of the run was not counted
    assert speed.energy_joules(run({"energy_joules": None})) is None
    assert speed.energy_joules(run()) is None


# ---- Loss curves ---------------------------------------------------------------------------------------------------


def curve(found, key, **cell):
    return [r for r in found if r["curve"] == key and all(r[k] == v for k, v in cell.items())]


def test_a_loss_curve_is_the_mean_and_the_range_of_the_seeds(tmp_path):
    """The loss of a made run falls by 0.9 in `need` steps. The seeds need 100, 110 and 140 steps."""
    for seed, need in {1: 100, 2: 110, 3: 140}.items():
        made_runs.write(tmp_path / "s" / f"{seed}", 64, seed=seed, need=need, every=5)
    rows = curve(items(tmp_path / "s")["losses"].rows, "validation_loss")
    assert {r["seeds"] for r in rows} == {3} and rows[-1]["epoch"] == pytest.approx(120 * 64 / 1000)  # seed 1 ends
    for row in rows:
        steps = row["epoch"] * 1000 / 64
        own = [2.5 - 0.9 * steps / need for need in (100, 110, 140)]
        assert row["mean"] == pytest.approx(sum(own) / 3, abs=1e-9)
        assert (row["low"], row["high"]) == pytest.approx((min(own), max(own)), abs=1e-9)


def test_a_seed_that_diverged_is_in_no_mean(tmp_path):
    made_runs.write(tmp_path / "s" / "a", 64, seed=1, need=100)
    made_runs.write(tmp_path / "s" / "b", 64, seed=2, need=10, outcome="error: step 3: the loss is NaN")
    rows = curve(items(tmp_path / "s")["losses"].rows, "validation_loss")
    assert {r["seeds"] for r in rows} == {1} and rows[-1]["epoch"] > 7


def test_at_most_eight_lines_have_colours_and_the_legend_names_them(tmp_path):
    for batch in [2**i for i in range(4, 16)]:
        for rate in (0.1, 0.2):
            made_runs.write(tmp_path / "s" / f"{batch}-{rate}", batch, rate, need=30 if rate == 0.1 else 45)
    figure = items(tmp_path / "s")["losses"]
    grey = [line for line in figure.drawing.axes[0].get_lines() if line.get_color() == "#999999"]
    bright = [line for line in figure.drawing.axes[0].get_lines() if line.get_color() != "#999999"]
    assert (len(bright), len(grey)) == (8, 16) and len({line.get_color() for line in bright}) == 8
    texts = [text.get_text() for text in figure.drawing.axes[1].get_legend().get_texts()]
    assert texts[0] == "batch 16, rate 0.1" and texts[7:] == ["batch 32k, rate 0.1", "16 other experiments"]
    assert len({(r["batch"], r["rate"]) for r in figure.rows}) == 24  # the table has them all


def test_coloured_lines_of_many_families_have_the_smallest_and_the_largest_batch(tmp_path):
    """A line of batch 64 is far shorter than a grey one, so the axis of epochs is logarithmic."""
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        for batch in (64, 128, 256):
            long = batch == 128 and share == 0.2
            made_runs.write(tmp_path / "s" / f"{share}-{batch}", batch, need=30 * (256 // batch) * (9 if long else 1), data={"share": share})
    figure = items(tmp_path / "s")["losses"]
    texts = [text.get_text() for text in figure.drawing.axes[1].get_legend().get_texts()]
    assert texts == [f"batch {b}, share {s}" for s in (0.1, 0.3, 0.4, 0.6) for b in (64, 256)] + ["10 other experiments"]
    bright = [line for line in figure.drawing.axes[0].get_lines() if line.get_color() != "#999999"]
    ends = [line.get_xdata()[-1] for line in bright]
    assert len(bright) == 8 and max(ends) < 1.1 * min(ends) and figure.drawing.axes[1].get_xscale() == "log"


def test_a_short_grey_line_does_not_change_the_axis_of_epochs(tmp_path):
    for number in range(9):
        made_runs.write(tmp_path / "s" / f"{number}", 64 * 2**number, need=20 + 4000 // 2**number)
    made_runs.write(tmp_path / "s" / "short", 64, 0.5, need=20, outcome="error: step 24: the loss is NaN")
    figure = items(tmp_path / "s")["losses"]
    assert len([line for line in figure.drawing.axes[0].get_lines() if line.get_color() == "#999999"]) == 2
    assert figure.drawing.axes[1].get_xscale() == "linear"


# ---- The noise scale along the runs ----------------------------------------------------------------------------------


def noise_of(folder, batches):
    """Returns the noise figure of a study with three shares and three rates of each batch, with a fit for each share."""
    for share in (0.25, 0.5, 1.0):
        for batch in batches:
            for rate in (0.1, 0.2, 0.4):
                made_runs.write(folder / f"{share}-{batch}-{rate}", batch, rate, need=30 if rate == 0.1 else 45, data={"share": share})
    own = cells.make_cells(runs.read_all([folder]))
    made = {f: fit.Fit(10, 100, None, None, fit.Interval(2 + i, 20), 0.1, 3) for i, f in enumerate(cells.families(own))}
    return figures_curves.noise(own, measures.ERROR.of, made)


@pytest.mark.parametrize("batches, bright", [((64,), 3), ((64, 128, 256), 6)])
def test_a_noise_figure_has_few_colours_and_its_critical_batches_side_by_side(tmp_path, batches, bright):
    figure = noise_of(tmp_path / "s", batches)
    (axis,) = figure.drawing.axes
    lines = [line for line in axis.get_lines() if len(line.get_xdata()) > 3]
    coloured = [line for line in lines if line.get_color() != "#999999"]
    assert len(coloured) == bright and len(lines) == 9 * len(batches) == len({row["trial"] for row in figure.rows})
    assert len({(str(line.get_color()), line.get_marker()) for line in coloured}) == bright
    critical = [line for line in axis.get_lines() if len(line.get_xdata()) == 3]
    assert len({line.get_xdata()[0] for line in critical}) == len({line.get_marker() for line in critical}) == 3
    assert {line.get_marker() for line in critical} == {line.get_marker() for line in coloured}
    assert [tuple(line.get_ydata()) for line in critical] == [(2 + i, 10, 20) for i in range(3)]
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts[bright:] == [f"{9 * len(batches) - bright} other experiments", "B_crit of each family, at the right"]


def test_a_study_of_many_runs_that_all_failed_has_grey_curves(tmp_path):
    for number in range(9):
        made_runs.write(tmp_path / "s" / str(number), 64 * 2**number, need=30, outcome="error: step 36: the loss is NaN")
    found = items(tmp_path / "s")
    for name in ("losses", "noise_scale"):
        texts = [text.get_text() for text in found[name].drawing.axes[-1].get_legend().get_texts()]
        assert texts == ["9 other experiments"]


def test_no_two_courses_of_the_rate_have_the_same_colour(tmp_path):
    for number in range(9):
        made_runs.write(tmp_path / "s" / str(number), 64 * 2**number, need=30)
    lines = items(tmp_path / "s")["rate_course"].drawing.axes[0].get_lines()
    assert len(lines) == len({str(line.get_color()) for line in lines}) == 9
