"""The local cluster and its jobs as a user sees them: sbatch, scancel, scontrol, squeue."""
import importlib.util
import os
import re
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCAL_SLURM = ROOT / "tests" / "slurm" / "local_slurm.sh"
SCRIPTS = ROOT / "slurm"
STEPS = 160  # some seconds, so that a test can act on a job before its end
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "DEADLINE"}


def load_e2e_tools():
    """Loads the end-to-end tests' helpers for runs. Their file is called conftest.py, as the file of these tests is, so
    a plain import could find the wrong one."""
    spec = importlib.util.spec_from_file_location("e2e_tools", ROOT / "tests" / "e2e" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


e2e = load_e2e_tools()


class CannotRunHere(Exception):
    pass


def until(condition, what, timeout=120):
    """Waits for the condition and returns its first true value."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.03)
    raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")


class Cluster:
    def __init__(self):
        started = subprocess.run([LOCAL_SLURM, "start", "--install"], capture_output=True, text=True, timeout=600,
                                 env={**os.environ, "OWNER": str(os.getpid()), "CPUS": "16", "KILL_WAIT": "20"})
        if started.returncode == 77:
            raise CannotRunHere(started.stderr.strip().splitlines()[-1])
        assert started.returncode == 0, started.stdout + started.stderr
        self.has_namespaces = "each with its own" in started.stdout
        text = subprocess.run([LOCAL_SLURM, "env"], capture_output=True, text=True, check=True).stdout
        variables = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
        outer = ("SLURM_", "SBATCH_", "SRUN_", "OMPI_COMM_", "PMI_", "PMIX_", "OMP_", "RINGTRAIN_")
        self.environment = {**{k: v for k, v in os.environ.items() if not k.startswith(outer)}, **variables}
        self.folder = Path(variables["SLURM_CONF"]).parent
        self.has_gpus = (self.folder / "gres.conf").exists()

    def stop(self):
        subprocess.run([LOCAL_SLURM, "stop"], check=True, timeout=120, capture_output=True)

    def daemon(self, node):
        """The process id of the node's slurmd."""
        for entry in Path("/proc").iterdir():
            try:
                if (entry / "cmdline").read_bytes() == f"slurmd\0-N\0{node}\0".encode() and \
                        f"SLURM_CONF={self.environment['SLURM_CONF']}".encode() in (entry / "environ").read_bytes():
                    return int(entry.name)
            except OSError:
                continue  # no process, or one that has ended meanwhile
        raise AssertionError(f"no slurmd of {node}")

    def rank(self, node):
        """The process id of a rank on this node. It needs namespaces."""
        there = os.readlink(f"/proc/{self.daemon(node)}/ns/uts")
        for entry in Path("/proc").iterdir():
            try:
                if (entry / "comm").read_text() == "ringtrain\n" and os.readlink(entry / "ns" / "uts") == there:
                    return int(entry.name)
            except OSError:
                continue
        raise AssertionError(f"no rank on {node}")

    def run(self, *command, cwd=None, env=None, timeout=120):
        return subprocess.run([str(word) for word in command], cwd=cwd, env={**self.environment, **(env or {})},
                              capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


class Job:
    def __init__(self, cluster, number, folder):
        self.cluster, self.id, self.folder = cluster, number, folder

    def fields(self):
        """The fields of `scontrol show job`. The last task of an array to start has the array's id."""
        shown = self.cluster.run("scontrol", "show", "job", "-o", self.id).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", shown))

    def state(self):
        return self.fields().get("JobState", "")

    def restarts(self):
        return int(self.fields()["Restarts"])

    def output(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"*-{self.number()}.out")))

    def number(self):
        return self.fields()["JobId"]

    def log(self, restart=0):
        """The training log after this number of restarts."""
        paths = list((self.folder / "logs").glob(f"*-{self.id}-r{restart}.log"))
        return paths[0].read_text(errors="replace") if paths else ""

    def told(self):
        logs = "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in
                       sorted((self.folder / "logs").glob(f"*-{self.id}-r*.log")))
        return f"job {self.id}: {self.fields().get('JobState')}\n{self.output()}\n{logs}"

    def wait(self, state="COMPLETED", timeout=150):
        until(lambda: self.state() in ENDED, lambda: f"the end of {self.told()}", timeout)
        assert self.state() == state, self.told()
        return self

    def wait_for_step(self, run_dir, step, timeout=90):
        def there():
            assert self.state() not in ENDED, f"it ended before step {step}: {self.told()}"
            return e2e.last_step(run_dir) >= step
        until(there, lambda: f"step {step} of {self.told()}", timeout)

    def wait_for_restart(self, timeout=150):
        def again():
            fields = self.fields()
            assert fields["JobState"] not in ENDED or fields["Restarts"] != "0", f"not queued again: {self.told()}"
            return fields["Restarts"] == "1"
        until(again, lambda: f"the restart of {self.told()}", timeout)

    def signal(self, name, *options):
        done = self.cluster.run("scancel", *options, "-s", name, self.id)
        assert done.returncode == 0, done.stderr

    def ask_for_checkpoint(self):
        """Sends the signal that --signal=B:USR1@... sends before the time limit."""
        self.signal("USR1", "-b")


class Shop:
    """A test's own folder, and the commands that run in it."""

    def __init__(self, cluster, folder, data):
        folder.mkdir(parents=True)
        self.cluster, self.folder, self.data = cluster, folder, data
        self.slow_sync = None

    def site(self, text):
        """Makes a site.env that differs from the project's in these lines."""
        path = self.folder / "site.env"
        path.write_text(f'. "$root/slurm/site.env"\n{text}\n')
        return {"RINGTRAIN_SITE": str(path)}

    def slow_checkpoints(self, prefix=""):
        library = self.folder / "slow_sync.so"
        done = self.cluster.run("cc", "-shared", "-fPIC", "-o", library, ROOT / "tests" / "slurm" / "slow_sync.c", "-ldl")
        assert done.returncode == 0, done.stderr
        return self.site(f'RINGTRAIN=({prefix} env LD_PRELOAD={library} "$root/bin/ringtrain")')

    def keys(self, name=None, **changes):
        """The keys of the names experiment with STEPS steps, as key__path=value."""
        keys = {"data__train": f"{self.data}-train", "data__validation": f"{self.data}-validation", "run__threads": 1,
                "evaluate__every_epochs": 0, "checkpoint__every_epochs": 0, "stop__epochs": 0, "stop__steps": STEPS}
        if name:
            keys["run__dir"] = self.folder / name
        return [f"{key.replace('__', '.')}={value}" for key, value in {**keys, **changes}.items()]

    def submit(self, script, *words, options=(), env=None):
        done = self.cluster.run("sbatch", "--parsable", *options, script, *words, cwd=self.folder, env=env)
        assert done.returncode == 0, done.stderr
        return Job(self.cluster, done.stdout.strip(), self.folder)

    def train(self, name=None, *words, options=("--nodes=2",), env=None, **changes):
        return self.submit(SCRIPTS / "train.sbatch", *words, ROOT / "configs" / "names.yaml", *self.keys(name, **changes),
                           options=options, env=env)
