"""Runs a job of the campaign and strikes it at the drawn moments."""
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from draw import CATALOGUE
from jobs import LAUNCHER, PROGRAM, ROOT, START_TIMEOUT, STUDY, e2e, experiment_of, make_data

LIMIT = 75  # seconds within which a job has to end in any case
GONE_WITHIN = 15  # seconds after that within which all of its processes have to be gone

# Slurm's commands for the batch script's job.
STUBS = {
    "srun": 'while [ $# -gt 0 ]; do case $1 in -*) shift ;; *) break ;; esac; done\nexec "$@"\n',
    "scontrol": 'case "$1" in\n  requeue) touch "$FAULTS_FOLDER/requeued"; kill -KILL $PPID ;;\n'
                '  show) echo "JobId=7 JobState=RUNNING Reason=None Restarts=${SLURM_RESTART_COUNT:-0} Requeue=1" ;;\nesac\n',
    "squeue": "exit 0\n",
    "scancel": "exit 0\n",
}


def build_preload(place):
    """Compiles the preloaded library with the headers of the program's MPI, whose functions it finds at run time."""
    library, config = place / "faulty.so", ROOT / "build" / "config.mk"
    found = re.search(r"^MPI_CFLAGS := (.*)$", config.read_text() if config.exists() else "", re.MULTILINE)
    compiler = [os.environ.get("CC", "cc"), *found[1].split()] if found else [os.environ.get("MPICC", "mpicc")]
    subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-w", ROOT / "tests/faults/faulty.c", "-o", library, "-ldl"], check=True)
    return library


class Place:
    """The campaign's folder: data, preloaded library, undisturbed runs, and a folder for each fault."""

    def __init__(self, folder):
        self.folder, self.data, self.preload = folder, folder / "data", build_preload(folder)
        (folder / "undisturbed").mkdir(exist_ok=True)
        if not self.data.exists():
            make_data(self.data)

    def start(self, kind, folder, changes, rules="", more=None, resume=False, data=None, restart=0, env=None, enter=None):
        """Starts a job. `changes` has dotted keys. The ranks run the shell's line `enter` first. Rules are written as faulty.c reads them."""
        number = len(list(folder.glob("output-*")))
        experiment, run_dir = folder / "experiment.yaml", folder / "run"
        experiment.write_text(experiment_of(kind, data or self.data, run_dir, changes))
        env = {"OMPI_MCA_btl_vader_backing_directory": str(folder), "RINGTRAIN_START_SECONDS": str(START_TIMEOUT),
               "FAULTS_FOLDER": str(folder), **(env or {}), **(more or {})}
        if rules or more:
            env.update({"LD_PRELOAD": str(self.preload), "RINGTRAIN_FAULTS": rules, "RINGTRAIN_FAULTS_HITS": str(folder / "hits")})
        words = ["--resume"] if resume else []
        output = folder / f"output-{number}"
        if kind.command == "batch":
            return Batch(self, kind, folder, env, words, output, restart)
        if kind.command == "study":
            (folder / "small.yaml").write_text(STUDY)
            return e2e.Job([PROGRAM, "study", "small.yaml", "--ranks", kind.ranks, *words], output, env, folder)
        shell = ["bash", "-c", f'{enter}\nexec "$0" "$@"'] if enter else []
        return e2e.Job([LAUNCHER, kind.ranks, *shell, PROGRAM, "train", experiment, *words], output, env)


class Batch(e2e.Job):
    """The batch script in a session of its own. The session ends with the script, as a job's processes do under
    Slurm."""

    def __init__(self, place, kind, folder, env, words, output, restart):
        stubs = folder / "stubs"
        stubs.mkdir(exist_ok=True)
        for name, text in STUBS.items():
            (stubs / name).write_text("#!/bin/bash\n" + text)
            (stubs / name).chmod(0o755)
        site = folder / "site.env"
        site.write_text('. "$root/slurm/site.env"\nLAUNCHER=mpirun\n'
                        "MPIRUN_OPTIONS=(--allow-run-as-root --oversubscribe --bind-to none)\n")
        env = {**env, "SLURM_JOB_ID": "7", "SLURM_NTASKS": str(kind.ranks), "SLURM_JOB_NUM_NODES": "1",
               "SLURM_JOB_NODELIST": "localhost", "SLURM_RESTART_COUNT": str(restart), "RINGTRAIN_SITE": str(site),
               "RINGTRAIN_ROOT": str(ROOT), "PATH": f"{stubs}:{os.environ['PATH']}", "OMPI_MCA_mpi_yield_when_idle": "1",
               # Otherwise Open MPI would start its daemons in Slurm's own way.
               "OMPI_MCA_plm": "isolated", "OMPI_MCA_ras": "^slurm"}
        super().__init__(["setsid", ROOT / "slurm" / "train.sbatch", folder / "experiment.yaml", f"run.dir={folder / 'run'}",
                          *words], output, env, folder)


def rule_text(rule, kind, calls):
    """Writes a rule as faulty.c reads it. The share becomes the number of a call."""
    rank = f",rank={rule.rank}" if rule.rank >= 0 else ""
    if rule.call.startswith("#"):
        return f"{rule.call[1:]}{rank},do={rule.does}"
    counted = [number for (name, of_rank), number in calls.items() if name == rule.call and rule.rank in (-1, int(of_rank))]
    first = 1 + int(rule.share * max(counted, default=0) * 0.9999)
    return f"{CATALOGUE[rule.call]}{rank},from={first},count={rule.count},do={rule.does}"


def processes_in(folder):
    """The processes whose environment names this fault's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if str(folder).encode() + b"\0" in (entry / "environ").read_bytes() and e2e.is_alive(int(entry.name)):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def observe(run_dir):
    """Returns the phase of the run, as its files show it."""
    if not (run_dir / "metrics.jsonl").exists():
        return "start-up"
    phase = f"after step {e2e.last_step(run_dir)}" if e2e.last_step(run_dir) else "before step 1"
    if list((run_dir / "checkpoints").glob("step-*.h5.tmp")):
        phase += ", in a checkpoint"
    return phase


class Strikes:
    """The blows (events from outside) of a fault that are still to come."""

    def __init__(self, place, fault, kind, folder, job, data, total):
        self.place, self.fault, self.kind, self.folder, self.job, self.data, self.total = place, fault, kind, folder, job, data, total
        self.run_dir = folder / "run"
        self.waiting = [[blow, None] for blow in fault.blows]
        self.notes, self.helpers = [], []

    def has_come(self, moment):
        if moment == "launch":
            return True
        if moment == "metrics":
            return (self.run_dir / "metrics.jsonl").exists()
        if moment == "checkpoint":
            return bool(list((self.run_dir / "checkpoints").glob("step-*.h5.tmp")))
        if moment == "last step":
            return e2e.last_step(self.run_dir) >= self.total
        # "hit" means that a blow came before this one, or that a rule of the library has struck (not only slowed a
        # phase down).
        strikes = any(not rule.does.startswith("sleep") for rule in self.fault.rules)
        return bool(self.notes) or strikes and (self.folder / "hits").exists()

    def look(self):
        now = time.monotonic()
        for entry in list(self.waiting):
            blow, due = entry
            if due is None and self.has_come(blow.moment):
                due = entry[1] = now + blow.delay
            if due is not None and now >= due and self.strike(blow):
                self.waiting.remove(entry)

    def strike(self, blow):
        """Strikes. Returns False if its target does not exist yet."""
        phase = observe(self.run_dir)
        if blow.target in ("launcher", "mpirun", "script") or blow.target.startswith("rank"):
            pid = self.process(blow.target)
            if pid is None:
                return False
            try:
                os.kill(pid, getattr(signal, "SIG" + blow.does))
            except ProcessLookupError:
                return True
            if blow.target == "script" and blow.does == "KILL":  # Slurm ends the processes that its script has started
                for other in processes_in(self.folder):
                    os.kill(other, signal.SIGKILL)
        elif not self.harm(blow):
            return False
        self.notes.append(f"{blow.does} {phase}")
        return True

    def process(self, target):
        if target in ("launcher", "script"):
            return self.job.process.pid
        if target.startswith("rank"):
            return self.job.ranks().get(int(target.split()[1]))
        for pid in processes_in(self.folder):
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() in ("mpirun", "orterun", "prterun", "mpiexec"):
                    return pid
            except OSError:
                pass
        return None

    def harm(self, blow):
        if blow.does == "remove the lock":
            (self.run_dir / ".lock").unlink(missing_ok=True)
            return True
        if blow.does == "a second job":
            if not (self.run_dir / ".lock").exists():
                return False
            second = self.place.start(self.kind, self.second_folder(), {"run.dir": str(self.run_dir)}, resume=True)
            self.helpers.append(second)
            return True
        shards = sorted(self.data.glob(f"{self.kind.data}-*.h5"))
        path = shards[int(blow.pick * len(shards)) % len(shards)]
        harm_file(path, blow.does, blow.pick * len(shards) % 1)
        return True

    def second_folder(self):
        folder = self.folder.parent / (self.folder.name + "-second")
        folder.mkdir(exist_ok=True)
        return folder


def harm_file(path, does, pick):
    size = path.stat().st_size
    if does == "removed":
        path.unlink()
    elif does == "cut off":
        os.truncate(path, int(size * pick))
    elif does == "empty":
        os.truncate(path, 0)
    elif does == "a bit flipped":
        with open(path, "r+b") as file:
            file.seek(int(size * pick))
            byte = file.read(1)[0]
            file.seek(int(size * pick))
            file.write(bytes([byte ^ 1 << int(pick * 8e6) % 8]))
    elif does == "replaced":  # by another shard of the same folder, as by a new conversion
        others = sorted(p for p in path.parent.glob("*.h5") if p.name.split("-")[0] == path.name.split("-")[0] and p != path)
        new = path.with_suffix(".new")
        new.write_bytes(others[int(pick * len(others)) % len(others)].read_bytes())
        new.rename(path)


def follow(job, strikes=None, limit=LIMIT):
    """Waits for the end of the job. Returns (exit code, or None if it did not end within the limit; its processes that
    are still there)."""
    deadline = time.monotonic() + limit
    while job.process.poll() is None and time.monotonic() < deadline:
        if strikes is not None:
            strikes.look()
        time.sleep(0.01)
    code = job.process.poll()
    folder = job.out_path.parents[1]
    end = time.monotonic() + (GONE_WITHIN if code is not None else 0)
    left = processes_in(folder)
    while left and time.monotonic() < end:
        time.sleep(0.2)
        left = processes_in(folder)
    told = [f"{pid} {command_of(pid)}" for pid in left]
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if code is None:
        job.process.kill()
        job.process.wait()
    return code, told


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:60]
    except OSError:
        return "?"
