"""Tests what a report says of pipelines and parameter servers: where time went, staleness, bytes."""

import json
import subprocess
import sys

import pytest

import made_runs
from conftest import ROOT
from test_report import table

STEPS, BATCH, RANKS = 40, 64, 4
PIPELINE = {"input_seconds": 0.001, "forward_seconds": 0.01, "backward_seconds": 0.02, "bubble_seconds": 0.03,
            "boundary_seconds": 0.004, "communication_seconds": 0.005, "update_seconds": 0.006}
SERVER = {"input_seconds": 0, "forward_seconds": 0, "backward_seconds": 0, "communication_seconds": 0.008,
          "update_seconds": 0.002, "worker_wait_seconds": 0.005, "worker_input_seconds": 0.001,
          "worker_forward_seconds": 0.01, "worker_backward_seconds": 0.02, "server_wait_seconds": 0.004}
SYNCHRONOUS = {"input_seconds": 0.001, "forward_seconds": 0.01, "backward_seconds": 0.02, "communication_seconds": 0.008,
               "update_seconds": 0.002, "server_wait_seconds": 0.007}


def write(folder, parallel, parts, **start):
    seconds = sum(parts.get(f"{part}_seconds", 0) for part in
                  ("input", "forward", "backward", "bubble", "boundary", "communication", "update")) + 0.001
    lines = []
    for step in range(1, STEPS + 1):
        line = {**made_runs.update(step, BATCH, 1, 0.1, STEPS), **parts, "seconds": seconds}
        if parallel.get("mode") == "async":
            line.update(worker=step % 3, staleness=step % 2)
        lines.append(line)
    record = made_runs.start(BATCH, RANKS, 9.0, "finished", final_step=STEPS, **start)
    made_runs.write_files(folder, made_runs.experiment(BATCH, 0.1, 1, image=False, parallel=parallel), record, lines)
    if "staleness" in start:
        path = folder / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "staleness": start["staleness"]}))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    study = tmp_path_factory.mktemp("kinds") / "kinds"
    ranks = [{"input": 1, "forward": 2, "backward": 3, "bubble": 4 + rank, "boundary": 0.5, "communication": 0.25,
              "update": 1} for rank in range(RANKS)]
    write(study / "pipeline", {"kind": "pipeline", "stages": 2}, PIPELINE, rank_seconds=ranks,
          rank_bytes=[{"sent": 64000 * STEPS, "shared": 0}] * RANKS)
    write(study / "async", {"kind": "server", "mode": "async"}, SERVER, staleness={"2": 10, "10": 10, "0": 20})
    write(study / "sync", {"kind": "server", "mode": "sync"}, SYNCHRONOUS,
          rank_bytes=[{"sent": 64000 * STEPS, "shared": 128000 * STEPS}] * RANKS)
    page = tmp_path_factory.mktemp("report") / "report.html"
    done = subprocess.run([sys.executable, ROOT / "results/report.py", study, "-o", page], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return page.with_suffix("")


def bar(report, family, whose):
    return next({key: float(value) for key, value in row.items() if key not in ("family", "whose") and value}
                for row in table(report / "step_parts.csv") if family in row["family"] and row["whose"] == whose)


@pytest.mark.thorough
def test_the_parts_of_a_step_are_those_of_one_rank_and_add_up(report):
    parts = bar(report, "pipeline", "rank 0")
    assert parts["bubble"] == pytest.approx(0.03) and parts["boundary"] == pytest.approx(0.004)
    assert parts["rest"] == pytest.approx(0.001)
    parts = bar(report, " synchronous", "rank 0")
    assert parts["waiting for servers"] == pytest.approx(0.007)
    assert parts["exposed communication"] == pytest.approx(0.001)
    assert parts["rest"] == pytest.approx(0.001)
    parts = bar(report, "asynchronous", "server 0")
    assert parts["waiting for workers"] == pytest.approx(0.005)
    assert parts["exposed communication"] == pytest.approx(0.003)
    assert parts["waiting for servers"] == parts["forward"] == 0
    assert parts["rest"] == pytest.approx(0.001)
    parts = bar(report, "asynchronous", "a worker")
    assert parts["waiting for servers"] == pytest.approx(0.004) and parts["forward"] == pytest.approx(0.01)
    assert parts["rest"] == parts["waiting for workers"] == 0


@pytest.mark.thorough
def test_each_rank_of_a_pipeline_has_a_bar(report):
    rows = table(report / "rank_parts.csv")
    assert [float(row["bubble"]) for row in rows] == [4, 5, 6, 7]
    assert {float(row["exposed communication"]) for row in rows} == {0.25}


@pytest.mark.thorough
def test_staleness_is_drawn_in_the_order_of_numbers(report):
    rows = table(report / "staleness.csv")
    assert [int(row["staleness"]) for row in rows] == list(range(11))
    assert [(int(row["staleness"]), int(row["updates"]), float(row["share"])) for row in rows if row["updates"] != "0"] == [
        (0, 20, 0.5), (2, 10, 0.25), (10, 10, 0.25)]


@pytest.mark.thorough
def test_bytes_are_those_of_all_ranks_per_1000_samples(report):
    rows = {row["trial"]: row for row in table(report / "trials.csv")}
    assert float(rows["pipeline"]["sent_mb_per_1000_samples"]) == pytest.approx(4)
    assert float(rows["sync"]["shared_mb_per_1000_samples"]) == pytest.approx(8)
    assert rows["async"]["sent_mb_per_1000_samples"] == ""
    assert float(rows["async"]["mean_staleness"]) == pytest.approx(3)
