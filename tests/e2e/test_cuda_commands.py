"""Tests build/bench/cuda_commands and tests/gpu/kernel_table.py on the host device. They show every command next to its
bound, with the worst one first, and the gaps between graph nodes."""
import csv
import io
import re
import subprocess
import sys

import pytest

from conftest import ROOT, environment

COMMANDS = ROOT / "build/bench/cuda_commands"
RESNET = ["size=32", "width=16", "batch=2", "repeat=1", "search_seconds=0"]
LSTM = ["model=char_lstm", "layers=2", "hidden=16", "positions=4", "batch=2", "repeat=1", "search_seconds=0"]


def cuda_commands(*options):
    done = subprocess.run([COMMANDS, *options], capture_output=True, text=True, env=environment({"RINGTRAIN_TEST_DEVICE": "host"}))
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout))), done.stderr


@pytest.mark.parametrize("options", [["precision=bf16", *RESNET], ["precision=fp16", *RESNET], ["precision=fp16", *LSTM]])
def test_every_command_stands_beside_its_bound_worst_first(options):
    rows, said = cuda_commands(*options, "flops_per_second=1e8", "bytes_per_second=1e9")
    assert {row["part"] for row in rows} == {"forward", "backward", "weights"}
    for row in rows:
        bound = 1e6 * max(float(row["flops"]) / 1e8, float(row["bytes"]) / 1e9)
        assert float(row["bound_microseconds"]) == pytest.approx(bound, abs=0.01)
        assert float(row["lost_microseconds"]) == pytest.approx(float(row["microseconds"]) - bound, abs=0.02)
        assert float(row["share_of_bound"]) == pytest.approx(bound / float(row["microseconds"]), abs=0.01, rel=0.02)
    lost = [float(row["lost_microseconds"]) for row in rows]
    assert lost == sorted(lost, reverse=True)
    assert sum(float(row["bytes"]) > 0 for row in rows) > 0.9 * len(rows)
    assert any(float(row["flops"]) / 1e8 > float(row["bytes"]) / 1e9 for row in rows)


def test_the_gaps_are_the_graphs_time_less_the_commands(tmp_path):
    rows, said = cuda_commands("precision=bf16", *RESNET)
    gaps = 0.0
    for part in ("forward", "backward", "weights"):
        count, alone, bound, graphs, gap = map(float, re.search(
            rf"^{part}: (\d+), ([\d.]+), ([\d.]+), ([\d.]+), (-?[\d.]+) \(", said, re.M).groups())
        mine = [row for row in rows if row["part"] == part]
        assert count == len(mine)
        assert alone == pytest.approx(sum(float(row["microseconds"]) for row in mine), abs=0.01 * count + 0.1)
        assert bound == pytest.approx(sum(float(row["bound_microseconds"]) for row in mine), abs=0.01 * count + 0.1)
        assert graphs > 0.2 * alone and gap == pytest.approx(graphs - alone, abs=0.2)
        gaps += gap
    assert float(re.search(r"^sum of gaps between graph nodes: (-?[\d.]+) us", said, re.M)[1]) == pytest.approx(gaps, abs=0.2)


@pytest.mark.thorough
def test_the_kernel_table_keeps_commands_of_several_precisions_and_shows_the_gaps(tmp_path):
    for precision in ("bf16", "fp16"):
        done = subprocess.run([sys.executable, ROOT / "tests/gpu/kernel_table.py", "--precision", precision, "--batch", "2", "--search-seconds", "0",
                               "--commands-to", tmp_path / "all.csv", "--output", tmp_path / precision, "size=32", "width=16", "repeat=1"],
                              capture_output=True, text=True, env=environment({"RINGTRAIN_TEST_DEVICE": "host"}))
        assert done.returncode == 0, done.stderr
        assert "sum of gaps between graph nodes" in (tmp_path / f"{precision}.md").read_text()
    kept = list(csv.DictReader(open(tmp_path / "all.csv")))
    assert {row["precision"] for row in kept} == {"bf16", "fp16"}
    assert len({row["name"] for row in kept}) > 100
