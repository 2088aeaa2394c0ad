"""Runs the unit tests that need a small disk as the user nobody. A user may mount one in a namespace of his own, so these
tests are no longer left out where nobody is root."""
import os
import shutil
import subprocess

import pytest

from conftest import ROOT, environment

TESTS = ("RunFolderTest.AFolderThatCannotBeWrittenIsAnErrorAtTheStart:RoomForTwoCheckpoints.*:"
         "PlanWarnings.CheckpointsThatTheDiskHasNoRoomFor:CheckpointTest.AFullDiskIsNamedAndLeavesTheOlderFilesWhole")
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def test_what_needs_a_small_disk_runs_without_root(tmp_path):
    program = tmp_path / "unit_tests"
    if not (ROOT / "build/tests/unit_tests").exists():
        pytest.skip("build/tests/unit_tests is not built")
    shutil.copy(ROOT / "build/tests/unit_tests", program)
    user = []
    if os.geteuid() == 0:
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        for folder in tmp_path, *list(tmp_path.parents)[:2]:  # pytest's own folders, which only their owner may enter
            folder.chmod(0o755)
        os.chown(tmp_path, 65534, 65534)
    if subprocess.run([*user, *NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("users cannot make namespaces here")
    done = subprocess.run([*user, *NAMESPACE, program, f"--gtest_filter={TESTS}"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env=environment({"TMPDIR": str(tmp_path)}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[  PASSED  ] 6 tests." in done.stdout and "SKIPPED" not in done.stdout, done.stdout
