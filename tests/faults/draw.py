"""draw(seed, number) gives the fault with this number. It is a pure function, so that any fault can be repeated
alone."""
import random
import signal
from dataclasses import dataclass, field

from jobs import KINDS

# The kinds of calls that are counted in the undisturbed job. A fault meets the n-th call of a kind, with n drawn from
# all of them.
CATALOGUE = {
    "open": "call=open",
    "open data": "call=open,path=*/data/*.h5",
    "read data": "call=read,path=*/data/*.h5",
    "read validation": "call=read,path=*/data/*-validation-*.h5",
    "stat data": "call=fstat,path=*/data/*.h5",
    "write checkpoint": "call=write,path=*/checkpoints/*",
    "read checkpoint": "call=read,path=*/checkpoints/*",
    "sync checkpoint": "call=fsync,path=*/checkpoints*",
    "rename checkpoint": "call=rename,path=*/checkpoints/*",
    "link checkpoint": "call=link,path=*/checkpoints/*",
    "remove checkpoint": "call=unlink,path=*/checkpoints/*",
    "write metrics": "call=write,path=*/metrics.jsonl*",
    "sync metrics": "call=fsync,path=*/metrics.jsonl*",
    "write record": "call=write,path=*/run.json*",
    "sync record": "call=fsync,path=*/run.json*",
    "rename record": "call=rename,path=*/run.json*",
    "write any": "call=write,path=*/run/*",
    "change any": "call=write|rename|link|unlink|mkdir|ftruncate,path=*/run*",
    "lock": "call=flock",
    "lock data": "call=flock,path=*/data/*.h5",
    "memory": "call=malloc,size=1000",
    "large memory": "call=malloc,size=50000",
    "send": "call=send",
    "finalize": "call=finalize",
}

GOES_ON, STOPS, ENDS = "goes on", "stops with a checkpoint", "ends with an error"


@dataclass
class Rule:
    """An error, a delay or a signal at a call (`does` is the `do` of faulty.c). `share` is the call's place among the
    undisturbed job's calls of this name, from 0 to 1."""
    call: str
    share: float
    does: str
    count: int = 1  # 0: all from there on
    rank: int = -1


@dataclass
class Blow:
    """An event from outside, `delay` seconds after `moment` has been seen: a signal, or harm to files."""
    moment: str
    delay: float
    target: str  # rank N, mpirun, launcher or script, or the harmed files
    does: str
    pick: float = 0  # chooses the file and the byte


@dataclass
class Fault:
    seed: int
    number: int
    family: str
    job: str
    what: str
    moment: str
    target: str
    rules: list = field(default_factory=list)
    blows: list = field(default_factory=list)
    harm: tuple = ()  # (kind, pick), done to the run's checkpoints before it is resumed
    keys: dict = field(default_factory=dict)
    allowed: tuple = (GOES_ON,)
    # Pattern of the message if the job ends with an error. "exit code -9" can be matched as well: a launcher or script
    # that was killed says nothing, and whoever started it sees the signal.
    says: str = r"ringtrain: error"
    warns: str = ""  # pattern of the warning if the job goes on although the fault has met it
    on_resume: list = field(default_factory=list)  # rules for the first --resume
    env: dict = field(default_factory=dict)  # variables of the job
    limits: dict = field(default_factory=dict)  # threads or cpus of each rank's control group
    libraries_may_crash: bool = False  # MPI does not check every result of malloc


SMALL = ["names-2", "names-3", "names-4", "text-2", "server-2", "pipeline-2"]
PICTURES = ["cnn-2", "cnn-4", "resnet-2"]
TRAINED = SMALL + PICTURES
WORDS = {signal.SIGKILL: "KILL", signal.SIGSTOP: "STOP", signal.SIGTERM: "TERM", signal.SIGUSR1: "USR1"}

# The seeds 1 to 5 were recorded first, and their faults stay as they are. Newer kinds of faults are drawn for greater seeds
# only: the jobs below, SIGSTOP with SIGCONT of mpirun, launcher and batch script, signals to mpirun under the batch
# script, and the family `in a sum`. A future kind of fault must not change the faults of any recorded seed: a test
# draws every fault of the record again.
FIRST_SEEDS = 5
LATER_JOBS = {"names-2": ["fixed-2"], "names-4": ["fixed-4"], "server-2": ["async-3"], "resnet-2": ["shares-2"]}


def _job(g, fault, names):
    if fault.seed > FIRST_SEEDS:
        names = names + [later for name in names for later in LATER_JOBS.get(name, [])]
    name = g.choice(names)
    return name, KINDS[name].ranks


# ---- Signals -------------------------------------------------------------------------------------------------------

# Moments at which a call is made: the name of the phase, the call, and the range of its place among all such calls.
PHASES = [("start-up", "open", 0.0, 1.0), ("start-up", "open data", 0.0, 1.0), ("first step", "send", 0.0, 0.3),
          ("any step", "send", 0.0, 1.0), ("evaluation", "read validation", 0.1, 1.0), ("checkpoint", "write checkpoint", 0.15, 1.0),
          ("checkpoint", "sync checkpoint", 0.1, 1.0), ("checkpoint", "rename checkpoint", 0.1, 1.0),
          ("checkpoint", "remove checkpoint", 0.1, 1.0), ("end", "rename record", 0.6, 1.0), ("end", "finalize", 0.0, 1.0),
          ("record", "write metrics", 0.0, 1.0)]


def signal_in_a_call(g, fault):
    phase, call, low, high = g.choice(PHASES)
    names = [n for n in TRAINED if call != "read validation" or n in PICTURES]
    fault.job, ranks = _job(g, fault, names)
    number = g.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1])
    rank = 0 if phase in ("checkpoint", "record") or call == "rename record" else g.randrange(ranks)
    of_mpirun = (number != signal.SIGSTOP or fault.seed > FIRST_SEEDS) and g.random() < 0.15
    share = g.uniform(low, high)
    fault.what, fault.moment = f"SIG{WORDS[number]}", f"{phase}: {call} {share:.3f}"
    fault.target = "mpirun" if of_mpirun else f"rank {rank}"
    fault.rules = [Rule(call, share, f"{'parent' if of_mpirun else 'signal'}:{int(number)}", rank=rank)]
    _after_signal(g, fault, number, rank)


# What the operating system, mpirun or the program prints about a rank that a signal has ended.
ENDED_BY = r"exited on signal {0} |ended by signal {0} |exit code (-{0}|{1})\b"


def has_died(rank):
    """What mpirun or the other ranks print about a killed rank. `rank` is a number, or a pattern."""
    return rf"process rank {rank} with PID \d+ .*exited on signal 9|rank {rank} \(pid \d+\) has died|rank {rank} has died"


def _after_signal(g, fault, number, rank):
    of_rank = fault.target.startswith("rank")
    if number == signal.SIGSTOP:
        # A job whose mpirun or script is stopped would never end, so SIGCONT always follows there. For a rank, it follows
        # in 60 % of the draws.
        if not of_rank or g.random() < 0.6:
            fault.what += " and CONT"
            fault.blows = [Blow("hit", g.uniform(0.05, 2), fault.target, "CONT")]
            fault.allowed = (GOES_ON,)
        else:  # for ever, as a hung rank
            fault.allowed = (ENDS, GOES_ON)  # GOES_ON if it was after the last step
            fault.says = r"no step was finished for|could not start within|did not return|has died"
    elif number == signal.SIGKILL:
        fault.allowed = (ENDS, GOES_ON)
        fault.says = has_died(rank) if of_rank else ENDED_BY.format(9, 137)
    else:
        fault.allowed = (STOPS, GOES_ON, ENDS)
        # An mpirun that was told to end returns 1, even if its ranks have finished or stopped with a checkpoint. A
        # signal that comes before the program listens ends its rank.
        fault.says = ENDED_BY.format(int(number), 128 + number) + (
            r"|Terminated|ringtrain: error|stopped on request, with a checkpoint|finished after step")


def signal_from_outside(g, fault):
    """Sends a signal at a moment of the clock to any process of the job, including its launcher."""
    fault.job, ranks = _job(g, fault, TRAINED)
    number = g.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1])
    target = g.choice([f"rank {g.randrange(ranks)}"] * 3 + ["mpirun", "launcher"])
    moment, delay = g.choice([("launch", g.uniform(0, 1.2)), ("metrics", g.uniform(0, 0.6)), ("checkpoint", g.uniform(0, 0.15)),
                              ("last step", g.uniform(0, 0.1))])
    if target in ("mpirun", "launcher") and number == signal.SIGSTOP and fault.seed <= FIRST_SEEDS:
        target = f"rank {g.randrange(ranks)}"
    fault.what, fault.moment, fault.target = f"SIG{WORDS[number]}", f"{delay:.2f} s after {moment}", target
    fault.blows = [Blow(moment, delay, target, WORDS[number])]
    fault.keys = {"test.slow_rank": 0, "test.slow_seconds": 0.03}
    # Makes checkpoints slow enough to be hit.
    fault.rules = [Rule("sync checkpoint", 0, "sleep:60", count=0)]
    rank = int(target.split()[1]) if target.startswith("rank") else 0
    kept = fault.blows
    _after_signal(g, fault, number, rank)
    if number == signal.SIGSTOP and "CONT" in fault.what:
        kept = kept + [Blow("hit", fault.blows[0].delay, target, "CONT")]
    fault.blows = kept
    if target == "launcher" and number != signal.SIGSTOP:
        fault.allowed = (ENDS, STOPS, GOES_ON)


# ---- Disks ---------------------------------------------------------------------------------------------------------

WRITES = ["write checkpoint", "write metrics", "write record", "write any", "sync checkpoint", "sync metrics", "sync record",
          "rename checkpoint", "rename record", "change any"]
ERRNO = {"ENOSPC": "No space left", "EDQUOT": "quota", "EIO": "Input/output", "ESTALE": "[Ss]tale", "EROFS": "Read-only"}


def disk(g, fault):
    """The disk is full or broken, or its server has forgotten the file."""
    fault.job, _ = _job(g, fault, TRAINED)
    call, error = g.choice(WRITES), g.choice(["ENOSPC", "ENOSPC", "EIO", "ESTALE", "EDQUOT"])
    share, count = g.random(), g.choice([1, 0])
    fault.what, fault.target = f"{error} {'once' if count else 'from then on'}", call
    fault.moment = f"{share:.3f}"
    fault.rules = [Rule(call, share, error, count=count, rank=0)]
    fault.allowed, fault.says = (ENDS, GOES_ON), rf"ringtrain: error.*{ERRNO[error]}"


def read_only(g, fault):
    fault.job, _ = _job(g, fault, TRAINED)
    share = g.random()
    fault.what, fault.target, fault.moment = "EROFS from then on", "run folder", f"change any {share:.3f}"
    fault.rules = [Rule("change any", share, "EROFS", count=0, rank=0)]
    fault.allowed, fault.says = (ENDS, GOES_ON), r"ringtrain: error.*Read-only"


# A batch that is read ahead after the last one must not end a complete job. A shard that can no longer be read must be
# reported.
READ_IN_VAIN = r"warning.*\.h5: .*read ahead, and is thrown away unused"


def reads(g, fault):
    fault.job, ranks = _job(g, fault, TRAINED)
    does = g.choice(["EIO", "ESTALE", "short", "short", "EINTR", "sleep:100"])
    call = g.choice(["read data", "open data", "stat data", "read checkpoint"] if does != "short" else ["read data", "read checkpoint"])
    if does == "EINTR":
        call = "read data"
    rank, share = (0 if call == "read checkpoint" else g.randrange(ranks)), g.random()
    count = g.choice([1, 1, 0])
    if does == "EINTR":  # not for ever, because an interrupted call is repeated
        count = 3
    if does == "sleep:100":
        count = 10
    fault.what, fault.target, fault.moment = f"{does} in {call}", f"rank {rank}", f"{share:.3f}"
    fault.rules = [Rule(call, share, does, count=count, rank=rank)]
    harmless = does.startswith(("short", "sleep", "EINTR"))
    # After a short read, HDF5 asks for the rest, until it has everything. A read of one byte is never short.
    fault.allowed = (GOES_ON,) if harmless else (ENDS, GOES_ON)
    fault.says = r"ringtrain: error.*\.h5"
    if call == "read data" and not harmless and count == 0:
        fault.warns = READ_IN_VAIN


def slow_files(g, fault):
    fault.job, _ = _job(g, fault, TRAINED)
    call = g.choice(["sync checkpoint", "rename checkpoint", "sync metrics", "rename record", "write checkpoint"])
    ms = g.choice([20, 100, 300])
    fault.what, fault.target, fault.moment = f"{ms} ms slower", call, "all the time"
    fault.rules = [Rule(call, 0, f"sleep:{ms}", count=0 if call != "write checkpoint" else 20, rank=0)]


def nfs(g, fault):
    """Network file systems may refuse locks, links and the sync of folders, and may report files as busy."""
    fault.job, ranks = _job(g, fault, TRAINED)
    call, does = g.choice([("lock", "ENOLCK"), ("lock", "ENOSYS"), ("lock", "EOPNOTSUPP"), ("lock data", "ENOLCK"),
                           ("link checkpoint", "EOPNOTSUPP"), ("link checkpoint", "EPERM"), ("link checkpoint", "EMLINK"),
                           ("remove checkpoint", "ESTALE"), ("remove checkpoint", "ENOENT"), ("stat data", "ESTALE")])
    fault.what, fault.target, fault.moment = does, call, "all the time"
    fault.rules = [Rule(call, 0, does, count=0)]
    fault.allowed = (GOES_ON,) if not call.startswith(("stat", "lock data")) else (GOES_ON, ENDS)
    fault.says = r"ringtrain: error.*\.h5"


def lost_lock(g, fault):
    fault.job, _ = _job(g, fault, TRAINED)
    does = g.choice(["remove the lock", "a second job"])
    fault.what, fault.target = does, ".lock"
    delay = g.uniform(0, 0.4)
    fault.moment = f"{delay:.2f} s after metrics"
    fault.blows = [Blow("metrics", delay, ".lock", does)]
    fault.keys = {"test.slow_rank": 0, "test.slow_seconds": 0.05}


# ---- Data and checkpoints ------------------------------------------------------------------------------------------

def shard(g, fault):
    fault.job, _ = _job(g, fault, PICTURES + PICTURES + ["names-2", "names-4", "text-2"])
    does = g.choice(["cut off", "replaced", "a bit flipped", "removed"])
    moment, delay = g.choice([("launch", g.uniform(0, 0.6)), ("metrics", g.uniform(0, 0.4))])
    fault.what, fault.target, fault.moment = does, "a shard", f"{delay:.2f} s after {moment}"
    fault.blows = [Blow(moment, delay, "shard", does, g.random())]
    fault.keys = {"test.slow_rank": 1, "test.slow_seconds": 0.03}
    fault.allowed, fault.says = (ENDS, GOES_ON), r"ringtrain: error.*(\.h5|shard|data set)"


def one_bad_shard(g, fault):
    """One rank meets an error while the others wait for it."""
    fault.job, ranks = _job(g, fault, TRAINED)
    rank, share = g.randrange(ranks), g.random()
    fault.what, fault.target, fault.moment = "EIO from then on", f"rank {rank}", f"read data {share:.3f}"
    fault.rules = [Rule("read data", share, "EIO", count=0, rank=rank)]
    fault.allowed, fault.says, fault.warns = (ENDS, GOES_ON), r"ringtrain: error.*\.h5", READ_IN_VAIN


def checkpoint(g, fault):
    fault.job, ranks = _job(g, fault, TRAINED)
    does = g.choice(["cut off", "a bit flipped", "removed", "all removed", "of another model", "empty"])
    share = g.uniform(0.45, 1)
    rank = g.randrange(ranks)
    fault.what, fault.target, fault.moment = f"newest checkpoint {does}", "checkpoints", f"after SIGTERM at send {share:.3f}"
    fault.rules = [Rule("send", share, f"signal:{int(signal.SIGTERM)}", rank=rank)]
    fault.harm = (does, g.random())
    fault.allowed = (STOPS, GOES_ON)


def unreadable_resume(g, fault):
    """The first --resume meets a broken disk, and the second does not."""
    fault.job, ranks = _job(g, fault, TRAINED)
    share = g.uniform(0.45, 0.95)
    call = g.choice(["read checkpoint", "write checkpoint", "write record", "rename record", "write metrics", "change any"])
    does = g.choice(["EIO", "ENOSPC", "ESTALE"]) if call != "read checkpoint" else g.choice(["EIO", "ESTALE"])
    again = g.random() ** 2
    fault.what, fault.target, fault.moment = f"{does} in --resume", call, f"{again:.3f}"
    fault.rules = [Rule("send", share, f"signal:{int(signal.SIGKILL)}", rank=g.randrange(ranks))]
    fault.on_resume = [Rule(call, again, does, count=g.choice([1, 0]), rank=0)]
    fault.allowed = (ENDS, GOES_ON)
    fault.says = has_died(fault.rules[0].rank)


# ---- Memory, time, transport ---------------------------------------------------------------------------------------

# What is printed when memory runs out: the program's own message, a message of a library, or a crash in a library or in
# MPI's start.
NO_MEMORY = r"ringtrain: error.*([Mm]emory|alloc)|libgomp: Out of memory|out of dynamic memory in \w*yy|exited on signal|ended by signal|An error occurred in MPI_Init_thread"


def memory(g, fault):
    fault.job, ranks = _job(g, fault, TRAINED)
    call, share, count = g.choice(["memory", "large memory", "large memory"]), g.random(), g.choice([1, 0])
    rank = g.randrange(ranks)
    fault.what, fault.target, fault.moment = f"no memory {'once' if count else 'from then on'}", f"rank {rank}", f"{call} {share:.3f}"
    fault.rules = [Rule(call, share, "ENOMEM", count=count, rank=rank)]
    fault.allowed = (ENDS, GOES_ON)
    fault.says = NO_MEMORY
    fault.libraries_may_crash = True


def slow_rank(g, fault):
    fault.job, ranks = _job(g, fault, SMALL)
    rank = g.randrange(ranks)
    fault.what, fault.target, fault.moment = "100 x slower", f"rank {rank}", "all the time"
    fault.keys = {"test.slow_rank": rank, "test.slow_seconds": 0.1}


def transport(g, fault):
    fault.job, ranks = _job(g, fault, TRAINED)
    ms, share = g.choice([1, 5, 500, 3000]), g.random()
    count = {1: 0, 5: 200, 500: 4, 3000: 1}[ms]
    rank = g.choice([-1] + list(range(ranks)))
    fault.what, fault.target = f"{ms} ms later, {count or 'all'} messages", f"rank {rank}" if rank >= 0 else "all ranks"
    fault.moment = f"send {share:.3f}"
    fault.rules = [Rule("send", share if count else 0, f"sleep:{ms}", count=count, rank=rank)]


def clock(g, fault):
    fault.job, ranks = _job(g, fault, TRAINED)
    seconds, first, length = g.choice([-86400 * 400, -3600, -30, 30, 3600, 86400 * 400]), g.randrange(1, 200), g.choice([0, 1, 20])
    rank = g.choice([-1, 0, ranks - 1])
    fault.what, fault.target = f"wall clock {seconds:+d} s{' and back' if length else ''}", f"rank {rank}" if rank >= 0 else "all ranks"
    fault.moment = f"from look {first}"
    fault.rules = [Rule(f"#call=clock,from={first},count={length}", 0, f"shift:{seconds}", rank=rank)]


# ---- Studies and batch scripts -------------------------------------------------------------------------------------

def study(g, fault):
    fault.job = "study-2"
    number = g.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, 0, 0])
    rank, share = g.randrange(2), g.random()
    if number:
        call = g.choice(["open", "send", "memory"])
        fault.what, fault.moment = f"SIG{WORDS[number]}", f"{call} {share:.3f}"
        fault.rules = [Rule(call, share, f"signal:{int(number)}", rank=rank)]
        fault.allowed = (STOPS, GOES_ON, ENDS)
        fault.says = ENDED_BY.format(int(number), 128 + number) + "|ringtrain: error|stopped on request"
        if number == signal.SIGKILL:
            fault.says = has_died(rank)
    else:
        call, error = g.choice(["memory", "read data", "open data"]), "EIO"
        fault.what, fault.moment = error if call != "memory" else "ENOMEM", f"{call} {share:.3f}"
        fault.rules = [Rule(call, share, fault.what, rank=rank)]
        fault.allowed = (ENDS, GOES_ON, STOPS)
        fault.libraries_may_crash = call == "memory"
        fault.says = r"error: .*\.h5" if call != "memory" else rf"{NO_MEMORY}|failed, error: .*out of memory"  # the study says why a trial failed
    fault.target = f"rank {rank}"


def batch(g, fault):
    """Tests slurm/train.sbatch. Slurm's own commands answer as in a job that may be requeued."""
    fault.job = "batch-2"
    later = fault.seed > FIRST_SEEDS
    number = g.choice([signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL] + [signal.SIGSTOP, signal.SIGSTOP] * later)
    target = g.choice(["script", "script", "mpirun"]) if later else "script"
    moment, delay = g.choice([("launch", g.uniform(0, 2.0)), ("metrics", g.uniform(0, 0.8)), ("last step", g.uniform(0, 0.1))])
    fault.what, fault.moment = f"SIG{WORDS[number]}", f"{delay:.2f} s after {moment}"
    fault.target = "batch script" if target == "script" else target
    fault.blows = [Blow(moment, delay, target, WORDS[number])]
    fault.keys = {"test.slow_rank": 0, "test.slow_seconds": 0.03}
    fault.allowed = (STOPS, GOES_ON, ENDS)
    fault.says = ENDED_BY.format(int(number), 128 + number) + r"|ended with exit code \d+; the whole log is|asked to stop before the training began"
    if number == signal.SIGSTOP:
        fault.what += " and CONT"
        fault.blows.append(Blow("hit", g.uniform(0.05, 2), target, "CONT"))
        fault.allowed = (GOES_ON,)


# ---- Sums through the memory of a node -----------------------------------------------------------------------------

def in_a_sum(g, fault):
    """A rank dies or stands still while it and others are in a sum. The ranks of a node read each other's gradients in
    place, without messages. Another rank is slow, so that a step is little else than waiting in a sum."""
    fault.job, ranks = _job(g, fault, ["names-2", "names-3", "names-4", "cnn-4"])
    slow, *others = g.sample(range(ranks), ranks)
    rank, does, delay = g.choice([slow, *others]), g.choice(["KILL", "KILL", "STOP"]), g.uniform(0, 2)
    fault.what, fault.target, fault.moment = f"SIG{does}", f"rank {rank}", f"{delay:.2f} s after metrics, rank {slow} slow"
    fault.blows = [Blow("metrics", delay, f"rank {rank}", does)]
    fault.keys = {"test.slow_rank": slow, "test.slow_seconds": 0.3}
    fault.allowed = (ENDS,)
    fault.says = has_died(rank) if does == "KILL" else "no step was finished for"


# ---- Limits of threads and CPU time --------------------------------------------------------------------------------

def thread_limit(g, fault):
    """Variables of OpenMP that take threads away or bind them. The numbers stay the same, or the run is refused with the
    variable's name."""
    fault.job, _ = _job(g, fault, TRAINED)
    name, value = g.choice([("OMP_THREAD_LIMIT", "1"), ("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "true"), ("OMP_MAX_ACTIVE_LEVELS", "0"),
                            ("OMP_NUM_THREADS", "3,2"), ("OMP_PROC_BIND", "true"), ("OMP_PLACES", "cores"), ("OMP_STACKSIZE", "100000G")])
    threads = g.choice([1, 2]) if name in ("OMP_THREAD_LIMIT", "OMP_STACKSIZE") else 1
    fault.what, fault.target, fault.moment = f"{name}={value}", f"run.threads={threads}", "all the time"
    fault.env = {name: value}
    fault.keys = {"run.threads": threads}
    if threads == 2:
        fault.allowed, fault.says = (ENDS,), rf"ringtrain: error.*{name} is {value}"


def process_limit(g, fault):
    """Each rank may have only some threads."""
    fault.job, _ = _job(g, fault, TRAINED)
    most = g.randrange(1, 24)
    fault.what, fault.target, fault.moment = f"{most} threads", "all ranks", "all the time"
    fault.limits = {"threads": most}
    fault.allowed, fault.says = (ENDS, GOES_ON), rf"ringtrain: error.*allows {most} processes and threads \(pids\.max\)"


def cpu_quota(g, fault):
    fault.job, _ = _job(g, fault, TRAINED)
    cpus = g.choice([0.3, 0.5, 1, 1.5])
    fault.what, fault.target, fault.moment = f"{cpus} CPUs", "all ranks", "all the time"
    fault.limits = {"cpus": cpus}


FAMILIES = [(18, signal_in_a_call), (14, signal_from_outside), (14, disk), (4, read_only), (9, reads), (5, slow_files), (5, nfs),
            (4, lost_lock), (8, shard), (4, one_bad_shard), (9, checkpoint), (5, unreadable_resume), (10, memory), (2, slow_rank),
            (4, transport), (4, clock), (4, study), (4, batch)]
LATER_FAMILIES = [(8, in_a_sum)]
LIMIT_SEEDS = 9  # greater seeds have limits, too
LIMIT_FAMILIES = [(6, thread_limit), (6, process_limit), (4, cpu_quota)]


def draw(seed, number):
    g = random.Random(f"ringtrain faults {seed} {number}")
    families = FAMILIES + (LATER_FAMILIES if seed > FIRST_SEEDS else []) + (LIMIT_FAMILIES if seed > LIMIT_SEEDS else [])
    family = g.choices([f for _, f in families], [weight for weight, _ in families])[0]
    fault = Fault(seed, number, family.__name__.replace("_", " "), "", "", "", "")
    family(g, fault)
    return fault
