"""An invented clock and invented processes, with which the tests of tests/gpu/check.sh drive its checks."""
import csv
import io
import sys
from pathlib import Path

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import check_calls  # noqa: E402
import check_report  # noqa: E402
import check_run  # noqa: E402
import check_schedule  # noqa: E402
import check_training  # noqa: E402

GPU = "GPU 0: NVIDIA H200 (UUID: GPU-1)"


class MadeUpClock:
    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time


def text_of_tests(*names, result="OK"):
    """What gpu_tests prints about these tests."""
    word = {"OK": "[       OK ]", "FAILED": "[  FAILED  ]", "RUN": None}[result]
    return "".join(f"[ RUN      ] {name}\n" + (f"{word} {name} (1 ms)\n" if word else "") for name in names)


PASSES = text_of_tests("Suite.One") + "[  PASSED  ] 1 test.\n"
GRAPHS_PASS = text_of_tests("Families/GpuGraphs.Bits/ResNet_bf16", "Families/GpuGraphs.Bits/Lstm_bf16")
HANGS = (10_000, 0, "")


class MadeUpProcesses:
    """Every command takes `usual` seconds and passes. A command whose text contains a key of `special` has the seconds,
    exit code and output of its value (seconds, code, text), or of what the value returns for the text."""

    def __init__(self, clock, usual=1.0, special=None):
        self.clock, self.usual, self.special = clock, usual, special or {}
        self.started = []  # (time, text, seconds, environment)

    def run(self, command, seconds, environment, folder):
        text = " ".join(command)
        self.started.append((self.clock.now(), text, seconds, environment))
        behaves = next((value for key, value in self.special.items() if key in text), None)
        if callable(behaves):
            behaves = behaves(text)
        said = GPU if "nvidia-smi" in text else GRAPHS_PASS if "GpuGraphs" in text else PASSES
        took, code, said = behaves or (self.usual, 0, said)
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
        shapes = [command[i + 1] for i, word in enumerate(command) if word == "--only"]
        precisions = [command[i + 1] for i, word in enumerate(command) if word == "--precision"]
        rows = [{"depth": 50, "size": 224, "shape": shape, "layers": 4, "hidden": 512, "batch": given.get("--batch", 1), "precision": precision,
                 "input": given.get("--input", ""), "positions": 50, "ringtrain": 6000, "pytorch": 5000, "reached_flops": "",
                 "reached_bytes_per_second": ""} for precision in precisions for shape in shapes or [""]]
        with open(output.with_suffix(".csv"), "w") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        output.with_suffix(".md").write_text("| a table |\n")

    def texts(self, word=""):
        return [text for _, text, _, _ in self.started if word in text]

    def environment_of(self, word):
        return next(environment for _, text, _, environment in self.started if word in text)


def perform(tmp_path, monkeypatch, usual=1.0, special=None, call=1, take=lambda run: None, before=()):
    """Returns (results, processes, run) of a call with an invented clock and invented processes."""
    monkeypatch.setattr(check_run.Run, "need", lambda self, *programs: None)
    monkeypatch.setattr(check_training, "exported", lambda run, folder: bytes(8) + bytes(4) * 4)
    clock = MadeUpClock()
    processes = MadeUpProcesses(clock, usual, special)
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    run = check_run.Run(out, io.StringIO(), processes, clock, plans=tmp_path / "plans", test_plans=tmp_path / "test_plans", scratch=tmp_path / "scratch")
    run.before = list(before)
    take(run)
    processes.started.clear()
    clock.time = 0.0
    results = run.results

    def report(result):
        results.append(result)
        check_report.write_report({"call": call}, results, run)
    run.end = check_calls.CALL_SECONDS[call]
    check_schedule.run_checks(check_calls.checks_of(call, before), run, clock, run.end, report, run.probe, run.before,
                              {check_calls.RESUMED: check_calls.RESUMED_SECONDS})
    return results, processes, run


def result_of(results, name):
    return next(r for r in results if r["name"] == name)


def status(results, name):
    return result_of(results, name)["status"]
