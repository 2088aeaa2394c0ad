"""Writes runs to Weights & Biases with the package wandb. Without a key, they go to wandb's offline folder."""

import hashlib
import netrc
import os
from urllib.parse import urlparse

from . import following, trackers, wandb_file


def has_key():
    """Returns whether wandb finds a key without asking the user."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


# These settings turn off what wandb records about the machine, the sources and the terminal of follow.py. They are not
# those of the run.
SETTINGS = {
    "console": "off",
    "silent": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "disable_git": True,
    "x_save_requirements": False,
}

EVALUATED = "last_evaluation_step"  # key of wandb's summary


def tree_of(flat):
    """Turns {"batch.global": 64} into {"batch": {"global": 64}}."""
    tree = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = list(value) if isinstance(value, tuple) else value
    return tree


def exit_code(outcome):
    """Returns 0 for a run that was not ended by an error, else 1. wandb shows the latter as failed."""
    return 0 if outcome == "finished" or outcome.startswith(("target", "stopped by", "paused after")) else 1


class Wandb:
    def __init__(self, project, folder):
        self.project, self.folder = project, folder
        self.wandb, self.messages = trackers.load("--wandb", "wandb", "wandb", "wandb.proto.wandb_internal_pb2")
        self.mode = os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")

    def place(self):
        return f"wandb's project {self.project}", self.folder

    def writer(self, run):
        return RunWriter(self, run)

    def begin(self, run, run_id):
        """Opens a run of wandb. Several runs can be open at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        newest = (run.starts() or [{}])[-1]
        known = self.wandb.Settings()
        made = self.wandb.init(
            project=self.project,
            dir=str(self.folder),
            id=run_id,
            name=run.name,
            group=run.study or None,
            mode=self.mode,
            resume="allow",
            reinit="create_new",
            config={**tree_of(run.config()), **{k: newest[k] for k in ("ranks", "commit", "backend") if k in newest}},
            settings=self.wandb.Settings(**{k: v for k, v in SETTINGS.items() if hasattr(known, k)}),
        )
        made.define_metric("step")
        made.define_metric("*", step_metric="step")
        return made


class RunWriter:
    """Writes one run. Its id in wandb is computed from the run's identity. Each row has a value `step`, which is the x
    axis. So an evaluation that comes after a restart gets the right place."""

    def __init__(self, sink, run):
        self.sink, self.run = sink, run
        self.id = hashlib.sha256(run.identity().encode()).hexdigest()[:16]
        self.made, self.count, self.left_out = None, 0, 0
        self.written = trackers.Written()
        self.last, self.has_ended = self.found()

    def found(self):
        """Reads wandb's files of earlier starts. Returns the last step of updates and of evaluations (False and True),
        and whether the end of the run was written."""
        last, ended = {False: 0, True: 0}, False
        for path in sorted(self.sink.folder.glob(f"wandb/*run-*-{self.id}/run-{self.id}.wandb")):
            rows, summary = wandb_file.history(path, self.sink.messages)
            for row in rows:
                kind = following.is_evaluation(row)
                last[kind] = max(last[kind], int(row.get("step", 0)))
                if "step" in row:
                    self.written.add(row)
            ended = "outcome" in summary
        return last, ended

    def open(self):
        if self.made is None:
            self.made = self.sink.begin(self.run, self.id)
            # If the files of earlier starts are gone, the server knows the last step and the last evaluation.
            summary = dict(self.made.summary)
            step = int(summary.get("step", 0))
            self.last[False] = max(self.last[False], step)
            self.last[True] = max(self.last[True], int(summary.get(EVALUATED, 0)))

    def take(self, stamped, again):
        """Writes new records. Steps that a resumed run has computed again are not written a second time."""
        del again
        for record, _ in stamped:
            kind = following.is_evaluation(record)
            if self.written.differs(record):
                self.left_out += 1
                continue
            if record["step"] > self.last[kind]:
                self.open()
            if record["step"] > self.last[kind]:
                self.made.log(trackers.numbers(record))
                self.last[kind] = record["step"]
                self.written.add(record)
                if kind:
                    self.made.summary[EVALUATED] = record["step"]
                self.has_ended = False
                self.count += 1

    def end(self, outcome):
        if self.has_ended:
            return
        self.open()
        self.made.summary["outcome"] = outcome
        self.made.finish(exit_code=exit_code(outcome))
        self.made, self.has_ended = None, True

    def flush(self):
        pass  # a process of wandb writes the data

    def close(self):
        if self.made is not None:
            self.made.finish()
            self.made = None

    def words(self):
        return f"{self.count} records went to wandb ({self.sink.mode}), project {self.sink.project}, run {self.id}"

    def advice(self):
        again = (
            [f"{self.left_out} records of run {self.id} were computed again with other numbers after a resume; wandb cannot "
             "replace rows, so it keeps the first ones. --tensorboard has the new ones."]
            if self.left_out
            else []
        )
        if self.sink.mode != "offline":
            return again
        return again + [
            f"Written offline (WANDB_MODE, or no WANDB_API_KEY); to upload: wandb sync {self.sink.folder}/wandb/offline-run-*"
        ]
