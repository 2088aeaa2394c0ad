"""What all checks of the GPU share: folders, the GPU's name, how a command is run, and what was switched off because a
check found it broken."""
import os
import re
from pathlib import Path

import bounds
import check_libraries
from check_schedule import PROBE_SECONDS, LeftOut, NotRun

ROOT = Path(__file__).resolve().parent.parent.parent
GPU_TESTS, RINGTRAIN, DATA_TOOL = ROOT / "build/tests/gpu_tests", ROOT / "bin/ringtrain", ROOT / "bin/ringtrain-data"
COMMANDS = ROOT / "build/bench/cuda_commands"
PLANS, TEST_PLANS = ROOT / "results/gpu/plans", ROOT / "results/gpu/test_plans"
SHIPPED_PLANS = ROOT / "plans"  # in a kit
SAID_LINES, LOGGED_CHARACTERS = 25, 200_000
PROBE_TEST = "GpuGate.*Kernel*"

CUTLASS, RECURRENT, GRAPHS = "CUTLASS", "recurrent ", "graphs of "


class Run:
    """State of one call. With `dry`, the host device and the CPU stand for the GPU. Measured networks keep their plans
    in `plans`, which is packed for the next call. Small networks of tests keep theirs in `test_plans`."""

    def __init__(self, out, log, processes, clock, dry=False, plans=PLANS, test_plans=TEST_PLANS, *, scratch, cudnn=None):
        self.out, self.log, self.processes, self.clock, self.dry = Path(out), log, processes, clock, dry
        self.scratch = Path(scratch)  # the caller removes it
        self.tables = self.scratch / "tables"  # packed after every check
        self.tables.mkdir(parents=True, exist_ok=True)
        # The host device's plans must not mix with a GPU's.
        self.plans, self.test_plans = (self.scratch / "plans", self.scratch / "test_plans") if dry else (Path(plans), Path(test_plans))
        self.gpu = "the host device" if dry else self.find_gpu()
        self.switched_off = {}  # what -> why: "CUTLASS", "recurrent persist_dynamic", "graphs of ResNet"
        self.before = []  # results of the call that is resumed
        self.results = []  # of this call
        self.end = float("inf")  # of the call, by the clock
        self.data = {}  # what a check has made for later checks
        self.cudnn = cudnn  # what check_libraries.py has chosen
        self.cudnn_version = ""  # that programs use, as the gate says
        self.reached = {}  # precision -> (FLOP/s, bytes per second) that PyTorch has reached in this call

    def find_gpu(self):
        code, text = self.processes.run(["nvidia-smi", "-L"], 20, dict(os.environ), ROOT)
        if code == 0 and text.startswith("GPU"):
            return text.splitlines()[0].strip()
        silent = {127: "there is no nvidia-smi", None: "nvidia-smi does not answer"}.get(code)
        return f"a GPU ({silent})" if silent and list(Path("/dev").glob("nvidia[0-9]*")) else ""

    def gpu_name(self):
        """"NVIDIA H200" of "GPU 0: NVIDIA H200 (UUID: GPU-...)"."""
        return re.sub(r"^GPU \d+: | \(UUID.*", "", self.gpu)

    def rates(self, precision):
        return bounds.rates_of(self.gpu_name(), precision, self.reached.get(precision))

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

    def need_kept_plans(self, precision):
        """A benchmark that builds its own plans runs out of time. When nobody knows the version of cuDNN, it tries."""
        if self.dry or not self.cudnn_version:
            return
        folder = self.plans / check_libraries.plan_folder(self.gpu_name(), self.cudnn_version)
        if not any(first_line(path).split()[1:2] == [precision] for path in folder.glob("*.plan")):
            others = ", ".join(sorted({path.parent.name for path in self.plans.glob("*/*.plan")})) or "nothing"
            raise NotRun(f"no plans of {precision} are kept for cuDNN {self.cudnn_version} and this GPU; kept are {others}")

    # ---- What is switched off ------------------------------------------------------------------------------------

    def switch(self, what, why):
        """Switches something off for all later checks, with a reason. With why = "", it is on again."""
        if why:
            self.switched_off[what] = why
        else:
            self.switched_off.pop(what, None)

    def off_variables(self):
        """The variables by which programs leave out what is switched off."""
        variables = {}
        if CUTLASS in self.switched_off:
            variables["RINGTRAIN_HOPPER_LIBRARY"] = "none"
        algorithms = [what.removeprefix(RECURRENT) for what in self.switched_off if what.startswith(RECURRENT)]
        if algorithms:
            variables["RINGTRAIN_WITHOUT_RNN"] = ",".join(algorithms)
        return variables

    def off_options(self, family=""):
        """The options of `ringtrain train` that leave out graphs. `family` is "ResNet" or "Lstm", or "" for any."""
        off = [what for what in self.switched_off if what.startswith(GRAPHS) and what.endswith(family)]
        return ["machine.graphs=false"] if off else []

    # ---- Commands ------------------------------------------------------------------------------------------------

    def call(self, command, seconds, plans=None, whole=False, **more):
        """Runs a command. Returns (exit code, or None when out of time; what it printed). `whole`: nothing is switched
        off."""
        variables = {**os.environ, "GTEST_COLOR": "no", "PYTHONUNBUFFERED": "1", "RINGTRAIN_GPU_OUT": str(self.tables),
                     "RINGTRAIN_PLAN_CACHE": str(plans or self.plans), "RINGTRAIN_PLAN_CANDIDATES": "1",
                     **({} if whole else self.off_variables()), **{k: str(v) for k, v in more.items()}}
        variables.setdefault("RINGTRAIN_EXECUTABLE", str(RINGTRAIN))  # the library for Hopper is in its folder
        if self.dry:
            variables["RINGTRAIN_TEST_DEVICE"] = "host"
        command = [str(part) for part in command]
        seconds = max(0.5, min(seconds, self.end - self.clock.now()))
        code, text = self.processes.run(command, seconds, variables, ROOT)
        shown = text if len(text) <= LOGGED_CHARACTERS else f"... the last {LOGGED_CHARACTERS} characters\n{text[-LOGGED_CHARACTERS:]}"
        self.log.write(f"\n$ {' '.join(command)}\n{shown}[{'out of time' if code is None else f'exit code {code}'}]\n")
        self.log.flush()
        return code, text

    def probe(self):
        """Returns why the device no longer answers, or "". A small process allocates, copies and runs a kernel. At the end of the
        call there is nothing to decide."""
        if self.end - self.clock.now() < PROBE_SECONDS:
            return ""
        code, text = self.call([GPU_TESTS, f"--gtest_filter={PROBE_TEST}"], PROBE_SECONDS, self.test_plans, whole=True)
        if code is None:
            return f"a small process was not ready within {PROBE_SECONDS} s"
        return "" if code == 0 else next((line for line in reversed(text.splitlines()) if line.strip()), f"exit code {code}")


def first_line(path):
    """The first line of a plan, "conv bf16 n256 ...": the operation's key and what follows it."""
    with open(path, "rb") as file:
        return file.readline(500).decode(errors="replace")


def outcome(code, text, **more):
    status = "out of time" if code is None else "passed" if code == 0 else "failed"
    return {"status": status, "said": text.splitlines()[-SAID_LINES:], **more}
