"""Tests parts of the benchmarks of tests/gpu that need no GPU: bounds, pictures, ringtrain's runs, and PyTorch's side."""
import importlib.util
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import bench_gpu  # noqa: E402
import bench_tools  # noqa: E402
import bounds  # noqa: E402
import lstm_kernels  # noqa: E402
import made_up_photographs  # noqa: E402

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


# ---- Bounds ----------------------------------------------------------------------------------------------------------

def test_rates_are_those_of_the_device_and_else_those_that_were_measured():
    assert bounds.rates_of(H100, "bf16", (1, 2)) == (798e12, 3.0e12) and bounds.rates_of(H200, "fp16") == (790e12, 4.3e12)
    for other in ("NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB", "", None):
        assert bounds.rates_of(other, "bf16") is None and bounds.rates_of(other, "bf16", (1, 2)) == (1, 2)
    assert bounds.rates_of(H200, "fp32") is None  # the table has rates of 16 bits


def test_bounds_and_targets_of_an_h100_and_an_h200():
    images = [bounds.resnet50_images_per_second(256, bounds.rates_of(gpu, "bf16")) for gpu in (H200, H100)]
    assert images[0] == pytest.approx(13165, rel=1e-3) and 0.7 < images[1] / images[0] < 0.8
    characters = bounds.lstm_characters_per_second(4, 512, 50, 4096, bounds.rates_of(H200, "bf16"))
    assert characters == pytest.approx(17.8e6, rel=0.01)
    assert bounds.images_target(H200) == 8000 and bounds.images_target(H100) == pytest.approx(5600)
    # Memory limits the LSTM 4 x 128, and FLOPs limit 4 x 512.
    assert [bounds.characters_target(H100, shape, 4, hidden, 50, 4096) for shape, hidden in (("4x128", 128), ("4x512", 512))] == [35e6, 9e6]
    assert bounds.resnet50_images_per_second(256, None) is None and bounds.lstm_characters_per_second(4, 512, 50, 4096, None) is None


def test_rows_say_their_share_and_the_most_lost_time_comes_first():
    rows = [{"ringtrain": rate, "pytorch": "", **bench_gpu.speed_columns({"ringtrain": rate}, "ringtrain", 256, 10_000)} for rate in (8000, 4000, "")]
    assert [row["ringtrain_share_of_bound"] for row in rows] == [0.8, 0.4, ""]
    assert [row["ringtrain_lost_ms"] for row in rows] == [6.4, 38.4, ""]
    assert [row["ringtrain"] for row in bench_gpu.most_lost_first(rows)] == [4000, 8000, ""]
    assert bench_gpu.speed_columns({"ringtrain": 5}, "ringtrain", 256, None) == {"ringtrain_share_of_bound": "", "ringtrain_lost_ms": ""}


# ---- ringtrain's runs --------------------------------------------------------------------------------------------------

def run_fake(tmp_path, monkeypatch, script, **more):
    program = tmp_path / "ringtrain"
    program.write_text("#!/bin/bash\n" + script)
    program.chmod(0o755)
    monkeypatch.setattr(bench_gpu, "WORK", tmp_path)
    options = Namespace(**{"ringtrain": program, "device": "cpu", "search_seconds": 0, "set": ["machine.graphs=false"], "tiny": False, "windows": 3,
                           "window_seconds": 0.1, "warmup_seconds": 0, "case_seconds": 60, "deadline": time.monotonic() + 60, **more})
    return bench_gpu.run_ringtrain(lambda seconds: "experiment.yaml", options, 0.1)


@pytest.mark.thorough
def test_a_run_that_hangs_ends_at_the_deadline_with_its_last_line(tmp_path, monkeypatch):
    begin = time.monotonic()
    rates, failed, _ = run_fake(tmp_path, monkeypatch, "echo searching; exec sleep 300", deadline=time.monotonic() + 1)
    assert rates == [] and "took too long" in failed and "searching" in failed and time.monotonic() - begin < 20


def test_a_run_that_fails_says_its_error_and_gets_its_options(tmp_path, monkeypatch):
    rates, failed, _ = run_fake(tmp_path, monkeypatch, 'echo "$@" > "$(dirname "$0")/given"; echo "error: out of memory"; echo more; exit 3')
    assert rates == [] and failed == "error: out of memory"
    assert "machine.graphs=false" in (tmp_path / "given").read_text().split()


# ---- The pictures of ResNet-50 -----------------------------------------------------------------------------------------

def load(folder):
    """Loads resnet_bench.py, of which tests/gpu and tests/bench have one each."""
    spec = importlib.util.spec_from_file_location(f"{folder}_resnet_bench", ROOT / "tests" / folder / "resnet_bench.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_pictures(folder, *_):
    folder.mkdir(exist_ok=True)
    for number in range(256):
        (folder / f"c{number:04d}_picture.JPEG").write_text(folder.name)
    (folder / "classes1000.txt").write_text("")


def test_other_photographs_are_another_data_set(tmp_path, monkeypatch):
    module, made = load("gpu"), []

    def call(command):
        made.append(command)
        Path(f"{command[command.index('--out') + 1]}-train-0.h5").touch()
    monkeypatch.setattr(module, "WORK", tmp_path)
    monkeypatch.setattr(module, "PHOTOGRAPHS", tmp_path / "nowhere")
    monkeypatch.setattr(module, "make_photographs", write_pictures)
    monkeypatch.setattr(module, "call", call)
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "own")
    options = [Namespace(photographs=folder, tiny=False, python=sys.executable) for folder in (None, "own", None, "own")]
    (first, what), own, *again = [module.make_data(each, 224) for each in options]
    assert what.startswith("made-up") and own[1].startswith("256 photographs")
    assert len({*first.values(), *own[0].values()}) == 4 == len(made) and again == [(first, what), own]
    assert all(Path(command[command.index("--class-list") + 1]).is_absolute() for command in made)


def test_photographs_are_not_taken_for_the_made_up_images_of_an_earlier_run(tmp_path, monkeypatch):
    (tmp_path / "checkout").mkdir()
    monkeypatch.setattr(bench_tools, "ROOT", tmp_path / "checkout")
    made_up = load("bench").DATA
    photographs = tmp_path / "shared" / "data" / "imagenet-samples"
    photographs.mkdir(parents=True)
    write_pictures(photographs)
    assert load("bench").DATA != made_up


def test_pictures_are_made_without_other_packages(tmp_path):
    made_up_photographs.make_photographs(tmp_path, count=2)
    listing = tmp_path / "list.txt"
    listing.write_text("".join(f"{p.name} {i}\n" for i, p in enumerate(sorted(tmp_path.glob("*.JPEG")))))
    done = subprocess.run([ROOT / "bin/ringtrain-data", "images", tmp_path, "--out", tmp_path / "set", "--list", listing, "--split", "train"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("set-train-*.h5"))


# ---- PyTorch's side ----------------------------------------------------------------------------------------------------

FAKE_PEER = """#!{python}
import json, sys
if {broken}:
    sys.exit("error: no torch")
options = json.load(sys.stdin)
print(json.dumps({{"machine": {{"torch": "2"}}}}), flush=True)
for case in options["cases"]:
    if case["n"] == 1:
        sys.exit("CUDA error: an illegal memory access")
    print(json.dumps({{"case": case, "samples_per_second": {{"median": 10, "min": 9, "max": 11}}, "peak_memory_bytes": 0}}), flush=True)
"""


def ask_fake_peer(tmp_path, broken):
    peer = tmp_path / "python"
    peer.write_text(FAKE_PEER.format(python=sys.executable, broken=broken))
    peer.chmod(0o755)
    options = Namespace(python=str(peer), device="cpu", windows=2, window_seconds=1, warmup_seconds=1, case_seconds=1, minutes=1,
                        deadline=time.monotonic() + 60)
    return bench_gpu.run_peer("peer.py", [{"n": n, "way": "graphs"} for n in range(3)], options)


def test_a_case_that_ends_pytorchs_process_is_one_line_and_the_others_go_on(tmp_path):
    reports, machine = ask_fake_peer(tmp_path, False)
    assert machine == {"torch": "2"} and [r["case"]["n"] for r in reports] == [0, 1, 2]
    assert [r.get("failed") for r in reports] == [None, "CUDA error: an illegal memory access", None]


def test_a_peer_that_cannot_start_is_a_reason_in_every_line(tmp_path):
    reports, machine = ask_fake_peer(tmp_path, True)
    assert machine == {} and [r["failed"] for r in reports] == ["error: no torch"] * 3


def test_the_kernels_of_a_step_are_summed_by_name_and_the_most_time_comes_first():
    long = "void cutlass::Kernel2<" + "x" * 200 + ">"
    event = lambda name, duration, cat="kernel", ph="X": {"name": name, "dur": duration, "cat": cat, "ph": ph}
    trace = {"traceEvents": [event("short", 3), event(long, 10.25), event("short", 4), event("Memcpy DtoD", 1, "gpu_memcpy"), event(long, 20),
                             event("cudaLaunchKernel", 500, "cuda_runtime"), event("short", 900, "ac2g", "s"), {"name": "process", "ph": "M"},
                             *(event(f"small {number}", 0.5) for number in range(40))]}
    rows = lstm_kernels.rows_of(trace)
    assert rows[0] == {"kernel": long[:110], "calls": 2, "total_us": 30.2, "mean_us": 15.12}
    assert rows[1] == {"kernel": "short", "calls": 2, "total_us": 7.0, "mean_us": 3.5} and rows[2]["kernel"] == "Memcpy DtoD"
    facts, _, head, _, *lines = lstm_kernels.table_of(rows, "PyTorch 2: a step")
    assert len(lines) == 25 and lines[1].startswith("| short | 2 | 7.0 | 3.50 | 12") and "| kernel | calls | total us | mean us |" in head
    assert facts == "PyTorch 2: a step. 45 kernels and copies take 0.06 ms."
    assert lstm_kernels.table_of([{"kernel": "a|b", "calls": 1, "total_us": 1.0, "mean_us": 1.0}], "")[-1].startswith("| a\\|b | 1 |")
