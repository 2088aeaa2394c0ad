#!/usr/bin/env python3
"""All that wants a GPU: tests/gpu/check.sh [--part 1|2|3] [--only NAME] [--list]

  --part 1   (9 min)   the device's description, own kernels, cuDNN's operations; training against the CPU's, the same bits
  --part 2   (9 min)   search of fusions, memory, ResNet-50 kernel by kernel and beside PyTorch; more operations
  --part 3   (7 min)   NCCL and host memory with 1, 2 and 4 ranks, abort, resume; LSTM beside PyTorch; sanitizer

Each line of the table runs alone, has its own time limit, and keeps no other from running. Without a GPU the tests are
skipped and counted. Files go to $OUT (results/gpu/check when it is not set): check-PART.json, check-PART.log,
device.json, operations.csv, fusions.txt, resnet.* and lstm.*. cuDNN's plans are kept in results/gpu/plans for the next part.
The exit code is 1 when something failed or ran out of time.
The programs are those of this folder: a checkout's after `make all tests`, or a bundle's.
"""
import argparse
import array
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GPU_TESTS, RINGTRAIN, DATA_TOOL = ROOT / "build/tests/gpu_tests", ROOT / "bin/ringtrain", ROOT / "bin/ringtrain-data"
PLANS = ROOT / "results/gpu/plans"
PART_SECONDS = {1: 540, 2: 540, 3: 420}
SHOWN_LINES = 25
HOST_DEVICE = os.environ.get("RINGTRAIN_TEST_DEVICE") == "host"  # tries the checks themselves, on a CPU


class Skip(Exception):
    pass


class Run:
    """What the checks share: where files go, how a command is run, whether there is a GPU."""

    def __init__(self, out, log):
        self.out, self.log = out, log
        self.scratch = Path(tempfile.mkdtemp(prefix="ringtrain-check-"))
        self.gpu = self.find_gpu()

    def find_gpu(self):
        if HOST_DEVICE:
            return "none; the host device tries the checks"
        try:
            listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
            return listed.stdout.splitlines()[0].strip() if listed.returncode == 0 and listed.stdout.strip() else ""
        except (OSError, subprocess.TimeoutExpired):
            return ""

    def need_gpu(self):
        if not self.gpu:
            raise Skip("no GPU")

    def call(self, command, seconds, **environment):
        """(exit code, or None when out of time; what it printed)"""
        variables = {**os.environ, "GTEST_COLOR": "no", "RINGTRAIN_GPU_OUT": str(self.out),
                     "RINGTRAIN_PLAN_CACHE": str(PLANS), **{k: str(v) for k, v in environment.items()}}
        command = [str(part) for part in command]
        with tempfile.TemporaryFile(mode="w+", errors="replace") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       env=variables, start_new_session=True)
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                code = None
                process.terminate()  # mpirun ends its ranks, which have process groups of their own
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    pass
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            output.seek(0)
            text = output.read()
        self.log.write(f"\n$ {' '.join(command)}\n{text}[exit code {code}]\n")
        self.log.flush()
        return code, text


def outcome(code, text, seconds, **more):
    status = "out of time" if code is None else "passed" if code == 0 else "failed"
    return {"status": status, "said": text.splitlines()[-SHOWN_LINES:], **more}


def gtest(name, *launcher, share=0.25, **environment):
    """Tests of gpu_tests, counted from the report. A search in a test takes at most `share` of the check's time."""
    def check(run, seconds):
        if not GPU_TESTS.exists():
            raise Skip(f"{GPU_TESTS.relative_to(ROOT)} is not built")
        report = run.scratch / "report.json"
        report.unlink(missing_ok=True)
        command = [*launcher, GPU_TESTS, f"--gtest_filter={name}", f"--gtest_output=json:{report}"]
        code, text = run.call(command, seconds, RINGTRAIN_GPU_SECONDS=max(10, int(seconds * share)), **environment)
        counts = {"passed": 0, "failed": 0, "skipped": 0}
        try:
            for suite in json.loads(report.read_text())["testsuites"]:
                for test in suite["testsuite"]:
                    if test["status"] == "NOTRUN":
                        continue
                    kind = "failed" if test.get("failures") else "skipped" if test["result"] == "SKIPPED" else "passed"
                    counts[kind] += 1
        except (OSError, ValueError, KeyError):
            if code == 0:
                code = 1
                text += "\nit left no readable report"
        result = outcome(code, text, seconds, tests=counts)
        if code == 0 and not counts["passed"]:
            result["status"] = "skipped" if counts["skipped"] else "failed"
            result["why"] = "no GPU" if not run.gpu else "" if counts["skipped"] else "no test of that name"
        return result
    return check


def ranks(count, filter_):
    """On one GPU every rank gets a host name of its own, or NCCL would refuse it."""
    return gtest(filter_, ROOT / "tests/mpirun.sh", count, ROOT / "tests/gpu/rank.sh")


def script(name, *options):
    def check(run, seconds):
        run.need_gpu()
        if HOST_DEVICE:
            raise Skip("a comparison needs a GPU")
        program = ROOT / "tests/gpu" / name
        if not program.exists():
            raise Skip(f"no {name}")
        # It ends by itself, with a table of what it has reached.
        return outcome(*run.call([sys.executable, program, "--minutes", max(60, seconds - 40) / 60, "--output", run.out / name.split("_")[0],
                                  *options], seconds), seconds)
    return check


def kernel_table(run, seconds):
    run.need_gpu()
    if HOST_DEVICE or not (ROOT / "build/bench/cuda_commands").exists():
        raise Skip("build/bench/cuda_commands is not built" if not HOST_DEVICE else "a table of times needs a GPU")
    return outcome(*run.call([sys.executable, ROOT / "tests/gpu/kernel_table.py", "--search-seconds", seconds / 4, "--output",
                              run.out / "resnet50_kernels"], seconds), seconds)


def description(run, seconds):
    """The real device as cuDNN describes it, beside the file that plans are made with where there is none."""
    result = gtest("GpuDescription*")(run, seconds)
    file = run.out / "device.json"
    if result["status"] != "passed" or not file.exists():
        return result
    real, lines = json.loads(file.read_text()), []
    shipped = [path for path in sorted((ROOT / "src/backend/cuda/device/descriptions").glob("*.json"))
               if path.stem in run.gpu.lower()]
    for path in shipped:
        for key, value in json.loads(path.read_text()).items():
            if key != "origin" and real.get(key) != value:
                lines.append(f"{path.name}: {key} is {value}, the device says {real.get(key)}")
        lines += [f"{path.name} lacks {key}" for key in real.keys() - json.loads(path.read_text()).keys()]
    result["said"] = lines or [f"equal to {path.name}" for path in shipped] or ["no file describes this device"]
    return result


def names(run):
    """A small data set of names."""
    if not (DATA_TOOL.exists() and RINGTRAIN.exists()):
        raise Skip("the programs are not built")
    words = [a + b + c for a in ("an", "be", "ca", "do", "el", "fi", "go", "hu") for b in ("la", "mi", "no", "ru", "sa")
             for c in ("", "n", "ra", "th", "x")]
    file = run.scratch / "names.txt"
    file.write_text("\n".join(words) + "\n")
    prefix = run.scratch / "names"
    code, text = run.call([DATA_TOOL, "names", file, "--out", prefix, "--force"], 60)
    if code != 0:
        raise RuntimeError("the data set was not made:\n" + text)
    return prefix


def experiment(run, prefix, folder, *more):
    file = run.scratch / "experiment.yaml"
    file.write_text(f"""name: check
model: {{hidden: 64, layers: 2, dropout: 0.1}}
data: {{train: {prefix}-train}}
batch: {{global: 64, worker: 16}}
checkpoint: {{every_steps: 5, keep: 3}}
""")
    return [RINGTRAIN, "train", file, f"run.dir={run.scratch / folder}", f"machine.device={'cpu' if HOST_DEVICE else 'cuda'}", *more]


def exported(run, folder):
    target = run.scratch / f"{folder}.safetensors"
    code, text = run.call([RINGTRAIN, "export", run.scratch / folder, "--newest", "--out", target], 60)
    if code != 0:
        raise RuntimeError("the weights were not exported:\n" + text)
    return target.read_bytes()


def floats_of(safetensors):
    """All values of a file of fp32 tensors: eight bytes of length, a header of that length, the values."""
    values = array.array("f")
    values.frombytes(safetensors[8 + int.from_bytes(safetensors[:8], "little"):])
    return values


def resume(run, seconds):
    """Ten steps at once, and five and five: the same bytes."""
    run.need_gpu()
    prefix = names(run)
    for folder, *more in (("whole", "stop.steps=10"), ("parts", "stop.steps=5"), ("parts", "stop.steps=10", "--resume")):
        code, text = run.call(experiment(run, prefix, folder, *more), seconds / 3)
        if code != 0:
            return outcome(code, text, seconds)
    same = exported(run, "whole") == exported(run, "parts")
    return {"status": "passed" if same else "failed", "said": ["the weights are the same bytes" if same else "the weights differ"]}


def shared_gpu(run, seconds):
    """Two ranks on one GPU, sums through host memory: the weights of one rank."""
    run.need_gpu()
    prefix = names(run)
    weights = []
    for count in (1, 2):
        folder = f"ranks-{count}"
        command = experiment(run, prefix, folder, "stop.steps=10", "communication.library=mpi", "run.log_every_steps=1")
        code, text = run.call([ROOT / "tests/mpirun.sh", count, *command], seconds / 2)
        if code != 0:
            return outcome(code, text, seconds)
        weights.append(exported(run, folder))
    one, two = map(floats_of, weights)
    difference = (sum((a - b) ** 2 for a, b in zip(one, two)) / sum(b * b for b in two)) ** 0.5
    good = len(one) == len(two) and difference < 1e-4
    return {"status": "passed" if good else "failed", "said": [f"relative difference of the weights {difference:.2g}"]}


def sanitizer(tool):
    def check(run, seconds):
        run.need_gpu()
        if HOST_DEVICE:
            raise Skip("a sanitizer needs a GPU")
        program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if not program:
            raise Skip("no compute-sanitizer")
        # A bundle's programs are started by a script and a loader: children are followed.
        return outcome(*run.call([program, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", GPU_TESTS,
                                  "--gtest_filter=CudaKernels*"], seconds), seconds)
    return check


# (part, name, seconds, what)
CHECKS = [
    (1, "device description", 60, description),
    (1, "own kernels", 90, gtest("CudaKernels*")),
    (1, "operations bf16", 120, gtest("*GpuOperations*bf16", share=0.7)),
    (1, "operations fp32", 60, gtest("*GpuOperations*fp32", share=0.7)),
    (1, "training: CPU's curve", 90, gtest("*GpuTraining.TwentySteps*")),
    (1, "training: each precision", 180, gtest("*GpuTraining.OneStep*")),
    (1, "training: same bits, graphs", 90, gtest("*GpuTraining.HasTheSameBits*")),
    (2, "search of fusions", 150, gtest("GpuFusions*")),
    (2, "memory", 60, gtest("GpuMemory*")),
    (2, "ResNet-50, kernel by kernel", 120, kernel_table),
    (2, "ResNet-50 beside PyTorch", 300, script("resnet_bench.py", "--precision", "bf16", "--batch", "256", "--ways", "eager,graphs",
                                                "--search-seconds", "30")),
    (2, "operations fp16", 90, gtest("*GpuOperations*fp16", share=0.7)),
    (2, "operations tf32", 60, gtest("*GpuOperations*tf32", share=0.7)),
    (3, "NCCL, 1 rank", 60, gtest("*GpuRanks*")),
    (3, "NCCL, 2 ranks on a GPU", 90, ranks(2, "*GpuRanks*")),
    (3, "resume", 60, resume),
    (3, "ranks that share a GPU", 60, shared_gpu),
    (3, "LSTM beside PyTorch", 200, script("lstm_bench.py", "--precision", "bf16", "--batch", "4096", "--batch", "128", "--ways", "eager,graphs",
                                           "--search-seconds", "8")),
    (3, "NCCL, 4 ranks on a GPU", 90, ranks(4, "*GpuRanks*")),
    (3, "sanitizer memcheck", 90, sanitizer("memcheck")),
    (3, "sanitizer racecheck", 90, sanitizer("racecheck")),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, choices=PART_SECONDS)
    parser.add_argument("--only", default="", help="checks whose name contains this")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [c for c in CHECKS if options.part in (None, c[0]) and options.only in c[1]]
    if options.list or not chosen:
        for part, name, seconds, _ in chosen:
            print(f"part {part}  {seconds:4d} s  {name}")
        return 0 if chosen else 1

    out = Path(os.environ.get("OUT") or ROOT / "results/gpu/check")
    out.mkdir(parents=True, exist_ok=True)
    label = options.part or "all"
    for part, file in ((1, "operations.csv"), (2, "fusions.txt"), (1, "device.json")):
        if options.part in (None, part) and not options.only:
            (out / file).unlink(missing_ok=True)
    results = []
    begin = time.monotonic()
    with open(out / f"check-{label}.log", "w") as log:
        run = Run(out, log)
        version = subprocess.run([RINGTRAIN, "--version"], capture_output=True, text=True).stdout if RINGTRAIN.exists() else ""
        head = {"gpu": run.gpu or "none", "command": " ".join(sys.argv), "version": version.splitlines()[:1],
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        print(f"GPU: {head['gpu']}", flush=True)
        for part, name, limit, what in chosen:
            left = PART_SECONDS[part] - (time.monotonic() - begin) if options.part else limit
            start = time.monotonic()
            try:
                result = what(run, int(min(limit, left))) if left > 5 else {"status": "not run", "why": "the part's time is over"}
            except Skip as reason:
                result = {"status": "skipped", "why": str(reason)}
            except Exception as error:  # one check's fault is no other's
                result = {"status": "failed", "said": str(error).splitlines()[-SHOWN_LINES:]}
            result = {"part": part, "name": name, "seconds": round(time.monotonic() - start, 1), **result}
            results.append(result)
            tests = " ".join(f"{n} {k}" for k, n in result.get("tests", {}).items() if n)
            print(f"{part}  {result['status']:<12} {result['seconds']:7.1f} s  {name:<28} {tests} {result.get('why', '')}".rstrip(), flush=True)
            if result["status"] in ("failed", "out of time"):
                print("\n".join("     | " + line for line in result.get("said", [])), flush=True)
            (out / f"check-{label}.json").write_text(json.dumps({**head, "checks": results}, indent=1) + "\n")
        shutil.rmtree(run.scratch, ignore_errors=True)
    count = {s: sum(r["status"] == s for r in results) for s in ("passed", "failed", "out of time", "skipped", "not run")}
    tests = {k: sum(r.get("tests", {}).get(k, 0) for r in results) for k in ("passed", "failed", "skipped")}
    print("checks: " + ", ".join(f"{n} {s}" for s, n in count.items()))
    print("tests:  " + ", ".join(f"{n} {s}" for s, n in tests.items()))
    return 1 if count["failed"] or count["out of time"] else 0


if __name__ == "__main__":
    sys.exit(main())
