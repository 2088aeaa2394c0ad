"""Control groups (cgroups) for tests, in which a batch system or a container limits threads and CPU time."""
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds


class ControlGroup:
    """A group with at most `threads` processes and threads, or with a quota of `cpus` CPUs. Raises OSError where groups
    cannot be made, for example without root."""

    def __init__(self, name, threads=None, cpus=None):
        controller = "pids" if threads else "cpu"
        self.is_version_1 = (ROOT / controller / "cgroup.procs").exists()
        self.folder = (ROOT / controller if self.is_version_1 else ROOT) / f"{name}-{os.getpid()}"
        if not self.is_version_1:
            (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
        self.folder.mkdir()
        try:
            if threads:
                (self.folder / "pids.max").write_text(str(threads))
            elif self.is_version_1:
                (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD))
                (self.folder / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD)))
            else:
                (self.folder / "cpu.max").write_text(f"{round(cpus * PERIOD)} {PERIOD}")
        except OSError:
            self.remove()
            raise

    @property
    def enter(self):
        """A shell's line with which it, and what it starts, enters the group."""
        return f"echo $$ > {self.folder}/cgroup.procs"

    def remove(self):
        try:
            self.folder.rmdir()
        except OSError:  # a process that was killed is still ending
            pass
