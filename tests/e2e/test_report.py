"""Tests results/report.py and results/table.py on run folders that the tests write themselves."""

import csv
import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest

import made_runs
from conftest import HANG_SECONDS, ROOT

sys.path[:0] = [str(ROOT / "results"), str(ROOT / "tests" / "golden")]
import make_report  # noqa: E402
from reporting import cells, keys, measures, page, runs, sections, style, tables  # noqa: E402

FIGURES = {
    "outcome_vs_batch",
    "to_target_vs_batch",
    "best_rate_vs_batch",
    "epochs_to_target_vs_batch",
    "noise_scale",
    "noise_published",
    "time_to_target_vs_ranks",
    "speed_vs_ranks",
    "speed_vs_batch",
    "step_parts",
    "cost_vs_batch",
    "losses",
    "rate_course",
    "batch_course",
}
TABLES = {"experiments", "verdicts", "fit", "trials", "failures", "origins", "references"}


def run_tool(name, *words):
    done = subprocess.run(
        [sys.executable, ROOT / "results" / name, *map(str, words)], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made_runs.grid(tmp_path_factory.mktemp("studies") / "grid")


@pytest.fixture(scope="module")
def report(study, tmp_path_factory):
    page = tmp_path_factory.mktemp("report") / "report.html"
    result = run_tool("report.py", study, "-o", page, "--target", "validation_accuracy", made_runs.TARGET)
    assert result.code == 0, result
    return SimpleNamespace(page=page.read_text(), folder=page.with_suffix(""))


# ---- The page ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_report_has_every_figure_and_table(report):
    for name in FIGURES:
        for kind in ("svg", "png", "csv"):
            assert (report.folder / f"{name}.{kind}").stat().st_size > 0, (name, kind)
        assert f'id="{name}"' in report.page
    for name in TABLES:
        assert table(report.folder / f"{name}.csv"), name
        assert f'id="{name}"' in report.page
    left_out = re.search(r'Left out, as there are no data:</p><ul class="note">(.*?)</ul>', report.page)[1]
    assert re.findall(r"<li>(.*?):", left_out) == ["Best batch, against the learning rate"]


@pytest.mark.thorough
def test_the_page_needs_nothing_else_and_no_id_stands_twice(report):
    assert report.page.count("<svg") == len(FIGURES)
    assert not re.search(r'<(script|link|img|iframe)|src="', report.page)
    ids = re.findall(r'\bid="([^"]+)"', report.page)
    assert len(ids) == len(set(ids))
    for used in re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', report.page):
        assert used in ids


@pytest.mark.thorough
def test_the_page_begins_with_answers_and_folds_the_rest(report):
    told, rest = report.page.split("<h2>Figures and tables</h2>")
    first = re.search(r'<h3>(.*?)</h3><p class="verdict">(.*?)</p>', told)
    assert re.fullmatch(r"Above 4\d0 samples a step costs more .* needs 0\.\d\d x the steps\.", first[1])
    assert first[2].startswith("larger batches pay up to B_crit = 4")
    shown = re.findall(r'<div id="(\w+)">', told)
    assert shown[:2] == ["to_target_vs_batch", "best_rate_vs_batch"] and told.count("<figure>") == len(shown)
    assert re.search(r"<h3>\d+ published rows differ in model, data or recipe\.</h3>", told)
    assert "<details><summary>1 row</summary>" in told  # the differences
    before, *folded = re.split('(?=<details id="section-)', rest)
    assert "<svg" not in before and "<table" not in before and len(folded) == 2  # the study, and its trials
    assert all(part.count("<details") == part.count("</details>") for part in folded)
    assert 'id="losses"' in folded[0] and 'id="trials"' in folded[1] and folded[1].rstrip().endswith("</html>")
    for rules in re.findall(r"<style>(?!\n)([^<]*)</style>", report.page):
        assert all(re.match(r"#\w+-svg ", rule) for rule in rules.split("}") if rule)


LOOK = """<script>addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const drawn = [...document.querySelectorAll("figure svg")].filter(s => s.getBoundingClientRect().height > 100).length;
  const wide = [...document.querySelectorAll("h1, h2, h3, p, li, figure")].filter(e => e.getBoundingClientRect().right > innerWidth + 1);
  document.body.innerHTML = `LOOKED ${innerWidth} ${document.documentElement.scrollWidth} ${drawn} ${wide.length}`;
});</script></head>"""


@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.thorough
def test_a_browser_draws_all_figures_within_the_width(report, tmp_path, width):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium here")
    (tmp_path / "page.html").write_text(report.page.replace("</head>", LOOK, 1))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000"]
    place = [
        f"--user-data-dir={tmp_path}/profile",
        f"--window-size={width},900",
        "--dump-dom",
        f"file://{tmp_path}/page.html",
    ]
    done = subprocess.run([browser, *words, *place], capture_output=True, text=True, timeout=HANG_SECONDS)
    looked = re.search(r"LOOKED (\d+) (\d+) (\d+) (\d+)", done.stdout)
    assert looked and "CONSOLE" not in done.stderr, done.stdout[-2000:] + done.stderr
    inner, scroll, drawn, wide = map(int, looked.groups())
    assert scroll <= inner <= width and (drawn, wide) == (len(FIGURES), 0)


@pytest.mark.thorough
def test_numbers_in_tables_are_the_runs_own(report, study):
    for row in table(report.folder / "trials.csv"):
        lines = [json.loads(line) for line in (study / row["trial"] / "metrics.jsonl").read_text().splitlines()]
        evaluations = [line for line in lines if "validation_loss" in line]
        assert float(row["validation_loss"]) == evaluations[-1]["validation_loss"]
        assert float(row["samples"]) == [line for line in lines if "loss" in line][-1]["samples"]
        reached = next(
            (e for e in evaluations if e["validation_accuracy"] >= made_runs.TARGET and row["state"] == "finished"),
            None,
        )
        assert row["steps_to_target"] == (str(reached["step"]) if reached else "")


@pytest.mark.thorough
def test_the_outcome_is_the_mean_and_deviation_over_seeds(report, study):
    row = next(r for r in table(report.folder / "outcome_vs_batch.csv") if r["batch"] == "128")
    finals = []
    for seed in (1, 2, 3):
        lines = (study / f"b128-r{row['rate']}-s{seed}" / "metrics.jsonl").read_text().splitlines()
        accuracies = [a for a in (json.loads(line).get("validation_accuracy") for line in lines) if a is not None]
        finals.append(100 * (1 - sorted(accuracies[-5:])[2]))
    assert float(row["mean"]) == pytest.approx(numpy.mean(finals), rel=1e-12)
    assert float(row["deviation"]) == pytest.approx(numpy.std(finals, ddof=1), rel=1e-9)
    assert row["seeds"] == "3"


@pytest.mark.thorough
def test_runs_of_one_seed_on_other_ranks_are_one_sample(report):
    row = next(r for r in table(report.folder / "experiments.csv") if r["batch"] == "512" and r["peak_rate"] == "0.1")
    assert (row["seeds"], row["finished"]) == ("3", "5")


@pytest.mark.thorough
def test_the_best_rate_of_each_batch_is_found_and_an_edge_is_told(report, tmp_path):
    rows = table(report.folder / "to_target_vs_batch.csv")
    assert [(r["batch"], r["rate"], r["edge"]) for r in rows] == [(b, "0.1", "") for b in ("32", "128", "512", "2048")]
    assert "is the highest of" not in report.page
    made_runs.grid(tmp_path / "edge", rates=(0.05, 0.1), seeds=(1,))
    warnings = " ".join(items(tmp_path / "edge")["to_target_vs_batch"].warnings)
    assert "batch 32: the best rate, 0.1, is the highest of 2 that were tried" in warnings
    assert "fewer than three seeds reached the target at batch 32, 128, 512, 2048" in warnings


@pytest.mark.thorough
def test_the_report_fits_what_the_runs_were_made_from(report):
    (row,) = table(report.folder / "fit.csv")
    for name, truth in (("S_min", 100), ("E_min", 40000), ("B_crit", 400)):
        assert float(row[name]) == pytest.approx(truth, rel=0.06), name  # evaluations are 5 % apart
        assert float(row[f"{name}_low"]) < float(row[name]) < float(row[f"{name}_high"])


@pytest.mark.parametrize(
    "evaluations, fitted, words",
    [
        (1, False, "the first evaluation already reached the target, so the steps are only an upper bound; there is no fit"),
        (2, False, "the evaluations are up to 50% of the steps to the target apart; there is no fit"),
        (5, True, "the evaluations are up to 20% of the steps to the target apart; evaluate more often"),
        (20, True, ""),
    ],
)
def test_evaluations_that_are_far_apart_are_told_and_too_few_make_no_fit(tmp_path, evaluations, fitted, words):
    for batch in (32, 128, 512):
        every = int(made_runs.steps_needed(batch)) // evaluations
        made_runs.write(tmp_path / "s" / str(batch), batch, every=every)
    found = items(tmp_path / "s", measures.Target("validation_accuracy", made_runs.TARGET))
    rows, told = found["fit"].rows, " ".join(found["to_target_vs_batch"].warnings)
    assert bool(rows) == fitted and all(row["B_crit_low"] < 400 < row["B_crit_high"] for row in rows)
    assert words in told and ("evaluate more often" in told) == bool(words)


def test_runs_that_are_evaluated_once_have_no_figure_of_steps_to_a_target(tmp_path):
    for batch in (32, 128, 512):
        made_runs.write(tmp_path / "s" / str(batch), batch, every=int(made_runs.steps_needed(batch)))
    target = measures.Target("validation_accuracy", made_runs.TARGET, measures.REACHED_BY_ALL)
    found = items(tmp_path / "s", target)
    assert "to_target_vs_batch" not in found
    assert any("the first evaluation of every run had reached the target" in item.reason for item in found["missing"])


@pytest.mark.thorough
def test_speed_and_efficiency_against_ranks(report):
    rows = {int(r["ranks"]): r for r in table(report.folder / "speed_vs_ranks.csv") if r["line"] == "strong, batch 512"}
    seconds = {ranks: 0.48 / ranks + 0.002 * (ranks - 1) + 0.005 for ranks in (1, 2, 4)}
    for ranks, row in rows.items():
        assert float(row["samples_per_second"]) == pytest.approx(512 / seconds[ranks], rel=1e-9)
        assert float(row["efficiency"]) == pytest.approx(seconds[1] / ranks / seconds[ranks], rel=1e-9)
        assert float(row["exposed_communication_share"]) == pytest.approx(
            0.002 * (ranks - 1) / seconds[ranks], rel=1e-9, abs=1e-12
        )
    assert sorted(rows) == [1, 2, 4]


@pytest.mark.thorough
def test_what_failed_is_listed_with_its_words(report):
    assert [(r["trial"], r["state"]) for r in table(report.folder / "failures.csv")] == [("boom", "diverged")]
    assert "the gradient&#x27;s norm is NaN" in report.page


def test_lines_to_a_target_have_colours_of_their_own():
    for count in 3, 7, 12:
        assert len({str(style.line(i, count)["color"]) for i in range(count)}) == count


def test_a_run_that_ends_worse_than_it_began_has_diverged_and_sets_no_target(tmp_path):
    made_runs.grid(tmp_path / "grid", seeds=(1,))
    folder = made_runs.write(tmp_path / "grid" / "away", 64, rate=50.0, optimizer={"kind": "adam"})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line.update({"loss": 1e5} if "loss" in line else {"validation_loss": 1e5, "validation_accuracy": 0.1})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = runs.read_all([tmp_path / "grid"])
    assert {r.name: r.state for r in made if r.state != "finished"} == {"boom": "diverged", "away": "diverged"}
    target = measures.target_of(cells.make_cells(made))
    assert target.value > made_runs.TARGET
    assert items(tmp_path / "grid")["outcome_vs_batch"].rows[0]["max"] < 45


@pytest.mark.parametrize("outcome, state", [
    ("step 9: the loss is NaN; the weights are as they were after step 8", "diverged"),
    ("step 9: the loss is 1e+22, but the gradient's norm is infinite; the weights are as they were after step 8", "diverged"),
    ("step 9: values of 'weights/layer1.0.conv.weight' are not finite, so no checkpoint of this step was written", "diverged"),
    ("step 9: the loss of each of the last 250 steps is above that of the first step (2.3): the run has diverged", "diverged"),
    ("the checkpoint of step 9 cannot be written: No space left on device", "failed"),
], ids=["loss", "gradient", "checkpoint", "too high", "disk"])
def test_every_error_of_a_run_that_diverged_is_known(tmp_path, outcome, state):
    made_runs.write(tmp_path / "s" / "a", 64, outcome=f"error: {outcome}")
    (run,) = runs.read_all([tmp_path / "s"])
    assert run.state == state


@pytest.mark.parametrize("end, state", [("target reached", "finished"), ("all steps done", "diverged")])
def test_a_run_that_reached_its_target_has_not_diverged(tmp_path, end, state):
    """A run stops at its target at once. Its last twentieth may be a single step, with a loss above that of the first."""
    folder = made_runs.write(tmp_path / "s" / "a", 64)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "loss" in line][-3:]
    for line in last:
        line["loss"] = 9.0
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "end": end}))
    (folder / "trial.json").write_text(json.dumps({"name": "a", "state": "diverged", "outcome": {"outcome": "finished", "end": end}}))
    (run,) = runs.read_all([tmp_path / "s"])
    assert run.state == state and (run.outcome == "finished") == (state == "finished")
    for name in ("run.json", "experiment.yaml"):
        (folder / name).unlink()
    assert runs.read_all([tmp_path / "s"])[0].state == state


@pytest.mark.parametrize("loss, state", [(1.05, "finished"), (2.1, "diverged")])
def test_a_branch_has_diverged_where_its_loss_is_twice_that_of_its_first_step(tmp_path, loss, state):
    folder = made_runs.write(tmp_path / "branch", 64)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "step": line["step"] + 500} for line in lines if "loss" in line]
    assert len(lines) >= 20
    for line in lines:
        line["loss"] = 1.0 if line is lines[0] else loss
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert runs.read_all([tmp_path])[0].state == state


def test_the_peak_rate_of_a_branch_is_that_of_its_run_times_its_factor():
    config = {"batch.global": 1024, "learning_rate.base": 0.01, "learning_rate.base_batch": 64, "learning_rate.scaling": "linear"}
    assert keys.peak_rate(config) == pytest.approx(0.16)
    branch = {**config, "branch.batch_factor": 4, "branch.rate_factor": 2}
    assert keys.peak_rate(branch) == pytest.approx(0.01 * (256 / 64) * 2)


def test_trials_without_an_experiment_add_no_columns(tmp_path):
    """Only overrides are known of a trial that waits, or that failed before it wrote its experiment.yaml."""
    folder = tmp_path / "study"
    for batch in (64, 128):
        made_runs.write(folder / f"b{batch}", batch, optimizer={"kind": "lars", "weight_decay": 0.5})

    def columns():
        return list(tables.trials(runs.read_all([folder])).rows[0])

    before = columns()
    trials = [
        {"name": "waits", "overrides": {"batch.global": 256}, "state": "waiting"},
        {"name": "lost", "overrides": {"batch.global": 512}, "state": "failed"},
    ]
    (folder / "study.json").write_text(json.dumps({"trials": trials}))
    (folder / "lost").mkdir()
    (folder / "lost" / "metrics.jsonl").write_text("")
    assert columns() == before
    trials[0]["overrides"]["optimizer.weight_decay"] = 0.25
    (folder / "study.json").write_text(json.dumps({"trials": trials}))
    assert columns() == [*before, "optimizer.weight_decay"]


def test_figures_without_data_are_left_out_and_named(tmp_path):
    made_runs.write(tmp_path / "one" / "run", 64, image=False)
    found = items(tmp_path / "one")
    left_out = page.missing_html(found["missing"])
    assert "Time to the target, against ranks: all runs had the same number of ranks." in left_out
    assert (
        "Throughput, efficiency and exposed communication, against ranks: no experiment ran on two numbers of ranks."
        in left_out
    )
    assert "speed_vs_ranks" not in found and "losses" in found


def test_a_study_file_adds_trials_that_have_not_begun(tmp_path):
    folder = tmp_path / "study"
    made_runs.write(folder / "a", 64)
    trials = [
        {"name": "a", "overrides": {"batch.global": 64}, "state": "finished"},
        {"name": "b", "overrides": {"batch.global": 128}, "ranks": 2, "seed": 5, "state": "waiting"},
    ]
    (folder / "study.json").write_text(json.dumps({"name": "study", "trials": trials, "something": "new"}))
    result = run_tool("table.py", folder, "--csv", "--keys", "trial", "state", "batch", "ranks", "seed")
    assert result.out.splitlines() == ["trial,state,batch,ranks,seed", "a,finished,64,1,1", "b,waiting,128,2,5"], result
    assert sections.make(runs.read_all([folder]))[-1].text == "2 trials, 1 of them not begun."


def test_tasks_of_two_studies_get_a_section_each(tmp_path):
    made_runs.write(tmp_path / "pictures" / "a", 64)
    made_runs.write(tmp_path / "letters" / "a", 64, image=False)
    made = sections.make(runs.read_all([tmp_path / "pictures", tmp_path / "letters"]))
    assert [s.title for s in made] == ["pictures: cnn on made", "letters: char lstm on made", "Trials"]
    names = [i.name for s in made for i in s.items if isinstance(i, style.Figure)]
    assert "pictures_cnn_made_losses" in names and len(names) == len(set(names))


def items(folder, target=None):
    """Maps names to figures or tables of a report of one task. "missing" has the others."""
    found = sections.make(runs.read_all([folder]), target)[0].items
    named = {i.name: i for i in found if not isinstance(i, style.Missing)}
    return {**named, "missing": [i for i in found if isinstance(i, style.Missing)]}


def broken(folder, name, content):
    made_runs.write(folder / "a", 64)
    (folder / "a" / name).write_text(content)
    return folder


BAD = {
    "no such folder": (lambda d: [d / "nowhere"], ["nowhere does not exist", "results/<study>"]),
    "no runs inside": (lambda d: [d], ["holds no run folders"]),
    "broken experiment.yaml": (
        lambda d: [broken(d, "experiment.yaml", "a: [")],
        ["experiment.yaml cannot be read as YAML"],
    ),
    "broken run.json": (lambda d: [broken(d, "run.json", "{")], ["run.json cannot be read as JSON", "a run's record"]),
    "bad target": (
        lambda d: [made_runs.write(d / "a", 64), "--target", "loss", "x"],
        ["--target loss x", "validation_loss"],
    ),
    "not a page": (lambda d: [made_runs.write(d / "a", 64), "-o", d / "r.pdf"], ["r.pdf", ".html"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_error(tmp_path, what):
    words, expected = BAD[what]
    result = run_tool("report.py", *words(tmp_path))
    assert result.code == 1 and len(result.err.strip().splitlines()) <= 3 and "Traceback" not in result.err, result
    assert result.err.startswith("report.py: error: ")
    for text in expected:
        assert text in result.err, result


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    folder = made_runs.write(tmp_path / "a", 64)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 99999, "loss"')
    result = run_tool("table.py", folder, "--csv", "--keys", "steps")
    assert result.code == 0 and "99999" not in result.out and "not JSON" in result.err


@pytest.mark.thorough
def test_every_kind_of_model_for_images_is_known():
    words = re.search(r"FIELD\(model\.kind\)[^\n]*\.words\(\{(.*?)\}\)", (ROOT / "src/config/schema.cpp").read_text(), re.DOTALL)
    assert set(re.findall(r'"(\w+)"', words[1])) == {"char_lstm", *runs.IMAGE_KINDS}


def test_the_table_sorts_and_names_a_column_that_is_not_there(study):
    result = run_tool("table.py", study, "--csv", "--keys", "validation_loss", "--sort", "validation_loss")
    values = [float(v) for v in result.out.split()[1:]]
    assert values == sorted(values) and len(values) == 39
    result = run_tool("table.py", study, "--keys", "validation_los")
    assert result.code == 1 and "no column validation_los" in result.err


def test_a_column_that_runs_lack_or_leave_empty_is_sorted(tmp_path):
    for name, metric in {"a": "", "b": "validation_loss", "c": None}.items():
        folder = made_runs.write(tmp_path / "s" / name, 64, stop={"target_metric": metric})
    result = run_tool("table.py", folder.parent, "--csv", "--keys", "trial", "--sort", "stop.target_metric")
    assert result.code == 0 and result.out.split() == ["trial", "b", "a", "c"], result


def test_different_numbers_have_different_short_texts():
    texts = {8192: "8k", 2**20: "1M", 10_000: "10k", 10_240: "10.24k", 16_000: "16.0k", 16_384: "16k", 0.004: "0.004"}
    texts |= {1_000_000: "1.0M", 1_281_167: "1.281167M", 3072: "3072", 50_000_000: "50M"}
    assert {value: style.short(value) for value in texts} == texts
    numbers = {*range(1, 40_000), *(n * size for size in (1000, 1024, 10**6, 2**20) for n in range(1, 2000))}
    assert len({style.short(n) for n in numbers}) == len(numbers)


@pytest.mark.thorough
def test_a_report_says_what_is_stored_of_it(tmp_path):
    """tests/golden/make_report.py writes the stored report. Numbers may differ by the rounding of another SciPy."""
    stored, now = json.loads(make_report.STORED.read_text()), make_report.report_of(tmp_path)
    assert sorted(now) == sorted(stored)
    for name, rows in stored.items():
        assert len(now[name]) == len(rows), name
        for expected, row in zip(rows, now[name]):
            for mine, theirs in zip(map(number_or_text, row), map(number_or_text, expected), strict=True):
                close = pytest.approx(theirs, rel=1e-4, abs=1e-12) if isinstance(theirs, float) else theirs
                assert mine == close, name


def number_or_text(text):
    try:
        return float(text)
    except ValueError:
        return text
