"""Tests tests/gpu/check.sh. The order and limits of its checks are tested with an invented clock and invented
processes, including checks that hang, fail or die, and the checks after them. At the end the whole script runs with
--dry."""
import csv
import importlib.util
import io
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

from conftest import ROOT, environment

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import bench_gpu  # noqa: E402
import bench_tools  # noqa: E402
import check  # noqa: E402
import check_parts  # noqa: E402
import check_schedule  # noqa: E402
import kept_search  # noqa: E402

# The parts of the first call with their seconds, in this order.
FIRST_TEN_MINUTES = [("kernels and operations", 120), ("graphs = eager", 60), ("search at batch 256", 90), ("images/s", 120),
                     ("characters/s", 30), ("PyTorch", 60), ("kernel table", 60)]


class MadeUpClock:
    def __init__(self):
        self.time = 1000.0

    def now(self):
        return self.time


GTEST_PASSES = "[ RUN      ] Suite.One\n[       OK ] Suite.One (1 ms)\n[  PASSED  ] 1 test.\n"


class MadeUpProcesses:
    """Every command takes `usual` seconds and passes. A command whose text contains a key of `special` has the seconds,
    exit code and output of its value (seconds, code, text)."""

    def __init__(self, clock, usual=1.0, special=None):
        self.clock, self.usual, self.special, self.started = clock, usual, special or {}, []

    def run(self, command, seconds, environment, folder):
        text = " ".join(command)
        self.started.append((self.clock.now(), text, seconds))
        behaves = next((value for key, value in self.special.items() if key in text), None)
        if callable(behaves):
            behaves = behaves(text)
        took, code, said = behaves or (self.usual, 0, "GPU 0: made up" if "nvidia-smi" in text else GTEST_PASSES)
        if took > seconds:
            self.clock.time += seconds
            return None, said
        self.clock.time += took
        if code == 0 and "--output" in command:
            self.write_table(command)
        return code, said

    def write_table(self, command):
        given = dict(zip(command, command[1:]))
        output = Path(given["--output"])
        row = {"depth": 50, "shape": given.get("--only", ""), "batch": given.get("--batch", 1), "precision": given.get("--precision", ""),
               "input": given.get("--input", ""), "positions": 50, "ringtrain": 6000, "pytorch": 5000, "bound": 13000}
        with open(output.with_suffix(".csv"), "w") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            writer.writerow(row)
        output.with_suffix(".md").write_text("| a table |\n")


def perform(tmp_path, monkeypatch, usual=1.0, special=None, call=1, take=lambda run: None):
    """Returns (results, processes, run) of a call with an invented clock and invented processes."""
    monkeypatch.setattr(check_parts.Run, "need", lambda self, *programs: None)
    monkeypatch.setattr(check_parts, "exported", lambda run, folder: bytes(8) + bytes(4) * 4)
    clock = MadeUpClock()
    processes = MadeUpProcesses(clock, usual, special)
    run = check_parts.Run(tmp_path, io.StringIO(), processes, clock, plans=tmp_path / "plans")
    take(run)
    processes.started.clear()
    clock.time = 1000.0
    results = check_schedule.run_checks(check_parts.CALLS[call], run, clock, check.CALL_SECONDS, lambda result: None)
    return results, processes, run


def status(results, name):
    return next(r for r in results if r["name"] == name)["status"]


def test_the_parts_have_the_issues_order_and_limits():
    parts = Counter()
    for c in check_parts.FIRST_CALL:
        parts[c.part] += c.seconds
    assert list(parts.items()) == FIRST_TEN_MINUTES
    for checks in check_parts.CALLS.values():
        assert sum(c.seconds for c in checks) <= check.CALL_SECONDS <= 570
        assert len({(c.part, c.name) for c in checks}) == len(checks)
        parts = [c.part for c in checks]  # the checks of a part follow each other
        assert parts == sorted(parts, key=parts.index)


def test_all_checks_run_in_their_order_when_nothing_goes_wrong(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch)
    assert [r["status"] for r in results] == ["passed"] * len(check_parts.FIRST_CALL)
    assert check_schedule.exit_code(results) == 0
    order = ["GpuDescription", "CudaKernels*", "GpuOperations*bf16", "GpuOperations*fp16", "GpuGraphs", "GpuFusions*bf16", "GpuFusions*fp16",
             "--data-only", "--precision bf16 --input raw", "--precision fp16 --input raw", "--precision bf16 --input jpeg",
             "--precision fp16 --input jpeg", "--precision bf16 --only 4x512", "--precision bf16 --only 4x128", "--precision fp16 --only 4x512",
             "kernel_table.py --precision bf16", "kernel_table.py --precision fp16"]
    texts = [text for _, text, _ in processes.started]
    positions = [next(i for i, text in enumerate(texts) if part in text) for part in order]
    assert positions == sorted(positions)
    # No other check searches.
    assert all("--search-seconds 0" in text for text in texts if "resnet_bench" in text and "--data-only" not in text or "kernel_table" in text)


@pytest.mark.parametrize("call", [1, 2])
def test_no_check_takes_another_ones_time_when_all_hang(tmp_path, monkeypatch, call):
    results, processes, run = perform(tmp_path, monkeypatch, usual=10_000, call=call, take=lambda run: setattr(run, "gpu", "made up"))
    checks = check_parts.CALLS[call]
    # "failed" means that the check's data set was not made, and "not run" that a program is missing on this machine.
    assert {r["status"] for r in results} <= ({"out of time"} if call == 1 else {"out of time", "failed", "not run"})
    spent = Counter()
    for result in results:
        spent[result["part"]] += result["seconds"]
    limits = Counter()
    for c in checks:
        limits[c.part] += c.seconds
    assert all(spent[part] <= limits[part] for part in limits)
    assert run.clock.now() - 1000 <= check.CALL_SECONDS
    assert check_schedule.exit_code(results) == 1


def test_a_check_that_hangs_ends_at_its_limit_and_the_next_parts_begin_as_planned(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch, special={"CudaKernels*": (10_000, 0, "[ RUN      ] CudaKernels.Hangs\n")})
    hung = next(r for r in results if r["name"] == "own kernels")
    assert hung["status"] == "out of time" and hung["tests"]["failed"] == 1
    assert hung["seconds"] == 15 + 35 - 1  # the next check gets what the description left of its 15 s
    assert [r["status"] for r in results if r is not hung] == ["passed"] * (len(results) - 1)
    assert check_schedule.exit_code(results) == 1


def test_time_left_of_a_part_is_not_given_to_the_next_part(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch, special={"GpuGraphs": (10_000, 0, "")})
    assert next(r for r in results if r["part"] == "graphs = eager")["seconds"] == 60


def test_a_check_that_fails_is_told_and_keeps_no_other_from_running(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch, special={
        "--precision bf16 --input raw": (2, 1, "error: out of memory\n"), "--side pytorch": (2, 3, "no torch here\n")})
    assert status(results, "ResNet-50 bf16 raw") == "failed"
    assert next(r for r in results if r["name"] == "ResNet-50 bf16 raw")["said"] == ["error: out of memory"]
    assert Counter(r["status"] for r in results) == {"passed": len(results) - 3, "failed": 3}  # and two of PyTorch
    assert check_schedule.exit_code(results) == 1


def test_a_fault_of_a_check_itself_is_that_checks_failure(tmp_path, monkeypatch):
    def broken(run, seconds):
        raise KeyError("a fault")
    checks = [check_schedule.Check("part", "broken", 10, broken), check_schedule.Check("part", "good", 10, lambda *_: {"status": "passed"})]
    results = check_schedule.run_checks(checks, None, MadeUpClock(), 570, lambda result: None)
    assert [r["status"] for r in results] == ["failed", "passed"] and "a fault" in results[0]["said"][0]


def test_what_the_call_has_no_time_for_is_not_run_and_says_so():
    clock = MadeUpClock()

    def slow(run, seconds):
        clock.time += 100  # longer than its limit, as if a process could not be ended at once
        return {"status": "passed"}
    checks = [check_schedule.Check(f"part {i}", "slow", 50, slow) for i in range(4)]
    results = check_schedule.run_checks(checks, None, clock, 250, lambda result: None)
    assert [r["status"] for r in results] == ["passed", "passed", "passed", "not run"]
    assert results[3]["why"] == "the time of the call is over"
    assert check_schedule.exit_code(results) == 2
    one_part = [check._replace(part="one part") for check in checks]
    results = check_schedule.run_checks(one_part, None, clock, 10_000, lambda result: None)
    assert [r.get("why") for r in results] == [None, "the time of this part is over", None, "the time of this part is over"]


def test_without_a_gpu_nothing_runs_a_line_says_so_and_the_exit_code_is_not_0(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch, special={"nvidia-smi": (1, 9, "no driver")})
    assert {(r["status"], r["why"]) for r in results} == {("not run", "there is no GPU")}
    assert not processes.started and check_schedule.exit_code(results) == 2
    assert all("not run" in check.line_of(r) and "there is no GPU" in check.line_of(r) for r in results)


def test_a_program_that_is_not_built_is_not_run(tmp_path, monkeypatch):
    clock = MadeUpClock()
    run = check_parts.Run(tmp_path, io.StringIO(), MadeUpProcesses(clock), clock)
    monkeypatch.setattr(check_parts, "GPU_TESTS", ROOT / "build/tests/never_built")
    results = check_schedule.run_checks(check_parts.FIRST_CALL[1:2], run, clock, 570, lambda result: None)
    assert results[0]["status"] == "not run" and "never_built is not built" in results[0]["why"]
    assert check_schedule.exit_code(results) == 2


def test_after_a_test_that_ends_its_process_the_others_run_in_a_new_one(tmp_path, monkeypatch):
    died = "[ RUN      ] CudaKernels.A\n[       OK ] CudaKernels.A (1 ms)\n[ RUN      ] CudaKernels.B\n"
    names = "CudaKernels.\n  A\n  B\n  C\n  D/0  # GetParam() = 1\n"
    rest = "".join(f"[ RUN      ] CudaKernels.{n}\n[       OK ] CudaKernels.{n} (1 ms)\n" for n in ("C", "D/0"))
    starts = []

    def gpu_tests(text):
        if "--gtest_list_tests" in text:
            return 1, 0, names
        starts.append(text)
        return (3, -6, died) if len(starts) == 1 else (3, 0, rest)
    results, _, _ = perform(tmp_path, monkeypatch, special={"CudaKernels*": gpu_tests, "CudaKernels.C": gpu_tests})
    result = next(r for r in results if r["name"] == "own kernels")
    assert [s.split("--gtest_filter=")[1] for s in starts] == ["CudaKernels*", "CudaKernels.C:CudaKernels.D/0"]
    assert result["tests"] == {"passed": 3, "failed": 1, "skipped": 0} and result["status"] == "failed"
    assert "2 processes" in result["why"]


def test_tests_that_a_lost_device_kept_from_running_run_in_a_new_process(tmp_path, monkeypatch):
    """Uses the real program. One of its tests leaves the host device unusable."""
    if not check_parts.GPU_TESTS.exists():
        pytest.skip("build/tests/gpu_tests is not built")
    monkeypatch.setenv("GTEST_ALSO_RUN_DISABLED_TESTS", "1")
    run = check_parts.Run(tmp_path, io.StringIO(), check_schedule.Processes(), check_schedule.Clock(), dry=True, plans=tmp_path / "plans")
    lost = check_parts.gtest("GpuDeviceWatch.DISABLED_*:CudaKernelsSequence.*")(run, 60)
    alone = check_parts.gtest("CudaKernelsSequence.*")(run, 60)
    assert alone["status"] == "passed" and alone["tests"]["passed"] > 1
    assert lost["status"] == "failed" and lost["tests"] == {**alone["tests"], "failed": 1}
    assert "2 processes" in lost["why"] or lost["tests"]["passed"] == alone["tests"]["passed"]


def test_a_test_that_fails_in_a_process_that_goes_on_is_run_once(tmp_path, monkeypatch):
    text = "[ RUN      ] CudaKernels.A\n[  FAILED  ] CudaKernels.A (1 ms)\n[ RUN      ] CudaKernels.B\n[       OK ] CudaKernels.B (1 ms)\n" \
           "[  PASSED  ] 1 test.\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] CudaKernels.A\n"
    starts = []

    def gpu_tests(command):
        if "--gtest_list_tests" in command:
            return 1, 0, "CudaKernels.\n  A\n  B\n"
        starts.append(command)
        return 3, 1, text
    results, _, _ = perform(tmp_path, monkeypatch, special={"CudaKernels*": gpu_tests})
    result = next(r for r in results if r["name"] == "own kernels")
    assert len(starts) == 1 and result["tests"] == {"passed": 1, "failed": 1, "skipped": 0} and result["status"] == "failed"


def test_tests_that_were_all_skipped_were_not_run(tmp_path, monkeypatch):
    skipped = "[ RUN      ] GpuGraphs.A\ntests/gpu/main.cpp:3: Skipped\nthere is no cuDNN\n\n[  SKIPPED ] GpuGraphs.A (1 ms)\n[  PASSED  ] 0 tests.\n"
    results, _, _ = perform(tmp_path, monkeypatch, special={"GpuGraphs": (1, 0, skipped), "GpuOperations*fp32": (1, 0, "nothing\n")})
    graphs = next(r for r in results if r["part"] == "graphs = eager")
    assert (graphs["status"], graphs["why"]) == ("not run", "there is no cuDNN")
    assert status(results, "operations fp32") == "failed"  # there is no test of that name
    assert check_schedule.exit_code([graphs]) == 2


def test_the_rates_of_both_sides_stand_beside_each_other(tmp_path, monkeypatch):
    results, _, _ = perform(tmp_path, monkeypatch, special={"--precision bf16 --input jpeg": (1, 1, "failed")})
    lines = check.rate_lines(results)
    bf16 = next(line for line in lines if "ResNet-50 | 256 | bf16" in line)
    assert "| 6,000 | - | - |" in bf16 or "| 6,000 | - | 5,000 | 1.20 |" in bf16
    assert any("4x512 | 4096 | bf16 | 300,000" in line for line in lines)


def test_processes_are_ended_with_all_that_they_started(tmp_path):
    mark = f"{os.getpid()}{time.time_ns()}"
    begin = time.monotonic()
    code, text = check_schedule.Processes().run(
        ["sh", "-c", f"echo begun; trap '' TERM; sleep 300.{mark} & sleep 300.{mark}"], 4, dict(os.environ), tmp_path)
    assert code is None and "begun" in text and time.monotonic() - begin < 10
    time.sleep(0.2)
    running = [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in read(p)]
    assert not running
    assert check_schedule.Processes().run(["/nonexistent/program"], 4, dict(os.environ), tmp_path)[0] == 127


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


# ---- Carrying the results of a search ------------------------------------------------------------------------------

def test_a_search_goes_out_in_pieces_and_comes_in_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_search, "PIECE_BYTES", 3000)
    plans = tmp_path / "plans"
    (plans / "GPU-cudnn-9").mkdir(parents=True)
    contents = {"fusions": b"key\tway\t0.1\tsite\t\n", **{f"GPU-cudnn-9/{i}.plan": os.urandom(1000) for i in range(5)}}
    for name, content in contents.items():
        (plans / name).write_bytes(content)
    out = tmp_path / "out"
    out.mkdir()
    pieces, left_out = kept_search.pack(plans, out)
    assert [p.name for p in pieces] == ["search.tar.gz", "search.tar.gz.2"] and left_out == 0
    for source in out, out / "search.tar.gz":
        assert kept_search.unpack(source, tmp_path / f"from-{source.name}") == 6
        assert {n: (tmp_path / f"from-{source.name}" / n).read_bytes() for n in contents} == contents
    pieces, left_out = kept_search.pack(plans, out, most_pieces=1)  # too large: only the table and the plans that fit
    assert [p.name for p in pieces] == ["search.tar.gz"] and left_out > 0 and not (out / "search.tar.gz.2").exists()
    assert kept_search.unpack(out, tmp_path / "less") == 6 - left_out
    assert (tmp_path / "less/fusions").exists()
    assert kept_search.pack(tmp_path / "nothing", tmp_path) == ([], 0)


def test_a_search_that_cannot_be_taken_says_why(tmp_path):
    with pytest.raises(ValueError, match="holds no search.tar.gz"):
        kept_search.unpack(tmp_path, tmp_path / "plans")
    (tmp_path / "search.tar.gz").write_bytes(b"cut off")
    with pytest.raises(ValueError, match="are all pieces there"):
        kept_search.unpack(tmp_path, tmp_path / "plans")


def test_the_search_is_packed_when_it_has_ended_and_the_next_call_is_told_how_to_take_it(tmp_path, monkeypatch):
    def found(run):
        (run.plans / "GPU").mkdir(parents=True)
        (run.plans / "fusions").write_text("key\tway\t0.1\tsite\t\n")
    results, _, run = perform(tmp_path, monkeypatch, special={"GpuFusions*bf16": (10_000, 0, "")}, take=found)
    assert status(results, "search bf16") == "out of time"  # what it has found until then is kept
    assert (tmp_path / "search.tar.gz").exists()


def test_a_call_keeps_what_only_the_other_call_writes(tmp_path):
    row = '"convolution {} n8 c3 8x8 k8 r3 s1 p1",compared,0,same bits,"engine 1"\n'
    rows = {precision: row.format(precision) for precision in ("bf16", "fp16", "fp32", "tf32")}
    for name in ("device.json", "kernels.csv"):
        (tmp_path / name).write_text("from call 1")
    table = tmp_path / "operations.csv"
    table.write_text("".join(rows.values()))
    check.remove_old(tmp_path, check_parts.SECOND_CALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device.json", "kernels.csv", "operations.csv"]
    assert table.read_text() == rows["bf16"] + rows["fp16"] + rows["fp32"]
    table.write_text("".join(rows.values()))
    check.remove_old(tmp_path, check_parts.FIRST_CALL)
    assert table.read_text() == rows["tf32"] and list(tmp_path.iterdir()) == [table]


# ---- The pictures of ResNet-50 -------------------------------------------------------------------------------------

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
    monkeypatch.setattr(module, "make_pictures", write_pictures)
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


# ---- PyTorch's side ---------------------------------------------------------------------------------------------------

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


def test_pictures_are_made_without_pillow(tmp_path):
    bench_gpu.make_pictures(tmp_path, sys.executable, count=2)
    done = subprocess.run([ROOT / "bin/ringtrain-data", "images", tmp_path, "--out", tmp_path / "set", "--list", write_list(tmp_path), "--split", "train"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("set-train-*.h5"))


def write_list(folder):
    path = folder / "list.txt"
    path.write_text("".join(f"{p.name} {i}\n" for i, p in enumerate(sorted(folder.glob("*.JPEG")))))
    return path


# ---- All of it, dry -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("call", [1, 2])
def test_a_dry_call_runs_the_same_checks_in_the_same_order(tmp_path, call):
    begin = time.monotonic()
    done = subprocess.run([ROOT / "tests/gpu/check.sh", "--dry", "--call", str(call)], capture_output=True, text=True,
                          env=environment({"OUT": str(tmp_path), "PYTHON": sys.executable}))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / f"check-{call}.json").read_text())
    checks = check_parts.CALLS[call]
    assert [(r["part"], r["name"]) for r in report["checks"]] == [(c.part, c.name) for c in checks]
    left_out = {r["name"] for r in report["checks"] if r["status"] == "left out"}
    needs_gpu = {1: {"device description", "ResNet-50 fp16 raw", "ResNet-50 fp16 jpeg", "LSTM 4x512 fp16", "LSTM 4x128 fp16",
                     "ResNet-50 in CUDA graphs", "LSTM in CUDA graphs"},
                 2: {"sanitizer memcheck", "sanitizer racecheck", "ResNet-50 beside PyTorch", "LSTM beside PyTorch"}}[call]
    if call == 1 and "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        needs_gpu |= {"ResNet-50 bf16 raw", "ResNet-50 bf16 jpeg", "LSTM 4x512 bf16", "LSTM 4x128 bf16"}
    assert left_out == needs_gpu
    assert all("needs a GPU" in line for line in done.stdout.splitlines() if line.startswith("left out"))
    assert {r["status"] for r in report["checks"] if r["name"] not in needs_gpu} == {"passed"}
    assert len(list(tmp_path.iterdir())) <= 8 and (tmp_path / f"check-{call}.md").exists()
    if call == 1:
        assert (tmp_path / "operations.csv").exists() and "backward" in (tmp_path / "kernels.csv").read_text()
        assert "images/s" in done.stdout and "characters/s" in done.stdout
    print(f"{time.monotonic() - begin:.0f} s")
