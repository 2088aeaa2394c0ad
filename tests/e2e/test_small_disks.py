"""Runs the unit tests that need a small disk without root's rights. If root runs the tests, they run as the user "nobody".
Any user can mount a small disk in a user namespace."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import HANG_SECONDS, ROOT, environment

TESTS = ("RunFolderTest.AFolderThatCannotBeWrittenIsAnErrorAtTheStart:RoomForTwoCheckpoints.*:"
         "PlanWarnings.CheckpointsThatTheDiskHasNoRoomFor:CheckpointTest.AFullDiskIsNamedAndLeavesTheOlderFilesWhole:"
         "CheckpointTest.ADiskWithoutInodesIsNotCalledFull")
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture
def folder_of_nobody():
    """A folder that the user "nobody" may enter. pytest's own folders may only be entered by their owner."""
    with tempfile.TemporaryDirectory(prefix="ringtrain-small-disks-") as folder:
        yield Path(folder)


def test_what_needs_a_small_disk_runs_without_root(folder_of_nobody):
    program = folder_of_nobody / "unit_tests"
    if not (ROOT / "build/tests/unit_tests").exists():
        pytest.skip("build/tests/unit_tests is not built")
    shutil.copy(ROOT / "build/tests/unit_tests", program)
    user = []
    if os.geteuid() == 0:
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.chown(folder_of_nobody, 65534, 65534)
    if subprocess.run([*user, *NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("users cannot make namespaces here")
    done = subprocess.run([*user, *NAMESPACE, program, f"--gtest_filter={TESTS}"], cwd=folder_of_nobody, capture_output=True, text=True, timeout=HANG_SECONDS,
                          env=environment({"TMPDIR": str(folder_of_nobody)}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[  PASSED  ] 7 tests." in done.stdout and "SKIPPED" not in done.stdout, done.stdout
