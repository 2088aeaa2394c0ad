"""The checks of the GPU, and the tables of checks for the two calls. check.py says how to use them."""
import array
import csv
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import kept_search
from check_schedule import LEAST_SECONDS, Check, LeftOut, NotRun

ROOT = Path(__file__).resolve().parent.parent.parent
GPU_TESTS, RINGTRAIN, DATA_TOOL = ROOT / "build/tests/gpu_tests", ROOT / "bin/ringtrain", ROOT / "bin/ringtrain-data"
COMMANDS = ROOT / "build/bench/cuda_commands"
PLANS = ROOT / "results/gpu/plans"
BATCH = 256  # ResNet-50's batch where speed is measured
LSTM_BATCH = 4096
SAID_LINES, LOGGED_CHARACTERS = 25, 200_000
OUTCOME = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] ([\w/]+\.[\w/]+)", re.M)


class Run:
    """State that the checks share: the folder for files, how to run a command, and whether there is a GPU. With `dry`,
    the host device and the CPU stand for the GPU."""

    def __init__(self, out, log, processes, clock, dry=False, plans=PLANS):
        self.out, self.log, self.processes, self.clock, self.dry, self.plans = Path(out), log, processes, clock, dry, Path(plans)
        self.scratch = Path(tempfile.mkdtemp(prefix="ringtrain-check-"))
        self.gpu = "the host device" if dry else self.find_gpu()
        self.data = {}  # what a check has made for later checks

    def find_gpu(self):
        code, text = self.processes.run(["nvidia-smi", "-L"], 30, dict(os.environ), ROOT)
        if code == 0 and text.startswith("GPU"):
            return text.splitlines()[0].strip()
        return "a GPU (there is no nvidia-smi)" if code == 127 and list(Path("/dev").glob("nvidia[0-9]*")) else ""

    def need_gpu(self):
        if not self.gpu:
            raise NotRun("there is no GPU")

    def need_real_gpu(self, what):
        if self.dry:
            raise LeftOut(f"{what} needs a GPU")
        self.need_gpu()

    def need(self, *programs):
        for program in programs:
            if not program.exists():
                raise NotRun(f"{program.relative_to(ROOT)} is not built")

    def call(self, command, seconds, **more):
        """Runs a command. Returns (exit code, or None when out of time; what it printed)."""
        variables = {**os.environ, "GTEST_COLOR": "no", "PYTHONUNBUFFERED": "1", "RINGTRAIN_GPU_OUT": str(self.out),
                     "RINGTRAIN_PLAN_CACHE": str(self.plans), **{k: str(v) for k, v in more.items()}}
        if self.dry:
            variables["RINGTRAIN_TEST_DEVICE"] = "host"
        command = [str(part) for part in command]
        code, text = self.processes.run(command, seconds, variables, ROOT)
        shown = text if len(text) <= LOGGED_CHARACTERS else f"... the last {LOGGED_CHARACTERS} characters\n{text[-LOGGED_CHARACTERS:]}"
        self.log.write(f"\n$ {' '.join(command)}\n{shown}[{'out of time' if code is None else f'exit code {code}'}]\n")
        self.log.flush()
        return code, text


def outcome(code, text, **more):
    status = "out of time" if code is None else "passed" if code == 0 else "failed"
    return {"status": status, "said": text.splitlines()[-SAID_LINES:], **more}


# ---- Tests of gpu_tests -------------------------------------------------------------------------------------------

def test_outcomes(text):
    """Maps each test's name to passed, failed or skipped, or to running when the process ended in it. Tests that the
    program names as not run, because an earlier test has lost the device, are left out."""
    words = {"RUN": "running", "OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
    found = {}
    for kind, name in OUTCOME.findall(text.split("[  PASSED  ]")[0]):
        found[name] = words[kind]
    for name in re.findall(r"^not run: (\S+)", text, re.M):
        found.pop(name, None)
    return found


def listed_tests(text):
    """The names in the output of --gtest_list_tests."""
    names, suite = [], ""
    for line in text.splitlines():
        line = line.split("#")[0].rstrip()
        if re.fullmatch(r"[\w/]+\.", line):
            suite = line
        elif suite and re.fullmatch(r"  [\w/]+", line):
            names.append(suite + line.strip())
    return names


def gtest(name, share=0.25, dry_name=None, **environment):
    """Makes a check that runs tests of gpu_tests. In each test, a search or the loop over operations takes at most
    `share` of the time. If the process ends before all tests have run, a new process runs the rest, because a GPU's
    error stays with its process."""
    def check(run, seconds):
        run.need_gpu()
        run.need(GPU_TESTS)
        end, filter_ = run.clock.now() + seconds, dry_name if run.dry and dry_name else name
        limit = 2 if run.dry else max(5, int(seconds * share))
        done, texts, starts = {}, [], 0
        while True:
            left = end - run.clock.now()
            code, text = run.call([GPU_TESTS, f"--gtest_filter={filter_}"], left, RINGTRAIN_GPU_SECONDS=limit, **environment)
            starts += 1
            texts.append(text)
            found = test_outcomes(text)
            done |= {test: "failed" if state == "running" else state for test, state in found.items()}
            left = end - run.clock.now()
            if code in (0, None) or left < 2 * LEAST_SECONDS:
                break
            # Starting the driver takes seconds, so the names are listed only when they are needed.
            _, listing = run.call([GPU_TESTS, "--gtest_list_tests", f"--gtest_filter={dry_name if run.dry and dry_name else name}"], LEAST_SECONDS + 2)
            rest = [test for test in listed_tests(listing) if test not in done]
            if not rest or not found:
                break
            filter_ = ":".join(rest)
        return gtest_result(code, done, "\n".join(texts), starts)
    return check


def gtest_result(code, done, text, starts=1):
    counts = {kind: sum(state == kind for state in done.values()) for kind in ("passed", "failed", "skipped")}
    result = outcome(code, text, tests=counts)
    if starts > 1:
        result["why"] = f"{starts} processes: a test ended the first"
    if counts["failed"] and code is not None:
        result["status"] = "failed"
    if code == 0 and not counts["passed"] and not counts["failed"]:
        if not counts["skipped"]:
            return {**result, "status": "failed", "why": "no test of that name"}
        reason = re.search(r"Skipped\n(.+)", text)
        result |= {"status": "not run", "why": reason[1].strip() if reason else "all tests were skipped"}
    return result


def ranks(count, name):
    """Makes a check that runs `count` ranks. On one GPU every rank gets a host name of its own, which NCCL requires.
    Rank 0's report counts."""
    def check(run, seconds):
        run.need_gpu()
        run.need(GPU_TESTS)
        report = run.scratch / "report.json"
        report.unlink(missing_ok=True)
        launcher = [ROOT / "tests/mpirun.sh", count, ROOT / "tests/gpu/rank.sh"] if count > 1 else []
        code, text = run.call([*launcher, GPU_TESTS, f"--gtest_filter={name}", f"--gtest_output=json:{report}"], seconds)
        done = {}
        try:
            for suite in json.loads(report.read_text())["testsuites"]:
                for test in suite["testsuite"]:
                    if test["status"] != "NOTRUN":
                        state = "failed" if test.get("failures") else "skipped" if test["result"] == "SKIPPED" else "passed"
                        done[f"{suite['name']}.{test['name']}"] = state
        except (OSError, ValueError, KeyError):
            if code == 0:
                code, text = 1, text + "\nit left no readable report"
        return gtest_result(code, done, text)
    return check


def description(run, seconds):
    """Writes how cuDNN describes the real device, to be compared with the file that plans are made with on machines
    without it."""
    run.need_real_gpu("a description by cuDNN")
    result = gtest("GpuDescription*")(run, seconds)
    file = run.out / "device.json"
    if result["status"] != "passed" or not file.exists():
        return result
    real, lines = json.loads(file.read_text()), []
    shipped = [path for path in sorted((ROOT / "src/backend/cuda/device/descriptions").glob("*.json"))
               if path.stem in run.gpu.lower()]
    for path in shipped:
        known = json.loads(path.read_text())
        lines += [f"{path.name}: {key} is {value}, the device says {real.get(key)}" for key, value in known.items()
                  if key != "origin" and real.get(key) != value]
        lines += [f"{path.name} lacks {key}" for key in real.keys() - known.keys()]
    lines = lines or [f"equal to {path.name}" for path in shipped] or ["no file describes this device"]
    return {**result, "said": lines, "notes": lines}


# ---- The search, and its results for later parts and calls ---------------------------------------------------------

def search(precision):
    def check(run, seconds):
        result = gtest(f"*GpuFusions*{precision}", share=0.35)(run, seconds)  # plans are built in the rest of the time
        pieces, left_out = kept_search.pack(run.plans, run.out)
        if pieces:
            result["notes"] = [f"kept: {', '.join(p.name for p in pieces)}" + (f"; {left_out} plans did not fit" if left_out else "")]
        return result
    return check


# ---- Speed --------------------------------------------------------------------------------------------------------

def bench(run, name, seconds, *options):
    """Runs a benchmark. Returns its exit code, its output and the rows of its table."""
    program, output = ROOT / "tests/gpu" / name, run.scratch / "bench"
    for old in run.scratch.glob("bench*"):
        old.unlink()
    tiny = ["--device", "cpu", "--tiny"] if run.dry else []
    code, text = run.call([sys.executable, program, "--minutes", f"{max(0.1, (seconds - 8) / 60):.2f}", "--output", output, *tiny, *options], seconds)
    rows = []
    if output.with_suffix(".csv").exists():
        with open(output.with_suffix(".csv")) as file:
            rows = list(csv.DictReader(file))
    return code, text, rows


def rates_of(rows, side, unit, factor=lambda row: 1):
    """The rates of one side in the last table, by model."""
    rates = []
    for row in rows:
        value = row[side]
        model = row.get("shape") or f"ResNet-{row['depth']}"
        rates.append({"model": model, "batch": int(row["batch"]), "precision": row["precision"], "input": row.get("input", ""), "side": side,
                      "rate": float(value) * factor(row) if value else 0, "unit": unit,
                      "bound": float(row.get("bound") or row.get("bound_chars_per_second") or 0),
                      "target": float(row.get("rate_target") or row.get("target_chars_per_second") or 0),
                      "why": "" if value else row.get("ringtrain_failed") if side == "ringtrain" else row.get("pytorch_graphs", "not reached")})
    return rates


def measured(code, text, rates):
    missing = [f"{r['model']}, {r['precision']}: {r['why']}" for r in rates if not r["rate"]]
    result = outcome(code, text, rates=rates)
    if code == 0 and (missing or not rates):
        result |= {"status": "failed", "said": missing or ["no rate was measured"]}
    if rates and not missing:
        result["notes"] = [f"{r['rate']:,.0f} {r['unit']}" for r in rates[:1]]
    return result


RESNET = ["--batch", BATCH, "--windows", 3, "--window-seconds", 1, "--warmup-seconds", 2, "--search-seconds", 0]
LSTM = ["--batch", LSTM_BATCH, "--windows", 3, "--window-seconds", 0.5, "--warmup-seconds", 1, "--search-seconds", 1]


def pictures(run, seconds):
    """Makes two data sets from the same pictures: their JPEGs, and pixels of the final size."""
    run.need_gpu()
    run.need(RINGTRAIN, DATA_TOOL)
    code, text, _ = bench(run, "resnet_bench.py", seconds, "--data-only")
    return outcome(code, text)


def need_precision(run, precision):
    # The CPU stands for the GPU in a dry call. It does not train in fp16, and trains in bf16 only with AVX-512 BF16.
    if precision == "fp16":
        run.need_real_gpu("fp16")
    if precision == "bf16" and "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        run.need_real_gpu("bf16 without AVX-512 BF16")
    run.need_gpu()


def images_per_second(precision, kind):
    def check(run, seconds):
        need_precision(run, precision)
        run.need(RINGTRAIN)
        code, text, rows = bench(run, "resnet_bench.py", seconds, *RESNET, "--side", "ringtrain",
                                 "--precision", precision, "--input", kind)
        return measured(code, text, rates_of(rows, "ringtrain", "images/s"))
    return check


def characters_per_second(precision, shape):
    def check(run, seconds):
        need_precision(run, precision)
        run.need(RINGTRAIN)
        code, text, rows = bench(run, "lstm_bench.py", seconds, *LSTM, "--side", "ringtrain",
                                 "--precision", precision, "--only", shape)
        return measured(code, text, rates_of(rows, "ringtrain", "characters/s", lambda row: int(row["positions"])))
    return check


def pytorch_graphs(name, unit, *options, factor=lambda row: 1):
    """A case that fails is a line of the table, and the other cases still count."""
    def check(run, seconds):
        run.need_real_gpu("PyTorch in CUDA graphs")
        code, text, rows = bench(run, name, seconds, "--side", "pytorch", "--ways", "graphs", "--precision", "bf16", "--precision", "fp16", *options)
        return measured(code, text, rates_of(rows, "pytorch", unit, factor))
    return check


def kernel_table(precision):
    def check(run, seconds):
        run.need_gpu()
        run.need(COMMANDS)
        size = ["--batch", 2, "size=32", "width=16", "repeat=1"] if run.dry else ["--batch", BATCH]
        code, text = run.call([sys.executable, ROOT / "tests/gpu/kernel_table.py", "--precision", precision, "--search-seconds", 0,
                               "--commands-to", run.out / "kernels.csv", "--output", run.scratch / "kernels", *size], seconds)
        table = run.scratch / "kernels.md"
        result = outcome(code, text)
        if code == 0 and table.exists():
            result["tables"] = [table.read_text()]
        return result
    return check


# ---- Runs ---------------------------------------------------------------------------------------------------------

def names(run):
    """Makes a small data set of names."""
    run.need(RINGTRAIN, DATA_TOOL)
    if "names" not in run.data:
        words = [a + b + c for a in ("an", "be", "ca", "do", "el", "fi", "go", "hu") for b in ("la", "mi", "no", "ru", "sa")
                 for c in ("", "n", "ra", "th", "x")]
        file, prefix = run.scratch / "names.txt", run.scratch / "names"
        file.write_text("\n".join(words) + "\n")
        code, text = run.call([DATA_TOOL, "names", file, "--out", prefix, "--force"], 20)
        if code != 0:
            raise RuntimeError("the data set was not made:\n" + text)
        run.data["names"] = prefix
    return f"model: {{hidden: 64, layers: 2, dropout: 0.1}}\ndata: {{train: {run.data['names']}-train}}"


def small_pictures(run):
    """Makes a data set of a few 32 x 32 pictures in two classes."""
    from bench_gpu import write_png
    run.need(RINGTRAIN, DATA_TOOL)
    if "pictures" not in run.data:
        folder, prefix = run.scratch / "pictures", run.scratch / "small"
        for number in range(80):
            place = folder / f"class_{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            write_png(place / f"{number}.png", 32, 32, number)
        code, text = run.call([DATA_TOOL, "images", folder, "--out", prefix, "--encoding", "raw", "--size", 32, "--force"], 20)
        if code != 0:
            raise RuntimeError("the data set was not made:\n" + text)
        run.data["pictures"] = prefix
    return (f"model: {{kind: resnet, depth: 18, width: 16, stem: small}}\nprecision: {'fp32' if run.dry else 'bf16'}\n"
            f"data: {{train: {run.data['pictures']}-train, image_size: 32}}")


def experiment(run, model, folder, *more):
    file = run.scratch / "experiment.yaml"
    file.write_text(f"""name: check
{model}
batch: {{global: {16 if run.dry else 64}, worker: {8 if run.dry else 16}}}
checkpoint: {{every_steps: 2, keep: 3}}
""")
    return [RINGTRAIN, "train", file, f"run.dir={run.scratch / folder}", f"machine.device={'cpu' if run.dry else 'cuda'}", "machine.search_seconds=2",
            f"machine.plan_cache={run.plans}", *more]


def exported(run, folder):
    target = run.scratch / f"{folder}.safetensors"
    code, text = run.call([RINGTRAIN, "export", run.scratch / folder, "--newest", "--out", target], 20)
    if code != 0:
        raise RuntimeError("the weights were not exported:\n" + text)
    return target.read_bytes()


def floats_of(safetensors):
    """Returns all values of a safetensors file of fp32 tensors. The file holds eight bytes with the length of a header,
    the header, and the values."""
    values = array.array("f")
    values.frombytes(safetensors[8 + int.from_bytes(safetensors[:8], "little"):])
    return values


def resume(model):
    """Trains six steps in one start and in three starts, of which two resume. The bytes of the weights must be the
    same."""
    def check(run, seconds):
        run.need_gpu()
        text_of_model, name, end = model(run), model.__name__, run.clock.now() + seconds
        for folder, *more in (("whole", "stop.steps=6"), ("parts", "stop.steps=2"), ("parts", "stop.steps=4", "--resume"),
                              ("parts", "stop.steps=6", "--resume")):
            code, text = run.call(experiment(run, text_of_model, f"{name}-{folder}", *more), end - run.clock.now())
            if code != 0:
                return outcome(code, text)
        same = exported(run, f"{name}-whole") == exported(run, f"{name}-parts")
        return {"status": "passed" if same else "failed", "said": ["the weights are the same bytes" if same else "the weights differ"]}
    return check


def shared_gpu(run, seconds):
    """Trains with two ranks on one GPU, with sums through host memory. The weights must be those of one rank
    up to rounding."""
    run.need_gpu()
    model, weights, end = names(run), [], run.clock.now() + seconds
    for count in (1, 2):
        folder = f"ranks-{count}"
        command = experiment(run, model, folder, "stop.steps=10", "communication.library=mpi", "run.log_every_steps=1")
        code, text = run.call([ROOT / "tests/mpirun.sh", count, *command], end - run.clock.now())
        if code != 0:
            return outcome(code, text)
        weights.append(exported(run, folder))
    one, two = map(floats_of, weights)
    difference = (sum((a - b) ** 2 for a, b in zip(one, two)) / sum(b * b for b in two)) ** 0.5
    good = len(one) == len(two) and difference < 1e-4
    return {"status": "passed" if good else "failed", "said": [f"relative difference of the weights {difference:.2g}"]}


def sanitizer(tool):
    def check(run, seconds):
        run.need_real_gpu("a sanitizer")
        run.need(GPU_TESTS)
        program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if not program:
            raise NotRun("compute-sanitizer was not found")
        # A bundle's programs are started by a script and a loader, so the sanitizer has to follow child processes.
        code, text = run.call([program, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", GPU_TESTS,
                               "--gtest_filter=CudaKernels*"], seconds)
        return gtest_result(code, test_outcomes(text), text)
    return check


def comparison(name, *options):
    """Makes a check that runs PyTorch, ringtrain, ringtrain and PyTorch."""
    def check(run, seconds):
        run.need_real_gpu("a comparison")
        code, text, rows = bench(run, name, seconds, *options)
        result = outcome(code, text)
        table = run.scratch / "bench.md"
        if code == 0 and table.exists():
            result["tables"] = [table.read_text()]
        return result
    return check


# ---- The calls, with the most valuable checks first ----------------------------------------------------------------

def positions(row):
    return int(row["positions"])


KERNELS, GRAPHS, SEARCH = "kernels and operations", "graphs = eager", "search at batch 256"
IMAGES, CHARACTERS, PEER, TABLE = "images/s", "characters/s", "PyTorch", "kernel table"
RANKS, REST = "ranks, resume, memory, sanitizer", "the rest"

FIRST_CALL = [
    Check(KERNELS, "device description", 15, description),
    Check(KERNELS, "own kernels", 35, gtest("CudaKernels*")),
    Check(KERNELS, "operations bf16", 30, gtest("*GpuOperations*bf16", share=0.8)),
    Check(KERNELS, "operations fp16", 25, gtest("*GpuOperations*fp16", share=0.8)),
    Check(KERNELS, "operations fp32", 15, gtest("*GpuOperations*fp32", share=0.8)),
    Check(GRAPHS, "each family, fp32, bf16, fp16", 60, gtest("*GpuGraphs*", share=0.1)),
    Check(SEARCH, "search bf16", 45, search("bf16")),
    Check(SEARCH, "search fp16", 45, search("fp16")),
    Check(IMAGES, "pictures", 36, pictures),
    *[Check(IMAGES, f"ResNet-50 {precision} {kind}", 21, images_per_second(precision, kind))
      for kind in ("raw", "jpeg") for precision in ("bf16", "fp16")],
    *[Check(CHARACTERS, f"LSTM {shape} {precision}", seconds, characters_per_second(precision, shape))
      for precision, seconds in (("bf16", 8), ("fp16", 7)) for shape in ("4x512", "4x128")],
    Check(PEER, "ResNet-50 in CUDA graphs", 38, pytorch_graphs("resnet_bench.py", "images/s", *RESNET, "--input", "raw")),
    Check(PEER, "LSTM in CUDA graphs", 22, pytorch_graphs("lstm_bench.py", "characters/s", *LSTM, "--only", "4x512", "--only", "4x128",
                                                         factor=positions)),
    Check(TABLE, "ResNet-50 bf16", 30, kernel_table("bf16")),
    Check(TABLE, "ResNet-50 fp16", 30, kernel_table("fp16")),
]

SECOND_CALL = [
    Check(RANKS, "NCCL, 2 ranks on a GPU, abort", 60, ranks(2, "*GpuRanks*")),
    Check(RANKS, "NCCL, 1 rank", 25, ranks(1, "*GpuRanks*")),
    Check(RANKS, "ranks that share a GPU", 35, shared_gpu),
    Check(RANKS, "three starts, ResNet", 40, resume(small_pictures)),
    Check(RANKS, "three starts, LSTM", 25, resume(names)),
    Check(RANKS, "memory against plan", 30, gtest("GpuMemory*", share=0)),
    Check(RANKS, "sanitizer memcheck", 45, sanitizer("memcheck")),
    Check(RANKS, "sanitizer racecheck", 45, sanitizer("racecheck")),
    Check(REST, "training: CPU's curve", 45, gtest("*GpuTraining.TwentySteps*", share=0.1, dry_name="*GpuTraining.TwentySteps*/LstmDropout")),
    Check(REST, "training: each precision", 40, gtest("*GpuTraining.OneStep*", share=0.1, dry_name="*GpuTraining.OneStep*/LstmDropout")),
    Check(REST, "ResNet-50 beside PyTorch", 90, comparison("resnet_bench.py", *RESNET, "--precision", "bf16", "--precision", "fp16", "--input", "raw",
                                                          "--ways", "eager,graphs")),
    Check(REST, "LSTM beside PyTorch", 40, comparison("lstm_bench.py", *LSTM, "--precision", "bf16", "--precision", "fp16", "--only", "4x512",
                                                     "--ways", "eager,graphs")),
    Check(REST, "same bits each time", 20, gtest("*GpuTraining.HasTheSameBits*", share=0.1, dry_name="*GpuTraining.HasTheSameBits*/LstmDropout")),
    Check(REST, "operations tf32", 10, gtest("*GpuOperations*tf32", share=0.8)),
    Check(REST, "NCCL, 4 ranks on a GPU", 20, ranks(4, "*GpuRanks*")),
]

CALLS = {1: FIRST_CALL, 2: SECOND_CALL}
