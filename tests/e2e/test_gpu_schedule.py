"""Tests the order, limits and needs of the GPU's checks with an invented clock and invented processes: checks that hang,
fail or die, a device that is lost, and a call that is resumed."""
import io
import json
import tarfile

import pytest

from made_up_gpu import (GPU, GRAPHS_PASS, HANGS, MadeUpClock, MadeUpProcesses, check_calls, check_report, check_run, check_schedule, perform, result_of,
                         status, text_of_tests)

import check
import check_gtest

FIRST = check_calls.FIRST_CALL
PROBE = f"--gtest_filter={check_run.PROBE_TEST}"


class Nothing:
    switched_off = {}


def run_made_up(checks, seconds, clock=None, **more):
    clock = clock or MadeUpClock()
    return check_schedule.run_checks(checks, Nothing, clock, seconds, lambda result: None, **more)


def takes(clock, seconds, **result):
    def check(run, limit):
        clock.time += min(seconds, limit)
        return {"status": "passed" if seconds <= limit else "out of time", **result}
    return check


# ---- Order and limits --------------------------------------------------------------------------------------------------

def test_the_calls_fit_into_a_quarter_of_an_hour():
    assert check_calls.limit_seconds(1) <= check_calls.CALL_SECONDS[1] == 405
    assert check_calls.limit_seconds(2) <= check_calls.CALL_SECONDS[2] == 225
    assert check_calls.RESUMED_SECONDS == 90 and check_calls.checks_of(2)[0].seconds == 10
    every = check_calls.checks_of(1) + check_calls.checks_of(2)[1:]
    names = [c.name for c in every]
    assert len(set(names)) == len(names)
    assert {name for c in every for need in c.needs for name in check_schedule.alternatives(need)} <= set(names)


# Seconds of the first call on an H200 that passed. A machine may be slower than that one.
ON_AN_H200 = {"own kernels": 6.6, "CUTLASS's kernels": 1.3, "recurrent algorithms": 3.8, "LSTM 4x512 bf16": 6.3, "LSTM 4x128 bf16": 4.6,
              "kernel table bf16": 4.9, "LSTM 4x512 fp16": 7.1, "ResNet-50 bf16 raw, its choices": 7.9}


def test_limits_are_at_least_twice_what_an_h200_needed():
    limits = {c.name: c.seconds for c in FIRST}
    assert not {name: limits[name] for name, seconds in ON_AN_H200.items() if limits[name] < 2 * seconds}


def test_pytorch_measures_bf16_alone_and_fp16_in_the_time_that_is_left():
    """On an H200, PyTorch's ResNet-50 took 42 s for bf16."""
    first, rest = {c.name: c for c in FIRST}, check_calls.FIRST_SPARE
    assert [first[name].seconds for name in (check_calls.PYTORCH_RESNET, "PyTorch, LSTM in CUDA graphs")] == [50, 30]
    assert not any("fp16" in c.name for c in FIRST if c.part == check_calls.PEER)
    assert sum("PyTorch" in c.name and "fp16" in c.name for c in rest) == 2
    assert rest[0].name == "LSTM, kernels of PyTorch's cuDNN" and rest[0].seconds == 25
    names = [c.name for c in rest]
    assert names.index("search fp16") < names.index("kernel table fp16") and rest[names.index("kernel table fp16")].needs == ("search fp16",)


def test_the_first_call_has_this_order_and_these_limits():
    limits = [("gate", 25), ("own kernels", 20), ("CUTLASS", 12), ("recurrent", 20), ("graphs", 29), ("ResNet-50 bf16 raw, shipped plans", 20), ("search", 60),
              ("ResNet-50", 16), ("ResNet-50", 16), ("LSTM 4x512", 16), ("LSTM 4x128", 16), ("kernel table", 14), ("PyTorch, ResNet", 50),
              ("PyTorch, LSTM", 30), ("operations", 30), ("ResNet-50 fp16", 15), ("LSTM 4x512 fp16", 16)]
    assert [c.seconds for c in FIRST] == [seconds for _, seconds in limits]
    assert all(c.name.startswith(name) for c, (name, _) in zip(FIRST, limits))
    for call in (1, 2):
        checks = check_calls.checks_of(call)
        assert [c.spare for c in checks] == sorted(c.spare for c in checks)  # checks that use spare time are at the end


def test_all_checks_run_in_their_order_when_nothing_goes_wrong(tmp_path, monkeypatch):
    results, processes, run = perform(tmp_path, monkeypatch)
    assert [r["status"] for r in results] == ["passed"] * len(check_calls.checks_of(1))
    assert check_schedule.exit_code(results) == 0
    order = ["GpuGate", "CudaKernels*", "GpuHopper", "GpuRecurrent.*/standard", "GpuRecurrent.*/persist_small_h", "GpuGraphs", "--precision bf16 --input raw",
             "GpuFusions*bf16", "--precision bf16 --input jpeg", "--precision bf16 --only 4x512", "--precision bf16 --only 4x128",
             "kernel_table.py --precision bf16", "--side pytorch", "GpuOperations*bf16", "--precision fp16 --input raw", "--precision fp16 --only 4x512"]
    texts = processes.texts()
    positions = [next(i for i, text in enumerate(texts) if part in text) for part in order]
    assert positions == sorted(positions)
    # The first images/s come before the search, and no other check searches ResNet-50's fusions.
    assert all("--search-seconds 0" in text for text in texts if "resnet_bench" in text or "kernel_table" in text)
    assert not processes.texts(PROBE)


@pytest.mark.parametrize("call", [1, 2])
def test_a_call_ends_in_time_when_all_hang(tmp_path, monkeypatch, call):
    special = {"nvidia-smi": (1, 0, GPU), "GpuGate": (1, 0, text_of_tests("GpuGate.Kernel"))}  # the device answers, and so does the probe
    results, processes, run = perform(tmp_path, monkeypatch, usual=10_000, call=call, special=special)
    assert run.clock.now() <= check_calls.CALL_SECONDS[call]
    assert all(r["seconds"] <= r["limit_seconds"] for r in results)
    assert {r["status"] for r in results[1:]} <= {"out of time", "failed", "not run"}
    assert status(results, "gate") == "passed" and check_schedule.exit_code(results) == 1


def test_a_limit_is_a_checks_own_and_time_left_goes_to_the_end():
    clock = MadeUpClock()
    checks = [check_schedule.Check("part", "quick", 50, takes(clock, 1)), check_schedule.Check("part", "hangs", 20, takes(clock, 1000)),
              check_schedule.Check("part", "spare", 60, takes(clock, 40), (), True)]
    results = run_made_up(checks, 100, clock)
    assert [r["seconds"] for r in results] == [1, 20, 40] and [r["status"] for r in results] == ["passed", "out of time", "passed"]
    clock.time = 0
    results = run_made_up(checks, 50, clock)  # 29 s are left, less than half of the last one's limit
    assert results[2]["status"] == "not run" and results[2]["why"] == "the time of the call is over"
    assert check_schedule.exit_code(results[::2]) == 0  # a check that uses spare time is not missed
    clock.time = 0
    assert check_schedule.exit_code(run_made_up([checks[0], checks[2]._replace(spare=False)], 30, clock)) == 2


def test_the_clock_starts_with_the_command(monkeypatch):
    monkeypatch.setattr(check_schedule.time, "time", lambda: 1000.0)
    assert check_schedule.Clock(1000.0 - 30).now() == pytest.approx(30, abs=1)
    monkeypatch.setattr(check.time, "time", lambda: 1000.0)
    monkeypatch.setenv("CHECK_STARTED", "970")
    assert check.started() == 970
    for wrong, why in (("yesterday", "expected seconds"), ("1", "999 s ago"), ("1100", "-100 s ago")):
        monkeypatch.setenv("CHECK_STARTED", wrong)
        with pytest.raises(ValueError, match=why):
            check.started()


def test_a_part_with_a_limit_of_its_own_ends_there():
    clock = MadeUpClock()
    checks = [check_schedule.Check("again", name, 40, takes(clock, 40)) for name in "abc"] + [check_schedule.Check("rest", "d", 30, takes(clock, 5))]
    results = run_made_up(checks, 200, clock, part_seconds={"again": 90})
    assert [r["status"] for r in results] == ["passed", "passed", "not run", "passed"]
    assert results[2]["why"] == "the time of this part is over"


def test_a_fault_of_a_check_itself_is_that_checks_failure():
    def broken(run, seconds):
        raise KeyError("a fault")
    results = run_made_up([check_schedule.Check("part", "broken", 10, broken), check_schedule.Check("part", "good", 10, takes(MadeUpClock(), 1))], 60)
    assert [r["status"] for r in results] == ["failed", "passed"] and "a fault" in results[0]["said"][0]


# ---- The gate, needs, and a device that is lost -----------------------------------------------------------------------

def keep_plans(run, version, *precisions):
    folder = run.plans / f"NVIDIA-H200-cudnn-{version}"
    folder.mkdir(parents=True)
    for number, precision in enumerate(precisions):
        (folder / f"{number}.plan").write_bytes(f"conv {precision} n8 c3 8x8 k8 r3 s1 p1\t0\t3\tfound\n".encode() + b"\xff\xfe\n")


GATE_TESTS = ["GpuGate.Facts", "GpuGate.Plan", "GpuGate.Graph", "GpuGate.Kernel", "GpuGate.Recurrent"]
SKIPPED = "[ RUN      ] GpuGate.Facts\nx.cpp:1: Skipped\nno cuDNN\n[  SKIPPED ] GpuGate.Facts (0 ms)\n"


@pytest.mark.parametrize("gate, why", [
    (HANGS, "the gate was out of time"),
    ((3, 1, "FAILED: the GPU cannot be taken into use: no driver\n"), "cannot be taken into use"),
    ((3, 1, f"FAILED: the GPU cannot be taken into use: no cuDNN\n{SKIPPED}"), "cannot be taken into use"),
    ((3, 1, text_of_tests(GATE_TESTS[0]) + text_of_tests(GATE_TESTS[1], GATE_TESTS[4], result="FAILED") + "conv has no plan: a\nlstm has no plan: b\n"),
     "cuDNN has no plan for anything"),
    ((3, 1, text_of_tests(GATE_TESTS[0]) + text_of_tests(GATE_TESTS[2], result="FAILED")), GATE_TESTS[2]),
    ((3, -11, text_of_tests(GATE_TESTS[3], result="RUN")), GATE_TESTS[3])])
def test_a_gate_that_fails_ends_the_call(tmp_path, monkeypatch, gate, why):
    results, processes, run = perform(tmp_path, monkeypatch, special={"GpuGate": gate})
    assert status(results, "gate") in ("failed", "out of time") and why in results[0]["ends_call"]
    assert {r["status"] for r in results[1:]} == {"not run"} and all(r["why"] == results[0]["ends_call"] for r in results[1:])
    assert run.clock.now() <= 25 and len(processes.started) <= 3
    assert check_schedule.exit_code(results) == 3


def test_a_plan_that_does_not_load_in_the_gate_is_a_failure_but_others_run(tmp_path, monkeypatch):
    said = "gate: cuDNN: 9.99\n" + text_of_tests(*GATE_TESTS[2:4]) + text_of_tests(GATE_TESTS[1], result="FAILED")
    results, _, _ = perform(tmp_path, monkeypatch, special={"GpuGate": (3, 1, said)}, take=lambda run: keep_plans(run, "9.99", "bf16", "fp16"))
    assert status(results, "gate") == "failed" and "gate: cuDNN: 9.99" in results[0]["said"] and GATE_TESTS[1] in results[0]["notes"][0]
    assert {r["status"] for r in results[1:]} == {"passed"} and check_schedule.exit_code(results) == 1


def test_the_gate_compares_the_device_with_its_description(tmp_path, monkeypatch):
    known = json.loads((check_run.ROOT / "src/backend/cuda/device/descriptions/h200.json").read_text())
    known.pop("origin")

    def describe(**other):
        return lambda run: (run.tables / "device.json").write_text(json.dumps({**known, **other}))
    for other in {}, {"pciDeviceId": 7}:  # the slot of the device, which other machines have, too
        results, _, _ = perform(tmp_path, monkeypatch, take=describe(**other))
        assert results[0]["notes"] == ["equal to h200.json"]
    failed = (1, 1, text_of_tests(GATE_TESTS[1], result="FAILED"))
    results, _, _ = perform(tmp_path, monkeypatch, take=describe(multiProcessorCount=131), special={"GpuGate": failed})
    assert GATE_TESTS[1] in results[0]["notes"][0] and "multiProcessorCount is 132, the device says 131" in results[0]["notes"][1]


def test_what_needs_a_failed_check_is_not_run_at_no_cost(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch, special={"--precision bf16 --input raw": (2, 1, "error: out of memory\n")})
    for name in "ResNet-50 bf16 jpeg, its choices", "ResNet-50 fp16 raw", "LSTM 4x512 bf16":  # the search has passed
        assert status(results, name) == "passed"
    searchless = {"--precision bf16 --input raw": (2, 1, "error: out of memory\n"), "GpuFusions*bf16": (1, 1, text_of_tests("GpuFusions.A", result="FAILED"))}
    results, processes, _ = perform(tmp_path, monkeypatch, special=searchless)
    needy = [c.name for c in check_calls.checks_of(1) if ("search bf16", "ResNet-50 bf16 raw, shipped plans") in c.needs]
    assert needy == ["ResNet-50 bf16 jpeg, its choices", "kernel table bf16"]
    for name in needy:
        result = result_of(results, name)
        assert result["status"] == "not run" and "needs search bf16 or ResNet-50 bf16 raw, shipped plans" in result["why"] and result["seconds"] == 0
    assert not processes.texts("--input jpeg")
    assert status(results, "ResNet-50 fp16 raw") == "passed"


@pytest.mark.parametrize("version, precisions, not_run", [("9.14.0", ["bf16", "fp16"], []), ("9.14.0", ["bf16"], ["ResNet-50 fp16 raw"]),
                                                         ("9.19.0", ["bf16", "fp16"], ["ResNet-50 bf16 raw, shipped plans", "ResNet-50 fp16 raw"])])
def test_plans_for_another_cudnn_are_a_reason_and_cost_no_time(tmp_path, monkeypatch, version, precisions, not_run):
    gate = (3, 0, "gate: cuDNN: 9.14.0\n" + text_of_tests("GpuGate.Facts"))
    results, processes, _ = perform(tmp_path, monkeypatch, special={"GpuGate": gate}, take=lambda run: keep_plans(run, version, *precisions))
    assert [r["name"] for r in results if r["status"] != "passed"] == not_run
    for name in not_run:
        result = result_of(results, name)
        assert result["status"] == "not run" and result["seconds"] == 0 and f"NVIDIA-H200-cudnn-{version}" in result["why"]
        assert "for cuDNN 9.14.0 and this GPU" in result["why"]
    assert "cuDNN 9.14.0" in results[0]["notes"]


def test_after_a_hang_a_probe_asks_and_the_call_goes_on(tmp_path, monkeypatch):
    results, processes, _ = perform(tmp_path, monkeypatch, special={"CudaKernels*": (10_000, 0, text_of_tests("CudaKernels.Hangs", result="RUN"))})
    hung = result_of(results, "own kernels")
    assert (hung["status"], hung["seconds"], hung["tests"]["failed"]) == ("out of time", 20, 1)
    probes = [(seconds, text) for _, text, seconds, _ in processes.started if text.endswith(PROBE)]
    assert len(probes) == 1 and probes[0][0] == 5
    assert {r["status"] for r in results if r is not hung} == {"passed"} and check_schedule.exit_code(results) == 1


@pytest.mark.parametrize("answer, why", [(HANGS, "within 5 s"), ((1, 1, "CUDA error 719: unspecified launch failure\n"), "719")])
def test_a_device_that_does_not_answer_after_a_hang_ends_the_call(tmp_path, monkeypatch, answer, why):
    results, processes, run = perform(tmp_path, monkeypatch, special={"CudaKernels*": HANGS, PROBE: answer})
    assert [r["status"] for r in results] == ["passed", "out of time"] + ["not run"] * (len(results) - 2)
    assert "after own kernels the device does not answer" in results[-1]["why"] and why in results[-1]["why"]
    assert run.clock.now() <= 1 + 20 + 5 and check_schedule.exit_code(results) == 3


# ---- What is switched off ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("behaves", [HANGS, (2, 1, text_of_tests("GpuHopper.A/bf16", result="FAILED"))])
def test_without_cutlass_later_checks_run_without_its_library(tmp_path, monkeypatch, behaves):
    results, processes, run = perform(tmp_path, monkeypatch, special={"GpuHopper": behaves})
    assert "RINGTRAIN_HOPPER_LIBRARY" not in processes.environment_of("GpuHopper")
    for later in ("GpuGraphs", "resnet_bench", "GpuFusions", "kernel_table"):
        assert processes.environment_of(later)["RINGTRAIN_HOPPER_LIBRARY"] == "none"
    assert results[1]["switched_off"] == [] and all(r["switched_off"] == ["CUTLASS"] for r in results[3:])
    assert all("without CUTLASS" in check_report.line_of(r) for r in results[3:])
    assert "CUTLASS" in json.loads((run.out / "check-1.json").read_text())["switched_off"]


def test_every_recurrent_algorithm_has_its_process_and_failed_ones_are_left_out(tmp_path, monkeypatch):
    results, processes, run = perform(tmp_path, monkeypatch, special={
        "/persist_static": HANGS, "/persist_small_h": (1, 1, text_of_tests("GpuRecurrent.A/persist_small_h", result="FAILED"))})
    starts = [(text.split("/")[-1], seconds) for _, text, seconds, _ in processes.started if "GpuRecurrent" in text and "list_tests" not in text]
    assert [name for name, _ in starts] == ["standard", "persist_static", "persist_dynamic", "persist_small_h"] and all(s >= 5 for _, s in starts)
    assert status(results, "recurrent algorithms") == "failed" and status(results, "LSTM 4x512 bf16") == "passed"
    assert processes.texts(PROBE)  # one hung
    environment = processes.environment_of("lstm_bench")
    assert environment["RINGTRAIN_WITHOUT_RNN"] == "persist_static,persist_small_h"
    assert set(result_of(results, "LSTM 4x512 bf16")["switched_off"]) == {"recurrent persist_static", "recurrent persist_small_h"}
    results, processes, _ = perform(tmp_path, monkeypatch, special={"GpuRecurrent": (1, 1, text_of_tests("GpuRecurrent.A/x", result="FAILED"))})
    assert status(results, "LSTM 4x512 bf16") == "not run"  # none works


def test_a_family_whose_graphs_differ_is_measured_without_graphs(tmp_path, monkeypatch):
    said = text_of_tests("Families/GpuGraphs.Bits/ResNet_bf16", result="FAILED") + text_of_tests("Families/GpuGraphs.Bits/Lstm_bf16")
    results, processes, run = perform(tmp_path, monkeypatch, special={"GpuGraphs": (2, 1, said)})
    assert all("--set machine.graphs=false" in text for text in processes.texts("--side ringtrain") if "resnet_bench" in text)
    assert not any("machine.graphs" in text for text in processes.texts("lstm_bench"))
    assert "differ" in run.switched_off["graphs of ResNet"]
    assert result_of(results, "ResNet-50 bf16 raw, its choices")["switched_off"] == ["graphs of ResNet"]
    finding = "finding: in bf16, graphs differ from commands one by one by 0.001"
    results, _, run = perform(tmp_path, monkeypatch, special={"GpuGraphs": (2, 0, f"{finding}\n{GRAPHS_PASS}")})
    assert result_of(results, "graphs = single commands, bf16")["notes"] == [finding] and not run.switched_off
    _, processes, run = perform(tmp_path, monkeypatch, special={"GpuGraphs": HANGS})
    assert set(run.switched_off) == {"graphs of ResNet", "graphs of Lstm"}
    assert any("machine.graphs=false" in text for text in processes.texts("lstm_bench"))


# ---- Resuming --------------------------------------------------------------------------------------------------------

def test_a_resumed_call_runs_only_what_has_not_passed(tmp_path, monkeypatch):
    _, _, run = perform(tmp_path, monkeypatch, special={"GpuHopper": HANGS, "--precision bf16 --input jpeg": (1, 1, "error: no\n")})
    before, off = check_report.read_results(run.out / "check-1.json")
    resumed = lambda r: setattr(r, "switched_off", off)
    results, processes, run = perform(tmp_path, monkeypatch, before=before, take=resumed)
    assert [r["name"] for r in results] == ["gate", "CUTLASS's kernels", "ResNet-50 bf16 jpeg, its choices"]
    assert "RINGTRAIN_HOPPER_LIBRARY" not in processes.environment_of("GpuHopper")  # it has to show whether it works now
    assert "CUTLASS" not in run.switched_off and results[1]["switched_off"] == ["CUTLASS"] and results[2]["switched_off"] == []
    again, _ = check_report.read_results(run.out / "check-1.json")  # a third call knows both
    assert len(again) == len(check_calls.checks_of(1)) and {r["status"] for r in again} == {"passed"}
    assert check_calls.checks_of(1, again) == FIRST[:1]


def test_the_second_call_begins_with_what_the_first_did_not_pass_and_keeps_things_off(tmp_path, monkeypatch):
    _, _, run = perform(tmp_path, monkeypatch, special={"GpuHopper": HANGS, "/standard": HANGS, "GpuOperations*bf16": (1, 1, "")})
    before, off = check_report.read_results(run.out / "check-1.json")
    results, processes, run = perform(tmp_path, monkeypatch, call=2, before=before, take=lambda r: setattr(r, "switched_off", dict(off)),
                                      special={"GpuHopper": HANGS})
    assert [r["name"] for r in results[:4]] == ["gate", "CUTLASS's kernels", "recurrent algorithms", "operations bf16"]
    assert {r["part"] for r in results[1:4]} == {check_calls.RESUMED}
    assert [r["name"] for r in results[4:7]] == [c.name for c in check_calls.SECOND_CALL]
    assert set(run.switched_off) == {"CUTLASS"}  # it hung again, and the recurrent algorithm works now
    assert processes.environment_of("GpuFusions")["RINGTRAIN_HOPPER_LIBRARY"] == "none"
    assert status(results, "memcheck of CUTLASS's kernels") == "not run"


def test_what_an_earlier_call_failed_keeps_what_needs_it_from_running():
    checks = [check_schedule.Check("part", "needy", 10, takes(MadeUpClock(), 1), ("first",))]
    for state, expected in (("failed", "not run"), ("passed", "passed"), ("left out", "passed")):
        assert run_made_up(checks, 60, before=[{"name": "first", "status": state}])[0]["status"] == expected
    assert run_made_up(checks, 60)[0]["status"] == "passed"  # nothing is known about it
    assert run_made_up(checks, 60, before=[{"name": "first", "status": "failed", "usable": True}])[0]["status"] == "passed"


def test_what_cannot_be_resumed_says_why(tmp_path):
    for text in ("", "{}", '{"checks": [{}], "switched_off": {}}', "[]"):
        (tmp_path / "check-1.json").write_text(text)
        with pytest.raises(ValueError, match="name the check-1.json"):
            check_report.read_results(tmp_path / "check-1.json")
    with pytest.raises(ValueError, match="cannot be resumed"):
        check_report.read_results(tmp_path / "nothing.json")


def test_pytorch_is_measured_again_only_when_it_is_missing(tmp_path, monkeypatch):
    _, _, run = perform(tmp_path, monkeypatch)
    before, _ = check_report.read_results(run.out / "check-1.json")
    results, processes, _ = perform(tmp_path, monkeypatch, call=2, before=before)
    assert not any("resnet_bench" in text and "--ways graphs" in text for text in processes.texts("--side pytorch"))
    rest = [r for r in before if r["name"] != check_calls.PYTORCH_RESNET]
    results, processes, _ = perform(tmp_path, monkeypatch, call=2, before=rest)  # the first part of this call measures it
    assert sum("resnet_bench" in text for text in processes.texts("--side pytorch")) == 1
    results, processes, _ = perform(tmp_path, monkeypatch, call=2)
    assert sum("resnet_bench" in text for text in processes.texts("--side pytorch")) == 1
    assert {r["side"] for r in result_of(results, "ResNet-50 bf16 again")["rates"]} == {"ringtrain", "pytorch"}


# ---- Searches --------------------------------------------------------------------------------------------------------

def test_searches_have_their_candidates_deadlines_and_folders(tmp_path, monkeypatch):
    _, processes, run = perform(tmp_path, monkeypatch)
    first = processes.environment_of("GpuFusions")
    assert (first["RINGTRAIN_PLAN_CANDIDATES"], first["RINGTRAIN_SEARCH_DEADLINE"]) == ("1", "55")
    assert first["RINGTRAIN_PLAN_CACHE"] == str(run.plans) == processes.environment_of("resnet_bench")["RINGTRAIN_PLAN_CACHE"]
    for small in ("CudaKernels*", "GpuHopper", "GpuGraphs", "GpuOperations"):
        assert processes.environment_of(small)["RINGTRAIN_PLAN_CACHE"] == str(run.test_plans)
    _, processes, _ = perform(tmp_path, monkeypatch, call=2)
    again = processes.environment_of("GpuFusions")
    assert again["RINGTRAIN_PLAN_CANDIDATES"] == "4" and 40 <= int(again["RINGTRAIN_SEARCH_DEADLINE"]) <= 45


def test_a_search_that_is_ended_is_packed_and_what_needs_it_runs(tmp_path, monkeypatch):
    def found(run):
        for folder in run.plans, tmp_path / "shipped":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "shipped.plan").write_text("of the kit")
        (run.plans / "found.plan").write_text("new")
        (run.plans / "fusions").write_text("key\tway\t0.1\tsite\t\n")
    monkeypatch.setattr(check_gtest, "SHIPPED_PLANS", tmp_path / "shipped")
    results, _, run = perform(tmp_path, monkeypatch, special={"GpuFusions*bf16": HANGS}, take=found)
    assert status(results, "search bf16") == "out of time" and status(results, "ResNet-50 bf16 raw, its choices") == "passed"
    with tarfile.open(run.out / "search.tar.gz") as archive:
        assert archive.getnames() == ["fusions", "found.plan"]


def test_a_search_that_has_found_nothing_keeps_what_needs_it_from_running(tmp_path, monkeypatch):
    results, _, _ = perform(tmp_path, monkeypatch, special={"GpuFusions*bf16": (1, 1, text_of_tests("GpuFusions.A", result="FAILED"))})
    assert status(results, "ResNet-50 bf16 raw, its choices") == "not run" and status(results, "ResNet-50 bf16 jpeg, its choices") == "passed"


# ---- The kernels of PyTorch's LSTM --------------------------------------------------------------------------------------

def test_the_kernels_of_pytorchs_lstm_come_back_as_a_table(tmp_path, monkeypatch):
    said = "UserWarning: something\nPyTorch 2.11: LSTM 4x512.\n\n| kernel | calls |\n|---|---|\n| a | 1 |\nanother warning\n"
    special = {"--hidden 512": (8, 0, said), "--hidden 128": (2, 1, "error: /usr/bin/python3 has no torch\n")}
    results, processes, run = perform(tmp_path, monkeypatch, special=special)
    wide, narrow = (result_of(results, f"LSTM, kernels of PyTorch's cuDNN{more}") for more in ("", ", hidden 128"))
    assert wide["status"] == "passed" and wide["tables"] == ["PyTorch 2.11: LSTM 4x512.\n\n| kernel | calls |\n|---|---|\n| a | 1 |"]
    assert (narrow["status"], narrow["why"]) == ("not run", "error: /usr/bin/python3 has no torch")
    text, = processes.texts("lstm_kernels.py --hidden 512")
    assert "--batch 4096" in text and f"--table {run.tables}/lstm_kernels_4x512.csv" in text
    assert "| a | 1 |" in (run.out / "check-1.md").read_text()


# ---- What comes back --------------------------------------------------------------------------------------------------

def test_the_tables_are_complete_after_every_check(tmp_path, monkeypatch):
    packed = []
    real = check_report.write_report

    def watching(head, results, run):
        real(head, results, run)
        with tarfile.open(run.out / "tables.tar.gz") as archive:
            packed.append((results[-1]["name"], set(archive.getnames()), {path.name for path in run.tables.iterdir()}))
        assert json.loads((run.out / "check-1.json").read_text())["checks"][-1]["name"] == results[-1]["name"]
    monkeypatch.setattr(check_report, "write_report", watching)
    _, _, run = perform(tmp_path, monkeypatch)
    assert len(packed) == len(check_calls.checks_of(1)) and all(names == there for _, names, there in packed)
    assert "resnet_bf16_raw_shipped.csv" in dict((name, names) for name, names, _ in packed)["ResNet-50 bf16 raw, shipped plans"]
    assert {"pytorch_resnet.csv", "lstm_4x512_bf16.csv"} <= packed[-1][1]
    assert len(list(run.out.iterdir())) <= 8 and all(path.is_file() for path in run.out.iterdir())


def test_tables_of_an_earlier_call_come_back_with_the_new_ones(tmp_path, monkeypatch):
    run = check_run.Run(tmp_path, io.StringIO(), MadeUpProcesses(MadeUpClock()), MadeUpClock(), scratch=tmp_path / "scratch")
    row = '"convolution {} n8 c3 8x8 k8 r3 s1 p1",compared,0,same bits,"engine 1"\n'
    rows = {precision: row.format(precision) for precision in ("bf16", "fp16", "fp32", "tf32")}
    kernels = "precision,part\nbf16,forward\nfp16,forward\n"
    (run.tables / "operations.csv").write_text("".join(rows.values()))
    (run.tables / "kernels.csv").write_text(kernels)
    (run.tables / "device.json").write_text("{}")
    check_report.pack_tables(run)
    again = check_run.Run(tmp_path, io.StringIO(), MadeUpProcesses(MadeUpClock()), MadeUpClock(), scratch=tmp_path / "scratch")
    check_report.take_tables(tmp_path, again)
    assert sorted(path.name for path in again.tables.iterdir()) == ["device.json", "kernels.csv", "operations.csv"]
    check_report.remove_old(again.tables, FIRST)
    assert (again.tables / "operations.csv").read_text() == rows["fp16"] + rows["fp32"] + rows["tf32"]
    assert (again.tables / "kernels.csv").read_text() == "precision,part\nfp16,forward\n" and not (again.tables / "device.json").exists()
