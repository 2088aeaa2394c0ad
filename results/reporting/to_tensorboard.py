"""Writes and reads event files with the package tensorboard."""

import math
import time
from pathlib import Path

from . import trackers
from .errors import ReportError

OWNER = "run.txt"


class TensorBoard:
    def __init__(self, folder):
        self.folder = folder
        modules = trackers.load(
            "--tensorboard",
            "tensorboard",
            "tensorboard.compat.proto.event_pb2",
            "tensorboard.compat.proto.summary_pb2",
            "tensorboard.summary.writer.event_file_writer",
            "tensorboard.backend.event_processing.event_accumulator",
            "tensorboard.plugins.hparams.summary_v2",
        )
        self.event_pb2, self.summary_pb2, self.files, self.accumulator, self.hparams = modules

    def place(self):
        """Returns a name of the place that gets the numbers, and a folder there."""
        return f"the event files of {Path(self.folder).resolve()}", Path(self.folder)

    def writer(self, run):
        return RunWriter(self, run)

    def written(self, folder):
        """Returns the steps that TensorBoard's own reader finds in a folder of event files."""
        if not any(folder.glob("events.out.tfevents.*")):
            return trackers.Written()
        reader = self.accumulator.EventAccumulator(str(folder), size_guidance={self.accumulator.SCALARS: 0})
        reader.Reload()

        tags = reader.Tags()["scalars"]

        def marks(own, evaluation):
            found = {event.step: {} for event in reader.Scalars(own)} if own in tags else {}
            for tag in tags:
                for event in reader.Scalars(tag) if trackers.is_compared(tag, evaluation) else []:
                    if event.step in found and math.isfinite(event.value):
                        found[event.step][tag] = event.value
            return found

        return trackers.Written(marks("loss", False), marks("validation_loss", True))


class RunWriter:
    """Writes the events of one run. A record is one event, so that either all of its numbers are in the file or
    none."""

    def __init__(self, board, run):
        self.board, self.run = board, run
        self.folder = Path(board.folder) / run.name
        self.own_the_folder()
        self.written, self.events, self.count = board.written(self.folder), None, 0
        self.newest = []  # the records of the last step that was taken: its update and its evaluation

    def own_the_folder(self):
        owner, identity = self.folder / OWNER, self.run.identity()
        if owner.is_file() and owner.read_text(encoding="utf-8").strip() != identity:
            raise ReportError(
                f"{self.folder} has the events of another run ({owner.read_text(encoding='utf-8').strip()}), and "
                f"this is {identity}; give another --tensorboard DIR, or remove that folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        owner.write_text(identity + "\n", encoding="utf-8")

    def add(self, wall_time, **parts):
        """Adds an event. The first event makes the file, so that a call without new records makes none."""
        if self.events is None:
            self.wait_for_a_later_name()
            self.events = self.board.files.EventFileWriter(str(self.folder))
            if not self.written.last() and not self.written.last(True):
                self.add_settings(wall_time)
        self.events.add_event(self.board.event_pb2.Event(wall_time=wall_time, **parts))

    def wait_for_a_later_name(self):
        """Waits until a new file gets a later name than all others. TensorBoard reads files in the order of names.
        A name has the second in which the file was made."""
        newest = max((p.name.split(".")[3] for p in self.folder.glob("events.out.tfevents.*")), default="0")
        while newest.isdigit() and time.time() < int(newest) + 1:
            time.sleep(0.05)

    def add_settings(self, wall_time):
        """Adds the experiment, for TensorBoard's page of hyperparameters."""
        values = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in self.run.config().items()}
        if values:
            summary = self.board.hparams.hparams_pb(values, trial_id=self.run.name, start_time_secs=wall_time)
            self.events.add_event(self.board.event_pb2.Event(wall_time=wall_time, summary=summary))

    def take(self, stamped, again):
        """Writes new records. A resumed run may compute steps again with another result. The events then go back to the
        first of these steps. Such steps may come many calls after the one in which the file was found cut back."""
        taken = stamped if again else self.newest + stamped
        other = [record["step"] for record, _ in stamped if self.written.differs(record)]
        if other:
            self.go_back_to(min(other), stamped[0][1])
        for record, wall_time in taken:
            if not self.written.has(record):
                values = [
                    self.board.summary_pb2.Summary.Value(tag=name, simple_value=value)
                    for name, value in trackers.numbers(record).items()
                    if name != "step"
                ]
                self.add(wall_time, step=record["step"], summary=self.board.summary_pb2.Summary(value=values))
                self.written.add(record)
                self.count += 1
        self.newest = [one for one in taken if one[0]["step"] == taken[-1][0]["step"]]

    def go_back_to(self, step, wall_time):
        """Adds the start of a session at this step. TensorBoard then drops this step and all later ones."""
        start = self.board.event_pb2.SessionLog(status=self.board.event_pb2.SessionLog.START)
        self.add(wall_time, step=step, session_log=start)
        self.written.forget_from(step)

    def end(self, outcome):
        del outcome
        last_step = self.newest[-1][0]["step"] if self.newest else 0
        if 0 < last_step < max(self.written.last(), self.written.last(True)):
            self.go_back_to(last_step + 1, time.time())

    def flush(self):
        if self.events is not None:
            self.events.flush()

    def close(self):
        if self.events is not None:
            self.events.close()
            self.events = None

    def words(self):
        return f"{self.count} records went to {self.folder}"

    def advice(self):
        return [f"To look at them: tensorboard --logdir {self.board.folder}"]
