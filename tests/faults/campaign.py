#!/usr/bin/env python3
"""Faults on running jobs: tests/faults/campaign.py [--seed 1] [--count 1000] [--only 17 ...]

Draws faults (draw.py), strikes small jobs with them (running.py), and says of each whether the job ended or went on as it
should, whether anything durable was lost, and whether the resumed run is the undisturbed run bit for bit (outcome.py).
The record grows by a line for each fault; numbers that it has already are passed over, so a campaign can run in shares.
The last line is `N faults, N found`; the exit code is 1 when something was found. --only repeats faults and records
nothing; --keep leaves their folders.
"""
import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record  # noqa: E402
from draw import CATALOGUE, GOES_ON, draw  # noqa: E402
from jobs import KINDS, ROOT, e2e, run_dirs, undisturbed  # noqa: E402
from outcome import of_the_end, of_the_files, of_the_whole, outcome_of, resumed_step  # noqa: E402
from running import Place, Strikes, follow, harm_file, rule_text  # noqa: E402


class Trial:
    """One fault, from the first start to the last resume."""

    def __init__(self, place, fault, folder):
        self.place, self.fault, self.folder, self.kind = place, fault, folder, KINDS[fault.job]
        self.whole = undisturbed(self.kind, place.folder / "undisturbed", place.preload, CATALOGUE, place.start)
        self.data = place.data
        if any(blow.target == "shard" for blow in fault.blows):
            self.data = folder / "data"
            shutil.copytree(place.data, self.data)
        self.wrong, self.hit, self.outcome, self.texts = [], "", "", []

    def runs(self):
        return run_dirs(self.kind, self.folder)

    def check_files(self):
        for run, run_dir in self.runs().items():
            if run_dir.exists():
                self.wrong += of_the_files(run, run_dir, self.whole)

    def run(self):
        fault = self.fault
        calls = self.whole.calls
        rules = ";".join(rule_text(rule, self.kind, calls) for rule in fault.rules)
        total = max(self.whole.last_step(run) for run in self.whole.curves)
        begin = time.monotonic()
        job = self.place.start(self.kind, self.folder, fault.keys, rules=rules, data=self.data)
        strikes = Strikes(self.place, fault, self.kind, self.folder, job, self.data, total)
        code, left = follow(job, strikes)
        self.seconds = time.monotonic() - begin
        text = job.result(code).text + self.log()
        hits = (self.folder / "hits").read_text().splitlines() if (self.folder / "hits").exists() else []
        self.hit = "; ".join(strikes.notes) or "; ".join(sorted({hit.split(" ", 3)[3].replace(str(self.folder), "") for hit in hits})[:2])
        for second in strikes.helpers:
            self.check_second(second)
        requeued = (self.folder / "requeued").exists()
        if requeued:
            code = 85
        self.outcome = outcome_of(code) if code is not None else "hangs"
        self.wrong += of_the_end(fault, code, left, text)
        if not self.hit and (fault.rules or fault.blows):
            self.outcome += ", not met"
        self.texts.append(text)
        self.check_files()
        if code == 0:
            self.wrong += of_the_whole(self.runs(), self.whole)
        if code != 0 or fault.harm:
            self.resume(requeued)
        return self

    def log(self):
        """What a batch script keeps of its ranks' words."""
        return "".join(path.read_text(errors="replace") for path in sorted((self.folder / "logs").glob("*.log")))

    def check_second(self, job):
        code, left = follow(job)
        text = job.result(code).text
        self.texts.append(text)
        late = "nothing to do" in text or code == 0  # the first had ended
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
        if (self.folder / "requeued").exists() and code != 0:
            self.wrong.append("the job that was queued again did not end")
        if code != 0:
            self.wrong.append(f"--resume: exit code {code}: {text.strip().splitlines()[-3:]}")
        if left:
            self.wrong.append(f"processes are left behind: {left}")
        if self.kind.command == "train" and expected is None and code == 0 and newest.get("run", 0) > resumed_step(text):
            self.wrong.append(f"--resume went on after step {resumed_step(text)}, though there was a checkpoint of {newest['run']}")
        self.wrong += of_the_whole(self.runs(), self.whole)

    def start(self, rules="", restart=0):
        run_dir = self.folder / "run"
        resume = self.kind.command == "study" and (self.folder / "results").exists() or run_dir.exists()
        if self.kind.command == "batch" and restart > 0:
            resume = False  # the script itself knows
        (self.folder / "requeued").unlink(missing_ok=True)
        job = self.place.start(self.kind, self.folder, {}, rules=rules, resume=resume, data=self.data, restart=restart)
        code, left = follow(job)
        text = job.result(code).text + self.log()
        self.texts.append(text)
        return code, left, text

    def mend(self):
        """The data as it was."""
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
        harm_file(paths[-1], does, pick)
        return "older"

    def other_model(self):
        folder = self.place.folder / "other-model"
        if not folder.exists():
            folder.mkdir()
            kind = KINDS["names-2"]
            result = self.place.start(kind, folder, {"model.hidden": 24, "stop.steps": 6}).wait(60)
            assert result.code == 0, result
        return e2e.checkpoints(folder / "run")[-1]


def row_of(trial, commit):
    fault = trial.fault
    return {"seed": fault.seed, "number": fault.number, "family": fault.family, "fault": fault.what, "moment": fault.moment,
            "hit": trial.hit, "target": fault.target, "job": fault.job, "outcome": trial.outcome,
            "seconds": f"{trial.seconds:.1f}", "found": " | ".join(trial.wrong), "commit": commit}


def strike(place, fault):
    """A fault's trial, in a folder that is there as long as something is wrong with it."""
    folder = place.folder / f"fault-{fault.seed}-{fault.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return Trial(place, fault, folder).run()


def clear(place, fault):
    for name in (f"fault-{fault.seed}-{fault.number}", f"fault-{fault.seed}-{fault.number}-second"):
        shutil.rmtree(place.folder / name, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="faults 1 to COUNT of this seed")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these faults, without a record")
    parser.add_argument("--family", help="only faults of this family, without a record")
    parser.add_argument("--keep", action="store_true", help="leave the folders of all faults, and say where they are")
    parser.add_argument("--record", type=Path, default=record.RECORD)
    parser.add_argument("--place", type=Path, help="the campaign's folder; by default a new one that is removed at the end")
    arguments = parser.parse_args()
    folder = arguments.place or Path(tempfile.mkdtemp(prefix="faults-", dir=ROOT / "build"))
    folder.mkdir(parents=True, exist_ok=True)
    place = Place(folder.resolve())
    (place.folder / "undisturbed").mkdir(exist_ok=True)
    repeats = arguments.only is not None or arguments.family is not None
    passed_over = set() if repeats else record.done(arguments.record, arguments.seed)
    commit = record.commit()
    count = found = 0
    try:
        for number in arguments.only or range(1, arguments.count + 1):
            fault = draw(arguments.seed, number)
            if number in passed_over or (arguments.family and fault.family != arguments.family):
                continue
            trial = strike(place, fault)
            row = row_of(trial, commit)
            count, found = count + 1, found + bool(trial.wrong)
            print(f"{fault.seed} {fault.number} {fault.job}: {fault.family}: {fault.what}, {fault.target}, {fault.moment} "
                  f"[{trial.hit}]: {trial.outcome}, {trial.seconds:.1f} s", flush=True)
            for sentence in trial.wrong:
                print(f"    FOUND: {sentence}", flush=True)
            if not repeats:
                record.append(arguments.record, row)
            if not trial.wrong and not arguments.keep:
                clear(place, fault)
        print(f"{count} faults, {found} found")
    finally:
        if arguments.place is None and not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
