"""One fault from the first start to the last --resume, and everything that was wrong on the way."""
import re
import shutil
import sys
import time
from pathlib import Path

from draw import CATALOGUE
from jobs import KINDS, ROOT, e2e, run_dirs, undisturbed
from outcome import of_the_end, of_the_files, of_the_whole, outcome_of, resumed_step
from running import Strikes, follow, harm_file, rule_text

sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from control_group import ControlGroup  # noqa: E402


class Trial:
    """`wrong` is a list of sentences. `outcome`, `hit` (what the fault really met) and `seconds` go into the record."""

    def __init__(self, place, fault, folder):
        self.place, self.fault, self.folder, self.kind = place, fault, folder, KINDS[fault.job]
        self.whole = undisturbed(self.kind, place.folder / "undisturbed", place.preload, CATALOGUE, place.start)
        self.data = place.data
        if any(blow.target == "shard" for blow in fault.blows):
            self.data = folder / "data"
            shutil.copytree(place.data, self.data)
        self.wrong, self.hit, self.outcome, self.texts = [], "", "", []
        self.harmed = None  # a checkpoint that stays damaged until newer ones have replaced it

    def runs(self):
        return run_dirs(self.kind, self.folder)

    def check_files(self):
        for run, run_dir in self.runs().items():
            if run_dir.exists():
                self.wrong += of_the_files(run, run_dir, self.whole, self.harmed)

    def run(self):
        fault = self.fault
        calls = self.whole.calls
        rules = ";".join(rule_text(rule, self.kind, calls) for rule in fault.rules)
        total = max(self.whole.last_step(run) for run in self.whole.curves)
        begin = time.monotonic()
        try:
            groups = [ControlGroup(f"ringtrain-fault-{fault.number}-{rank}", **fault.limits) for rank in range(self.kind.ranks)] if fault.limits else []
        except OSError:  # no control groups here: the job runs without the fault, and the record says so
            groups = []
        enter = "\n".join(f'[ "$OMPI_COMM_WORLD_RANK" != {rank} ] || {group.enter}' for rank, group in enumerate(groups))
        job = self.place.start(self.kind, self.folder, fault.keys, rules=rules, data=self.data, env=fault.env, enter=enter)
        strikes = Strikes(self.place, fault, self.kind, self.folder, job, self.data, total)
        code, left = follow(job, strikes)
        for group in groups:
            group.remove()
        self.seconds = time.monotonic() - begin
        text = job.result(code).text + self.log()
        self.hit = "; ".join(strikes.notes) or self.calls_hit() or ("limited" if groups or fault.env else "")
        for second in strikes.helpers:
            self.check_second(second)
        requeued = (self.folder / "requeued").exists()
        if requeued:
            code = 85
        self.outcome = outcome_of(code) if code is not None else "hangs"
        self.wrong += of_the_end(fault, code, left, text, self.hit)
        if not self.hit and (fault.rules or fault.blows or fault.limits):
            self.outcome += ", not met"
        self.texts.append(text)
        self.check_files()
        if code == 0:
            self.wrong += of_the_whole(self.runs(), self.whole, self.harmed)
        if code != 0 or fault.harm:
            self.resume(requeued)
        self.wrong = [self.anonymous(sentence) for sentence in self.wrong]
        if fault.target == "remove checkpoint":  # the checkpoint with which a start measures the time of writing then stays, too
            self.wrong = [sentence for sentence in self.wrong if "temporary files are left" not in sentence]
        return self

    def calls_hit(self):
        """The calls that the rules have met first, one of each rank."""
        path = self.folder / "hits"
        calls = {line.split(" ", 3)[3] for line in path.read_text().splitlines()} if path.exists() else set()
        return self.anonymous("; ".join(sorted(calls)[:2]))

    def anonymous(self, text):
        """Removes the names of the campaign's, the checkout's and the user's folders, so that the record is the same on
        every machine."""
        for folder, name in ((self.folder, ""), (self.place.folder, ""), (ROOT, "."), (Path.home(), "~")):
            text = re.sub(rf"{re.escape(str(folder))}(?![\w.-])", name, text)
        return text

    def log(self):
        """The output of the ranks that a batch script keeps."""
        return "".join(path.read_text(errors="replace") for path in sorted((self.folder / "logs").glob("*.log")))

    def check_second(self, job):
        code, left = follow(job)
        text = job.result(code).text
        self.texts.append(text)
        late = "nothing to do" in text or code == 0  # the first job had ended
        if not late and "another job works in this run folder" not in text:
            self.wrong.append(f"the second job was not refused: exit code {code}")

    # ---- --resume ---------------------------------------------------------------------------------------------------

    def resume(self, requeued):
        self.mend()
        expected = self.harm() if self.fault.harm else None
        newest = {run: max((int(c.stem[5:]) for c in e2e.checkpoints(path)), default=0) for run, path in self.runs().items()}
        if self.fault.on_resume:
            rules = ";".join(rule_text(rule, self.kind, self.whole.calls) for rule in self.fault.on_resume)
            code, left, text = self.start(rules)
            if code is None or left:
                self.wrong.append("the first --resume did not end")
            elif code not in (0, 85) and "ringtrain: error" not in text:
                self.wrong.append("the first --resume failed without a word")
            self.hit += f"; resume: {'nothing' if code == 0 else 'failed'}"
            self.check_files()
            newest = {run: max((int(c.stem[5:]) for c in e2e.checkpoints(path)), default=0) for run, path in self.runs().items()}
        restart = 1 if requeued else 0
        code, left, text = self.start(restart=restart)
        if expected == "refused":
            if code == 0 or "ringtrain: error" not in text:
                self.wrong.append(f"a checkpoint of another model was not refused: exit code {code}")
            self.strange.unlink()
            code, left, text = self.start()
        if expected == "all damaged" and code != 0 and "none of the checkpoints can be read" in text:
            for path in (self.folder / "run" / "checkpoints").glob("*.h5"):
                path.unlink()
            code, left, text = self.start()
        if (self.folder / "requeued").exists() and code != 0:
            self.wrong.append("the job that was queued again did not end")
        if code != 0:
            self.wrong.append(f"--resume: exit code {code}: {text.strip().splitlines()[-3:]}")
        if left:
            self.wrong.append(f"processes are left behind: {left}")
        if self.kind.command == "train" and expected is None and code == 0 and newest.get("run", 0) > resumed_step(text):
            self.wrong.append(f"--resume went on after step {resumed_step(text)}, though there was a checkpoint of {newest['run']}")
        self.wrong += of_the_whole(self.runs(), self.whole, self.harmed)

    def start(self, rules="", restart=0):
        run_dir = self.folder / "run"
        resume = self.kind.command == "study" and (self.folder / "results").exists() or run_dir.exists()
        if self.kind.command == "batch" and restart > 0:
            resume = False  # the script resumes by itself
        (self.folder / "requeued").unlink(missing_ok=True)
        job = self.place.start(self.kind, self.folder, {}, rules=rules, resume=resume, data=self.data, restart=restart)
        code, left = follow(job)
        text = job.result(code).text + self.log()
        self.texts.append(text)
        return code, left, text

    def mend(self):
        """Restores the data."""
        if self.data != self.place.data:
            shutil.rmtree(self.data)
            shutil.copytree(self.place.data, self.data)

    def harm(self):
        does, pick = self.fault.harm
        paths = e2e.checkpoints(self.folder / "run")
        if not paths:
            return None
        if does == "all removed":
            for path in (self.folder / "run" / "checkpoints").glob("*.h5"):
                path.unlink()
            return "older"
        if does == "of another model":
            step = max(self.whole.digests["run"]) + 5
            self.strange = paths[-1].with_name(f"step-{step:09d}.h5")
            shutil.copy(self.other_model(), self.strange)
            return "refused"
        others = [path for path in paths[-1].parent.glob("*.h5") if not path.samefile(paths[-1])]  # best.h5 may be a link
        harm_file(paths[-1], does, pick)
        self.harmed = paths[-1]
        return "older" if others else "all damaged"

    def other_model(self):
        folder = self.place.folder / "other-model"
        if not folder.exists():
            folder.mkdir()
            kind = KINDS["names-2"]
            result = self.place.start(kind, folder, {"model.hidden": 24, "stop.steps": 6}).wait(60)
            assert result.code == 0, result
        return e2e.checkpoints(folder / "run")[-1]


def strike(place, fault):
    """Runs a fault's trial. Its folder stays until clear() removes it."""
    folder = place.folder / f"fault-{fault.seed}-{fault.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return Trial(place, fault, folder).run()


def clear(place, fault):
    for name in (f"fault-{fault.seed}-{fault.number}", f"fault-{fault.seed}-{fault.number}-second"):
        shutil.rmtree(place.folder / name, ignore_errors=True)
