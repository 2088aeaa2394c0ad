"""Checks that run tests of gpu_tests: the gate, kernels, operations, CUTLASS's kernels, recurrent algorithms, graphs, the
search, several ranks, and the sanitizer."""
import json
import re
import shutil
import time

import check_libraries
import kept_search
from check_run import CUTLASS, GPU_TESTS, GRAPHS, RECURRENT, ROOT, SHIPPED_PLANS, outcome
from check_schedule import LEAST_SECONDS, NotRun

OUTCOME = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] ([\w/]+\.[\w/]+)", re.M)
ALGORITHMS = ["standard", "persist_static", "persist_dynamic", "persist_small_h"]
# The gate's tests without which no later check can run. A plan or a recurrent layer that fails leaves other checks.
GATE_FINDINGS = re.compile(r"plan|recurrent|description", re.I)
CUDNN_TESTS = ["GpuGate.Plan", "GpuGate.Recurrent"]  # when cuDNN has no plan for either, it does not work at all


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


def run_tests(run, seconds, filter_, plans, **environment):
    """Runs tests. If the process ends before all of them have run, a new process runs the rest, because a GPU's error
    stays with its process. Returns (exit code, outcomes by name, output, processes)."""
    run.need_gpu()
    run.need(GPU_TESTS)
    end, done, texts, starts, chosen = run.clock.now() + seconds, {}, [], 0, filter_
    while True:
        code, text = run.call([GPU_TESTS, f"--gtest_filter={chosen}"], end - run.clock.now(), plans, **environment)
        starts += 1
        texts.append(text)
        found = test_outcomes(text)
        done |= {test: "failed" if state == "running" else state for test, state in found.items()}
        if code in (0, None) or end - run.clock.now() < 2 * LEAST_SECONDS:
            break
        # Starting the driver takes seconds, so the names are listed only when they are needed.
        _, listing = run.call([GPU_TESTS, "--gtest_list_tests", f"--gtest_filter={filter_}"], LEAST_SECONDS + 2)
        rest = [test for test in listed_tests(listing) if test not in done]
        if not rest or not found:
            break
        chosen = ":".join(rest)
    return code, done, "\n".join(texts), starts


def gtest(name, share=0.25, dry_name=None, plans="test_plans", **environment):
    """Makes a check that runs tests of gpu_tests. In each test, a search or the loop over operations takes at most
    `share` of the time. `plans` is the folder of the run that has their plans."""
    def check(run, seconds):
        limit = 2 if run.dry else max(5, int(seconds * share))
        return gtest_result(*run_tests(run, seconds, dry_name if run.dry and dry_name else name, getattr(run, plans),
                                       **{"RINGTRAIN_GPU_SECONDS": limit, **environment}))
    return check


def gtest_result(code, done, text, starts=1):
    """The result of tests with these outcomes. A line `finding: ...` of theirs is a note, and no failure."""
    counts = {kind: sum(state == kind for state in done.values()) for kind in ("passed", "failed", "skipped")}
    findings = [line for line in text.splitlines() if line.startswith("finding: ")]
    result = outcome(code, text, tests=counts, notes=findings)
    if starts > 1:
        result["why"] = f"{starts} processes: a test ended the first"
    if counts["failed"] and code is not None:
        result["status"] = "failed"
        failed = [name for name, state in done.items() if state == "failed"]
        result["notes"] = ["failed: " + ", ".join(failed[:6]) + (f" and {len(failed) - 6} more" if len(failed) > 6 else ""), *findings]
    if code == 0 and not counts["passed"] and not counts["failed"]:
        if not counts["skipped"]:
            return {**result, "status": "failed", "why": "no test of that name"}
        reason = re.search(r"Skipped\n(.+)", text)
        result |= {"status": "not run", "why": reason[1].strip() if reason else "all tests were skipped"}
    return result


# ---- The gate, and what can be switched off --------------------------------------------------------------------------

def gate(run, seconds):
    """Prints facts and milliseconds of everything that later checks use. If the device, own kernels, copies, graphs or all
    of cuDNN do not work, or the gate hangs, the call ends."""
    code, done, text, starts = run_tests(run, seconds, "GpuGate.*", run.plans, whole=True)
    result = gtest_result(code, done, text, starts)
    facts = [line for line in text.splitlines() if line.startswith("gate: ")]
    result["said"] = facts if result["status"] == "passed" else facts + result["said"]
    run.cudnn_version = check_libraries.opened(text)[0]
    result["notes"] += [f"cuDNN {run.cudnn_version}"] if run.cudnn_version else []
    result["notes"] += check_libraries.differences(run.cudnn, text) + description_notes(run)
    device = re.search(r"^gate: device: (.+)", text, re.M)
    if device and not run.dry and "nvidia-smi" in run.gpu:
        run.gpu = device[1].strip()
    broken = [name for name, state in done.items() if state == "failed" and not GATE_FINDINGS.search(name)]
    if result["status"] == "out of time":
        result["ends_call"] = "the gate was out of time"
    elif broken:
        result["ends_call"] = f"the gate failed in {', '.join(broken)}"
    elif result["status"] == "failed" and "passed" not in done.values():
        result["ends_call"] = "the gate failed: the device cannot be taken into use"
    elif text.count(" has no plan: ") >= len(CUDNN_TESTS) and all(done.get(test) == "failed" for test in CUDNN_TESTS):
        result["ends_call"] = "the gate failed: cuDNN has no plan for anything"
    elif result["status"] == "failed":
        result["usable"] = True
    return result


OF_THE_MACHINE = ("pciDeviceId",)  # the device's slot in this machine, which decides no plan


def description_notes(run):
    """Compares how cuDNN describes the real device with the file that plans are made with on machines without it."""
    file = run.tables / "device.json"
    if run.dry or not file.exists():
        return []
    real, lines = json.loads(file.read_text()), []
    shipped = [path for path in sorted((ROOT / "src/backend/cuda/device/descriptions").glob("*.json"))
               if path.stem in run.gpu.lower()]
    for path in shipped:
        known = json.loads(path.read_text())
        lines += [f"{path.name}: {key} is {value}, the device says {real.get(key)}" for key, value in known.items()
                  if key not in ("origin", *OF_THE_MACHINE) and real.get(key) != value]
        lines += [f"{path.name} lacks {key}" for key in real.keys() - known.keys()]
    return lines or [f"equal to {path.name}" for path in shipped] or ["no file describes this device"]


def switch_by(run, what, result):
    """Switches something off when its check failed or hung, and on again when it passed."""
    if result["status"] in ("failed", "out of time"):
        run.switch(what, result.get("why") or "; ".join(result.get("notes", [])) or result["status"])
    elif result["status"] == "passed":
        run.switch(what, "")


def cutlass(run, seconds):
    run.need_real_gpu("CUTLASS")
    result = gtest("*GpuHopper.*", whole=True)(run, seconds)
    switch_by(run, CUTLASS, result)
    return result


def recurrent(run, seconds):
    """Runs every algorithm in a process of its own, each with an equal share of the time that is left. Those that fail
    are not used by later checks."""
    end, status, said, notes, tests, hung = run.clock.now() + seconds, {}, [], [], {}, False
    for number, algorithm in enumerate(ALGORITHMS):
        share = (end - run.clock.now()) / (len(ALGORITHMS) - number)
        result = gtest(f"*GpuRecurrent.*/{algorithm}", whole=True)(run, share)
        switch_by(run, RECURRENT + algorithm, result)
        status[algorithm] = result["status"]
        hung = hung or result["status"] == "out of time"
        notes.append(f"{algorithm}: {result['status']}")
        for kind, tests_of_kind in result["tests"].items():
            tests[kind] = tests.get(kind, 0) + tests_of_kind
        if result["status"] != "passed":
            said += [f"{algorithm}: {line}" for line in result["said"][-8:]]
    bad = [algorithm for algorithm, found in status.items() if found in ("failed", "out of time")]
    passed = "passed" in status.values()
    return {"status": "failed" if bad else "passed" if passed else "not run", "said": said, "notes": notes, "tests": tests,
            **({"hung": True} if hung else {}), **({"usable": True} if passed else {})}


FAMILIES = {"ResNet": "ResNet_bf16", "Lstm": "Lstm_bf16"}  # as the options of a run name them, and as the tests do


def graphs(run, seconds):
    """Compares graphs with commands one by one. A family that differs is measured without graphs."""
    filter_ = ":".join(f"*GpuGraphs.*/{test}" for test in FAMILIES.values())
    limit = 2 if run.dry else 5
    code, done, text, starts = run_tests(run, seconds, filter_, run.test_plans, RINGTRAIN_GPU_SECONDS=limit)
    result = gtest_result(code, done, text, starts)
    for family, test in FAMILIES.items():
        mine = [state for name, state in done.items() if name.endswith(f"/{test}")]
        if result["status"] in ("failed", "out of time") and "passed" not in mine:
            run.switch(GRAPHS + family, "they differ from single commands" if "failed" in mine and code is not None else result["status"])
        elif "passed" in mine:
            run.switch(GRAPHS + family, "")
    return result


# ---- The search, and its results for later checks and calls ----------------------------------------------------------

def lost_in(text):
    """What lost the device, by what a test has printed, or ""."""
    found = re.search(r'exception with description "(.*)" thrown', text)
    return found.group(1) if found and "the device is unusable" in text else ""


def search(precision, candidates, deadline):
    """Searches fusions and plans within `deadline` seconds. What it has found is kept also when it fails or is ended."""
    def check(run, seconds):
        def ask(left):
            limit = max(1, min(deadline, int(left) - 5))
            return run_tests(run, left, f"*GpuFusions*{precision}", run.plans, RINGTRAIN_PLAN_CANDIDATES=candidates,
                             RINGTRAIN_SEARCH_DEADLINE=limit, RINGTRAIN_GPU_SECONDS=2 if run.dry else limit)
        begin, lost = time.monotonic(), []
        found = ask(seconds)
        # What lost the device is kept as refused, so the next process goes on after it. The same error again ends that.
        while (what := lost_in(found[2])) and what not in lost and seconds - (time.monotonic() - begin) > 10:
            lost.append(what)
            found = ask(seconds - (time.monotonic() - begin))
        result = gtest_result(*found)
        result["notes"] += [f"the device was lost: {what}" for what in lost]
        pieces, left_out = kept_search.pack(run.plans, run.out, without=SHIPPED_PLANS)
        said = re.findall(r"^.*(?:plans per second|plans/s|sites were timed).*$", found[2], re.M)
        result["notes"] += [line.strip() for line in said[-2:]]
        if pieces:
            result["usable"] = True
            result["notes"].append(f"kept: {', '.join(p.name for p in pieces)}" + (f"; {left_out} plans did not fit" if left_out else ""))
        return result
    return check


# ---- Several ranks, and the sanitizer --------------------------------------------------------------------------------

def ranks(count, name, dry_name=None):
    """Makes a check that runs `count` ranks. On one GPU every rank gets a host name of its own, which NCCL requires.
    Rank 0's report counts."""
    def check(run, seconds):
        run.need_gpu()
        run.need(GPU_TESTS)
        report = run.scratch / "report.json"
        report.unlink(missing_ok=True)
        launcher = [ROOT / "tests/mpirun.sh", count, ROOT / "tests/gpu/rank.sh"] if count > 1 else []
        code, text = run.call([*launcher, GPU_TESTS, f"--gtest_filter={dry_name if run.dry and dry_name else name}",
                               f"--gtest_output=json:{report}"], seconds, run.test_plans)
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


def sanitizer(tool, name):
    def check(run, seconds):
        run.need_real_gpu("a sanitizer")
        run.need(GPU_TESTS)
        program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if not program:
            raise NotRun("compute-sanitizer was not found")
        # A kit's programs are started by a script and a loader, so the sanitizer has to follow child processes.
        code, text = run.call([program, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", GPU_TESTS,
                               f"--gtest_filter={name}"], seconds, run.test_plans)
        return gtest_result(code, test_outcomes(text), text)
    return check
