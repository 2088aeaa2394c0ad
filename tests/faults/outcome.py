"""Checks what must be true after a fault: of the job's end, of its files on disk, and of the resumed run."""
import json
import re

import h5py
import yaml

from draw import ENDS, GOES_ON, STOPS
from jobs import curve_of, digest_of, e2e, evaluations_of

CRASHES = r"terminate called|Segmentation fault|signal 11|signal 6\b|Aborted \(core|AddressSanitizer|double free|corrupted"
# The innermost frames of Open MPI's own report do not belong to the program.
LIBRARY_CRASHES = r"\[ 1\] .*/(libpmix|libmpi|libopen|libevent|libhwloc|libdnnl|openmpi/lib|libc\.so|libhdf5)"


def outcome_of(code):
    return GOES_ON if code == 0 else STOPS if code == 85 else ENDS


def of_the_end(fault, code, left, text, hit):
    """Lists in sentences what is wrong with the job's end. `hit` says what the fault has met, or is ""."""
    if code is None:
        return ["it did not end"]
    wrong = []
    outcome = outcome_of(code)
    if outcome not in fault.allowed:
        wrong.append(f"it {outcome} (exit code {code})")
    if outcome == ENDS and not re.search(fault.says, f"{text}\nexit code {code}"):
        wrong.append(f"exit code {code}, and no message says why")
    if outcome == GOES_ON and hit and not re.search(fault.warns, text):
        wrong.append("it goes on, and no warning says what could not be read")
    if outcome == STOPS and "checkpoint" not in text:
        wrong.append("no word about the checkpoint")
    in_libraries = fault.libraries_may_crash and re.search(LIBRARY_CRASHES, text)
    if re.search(CRASHES, text) and not in_libraries:
        wrong.append("it crashed: " + re.search(rf".*({CRASHES}).*", text)[0][:100])
    if left:
        wrong.append(f"processes are left behind: {left}")
    return wrong


def step_of(checkpoint):
    with h5py.File(checkpoint) as file:
        return int(file.attrs["step"])


def of_the_files(run, run_dir, undisturbed, harmed=None):
    """Every file with its final name must be whole and agree with the undisturbed run, except for the harmed file."""
    wrong = []
    digests = undisturbed.digests[run]
    for path in e2e.checkpoints(run_dir):
        if path == harmed:
            continue
        try:
            step = int(path.stem[5:])
            if digest_of(path, undisturbed.kind) != digests.get(step):
                wrong.append(f"{path.name} differs from the undisturbed run's")
        except (OSError, KeyError, ValueError) as error:
            wrong.append(f"{path.name} is not whole: {error}")
    best = run_dir / "checkpoints" / "best.h5"
    if best.exists():
        try:
            if digest_of(best, undisturbed.kind) not in digests.values():
                wrong.append("best.h5 is no checkpoint of the undisturbed run")
        except (OSError, KeyError, ValueError) as error:
            wrong.append(f"best.h5 is not whole: {error}")
    for name in ("run.json", "trial.json"):
        if (run_dir / name).exists():
            try:
                json.loads((run_dir / name).read_text())
            except ValueError as error:
                wrong.append(f"{name} is not whole: {error}")
    if (run_dir / "experiment.yaml").exists():
        try:
            yaml.safe_load((run_dir / "experiment.yaml").read_text())["model"]
        except (yaml.YAMLError, KeyError, TypeError) as error:
            wrong.append(f"experiment.yaml is not whole: {error}")
    return wrong + of_the_curve(run, run_dir, undisturbed)


def of_the_curve(run, run_dir, undisturbed):
    """The steps in the file must be consecutive and have the numbers of the undisturbed run."""
    try:
        steps = [record["step"] for record in e2e.steps(run_dir)]
        rows = curve_of(run_dir, undisturbed.kind)
        theirs = evaluations_of(run_dir, undisturbed.kind)
    except (ValueError, KeyError) as error:
        return [f"metrics.jsonl: {error}"]
    wrong = []
    if steps != list(range(1, len(steps) + 1)):
        wrong.append(f"metrics.jsonl has the steps {steps}")
    for row in rows.values():
        if row != undisturbed.curves[run].get(row[0]):
            wrong.append(f"step {row[0]} differs: {row} for {undisturbed.curves[run].get(row[0])}")
            break
    for step, values in theirs.items():
        if step in undisturbed.evaluations[run] and values != undisturbed.evaluations[run][step]:
            wrong.append(f"the evaluation of step {step} differs")
    return wrong


def of_the_whole(runs, undisturbed, harmed=None):
    """The run must have ended and must equal the undisturbed run."""
    wrong = []
    if set(runs) != set(undisturbed.curves):
        return [f"the runs are {sorted(runs)}"]
    for run, run_dir in runs.items():
        wrong += of_the_files(run, run_dir, undisturbed, harmed)
        last = undisturbed.last_step(run)
        if len(curve_of(run_dir, undisturbed.kind)) != last:
            wrong.append(f"it has {len(curve_of(run_dir, undisturbed.kind))} of {last} steps")
        missing = set(undisturbed.evaluations[run]) - set(evaluations_of(run_dir, undisturbed.kind))
        if missing:
            wrong.append(f"no evaluation of the steps {sorted(missing)}")
        names = [path.name for path in e2e.checkpoints(run_dir)]
        if not names or int(names[-1][5:-3]) != last:
            wrong.append(f"the last checkpoint is missing: {names}")
        best, bests = run_dir / "checkpoints" / "best.h5", [record["step"] for record in e2e.evaluations(run_dir) if record["best"]]
        if best.exists() and best != harmed and bests and step_of(best) != bests[-1]:
            wrong.append(f"best.h5 is of step {step_of(best)}, and the best evaluation of step {bests[-1]}")
        temporary = [str(path.relative_to(run_dir)) for path in sorted(run_dir.rglob("*"))
                     if ".tmp" in path.name or path.name == ".probe"]
        if temporary:
            wrong.append(f"temporary files are left: {temporary}")
        ended = json.loads((run_dir / "run.json").read_text()).get("outcome")
        if ended != "finished":
            wrong.append(f"run.json says '{ended}'")
    return wrong


def resumed_step(text):
    """The step after which --resume went on, or 0 if it began anew."""
    found = re.search(r"resuming after step (\d+)", text)
    return int(found[1]) if found else 0
