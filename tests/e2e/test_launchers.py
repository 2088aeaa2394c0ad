"""Tests processes of a launcher that this program's MPI does not understand. One of them prints one message, and the
others end without a word."""
import subprocess

import pytest

from conftest import CONVERTER, HANG_SECONDS, PROGRAM, environment

NO_PMI = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}
LAUNCHERS = {
    "srun --mpi=none": (NO_PMI, "SLURM_PROCID", "srun started 2 processes without PMIx"),
    "srun --mpi=pmi2": ({**NO_PMI, "PMI_FD": "99", "PMI_SIZE": "2"}, "PMI_RANK", "srun --mpi=pmi2 started 2 processes"),
    "MPICH's mpiexec": ({"PMI_FD": "99", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, "PMI_RANK", "the mpiexec of another MPI"),
}


@pytest.mark.parametrize("program, words", [(PROGRAM, ["train", "none.yaml"]), (CONVERTER, ["verify", "none"])])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_process_says_that_the_launcher_does_not_fit(launcher, program, words):
    variables, rank, message = LAUNCHERS[launcher]
    both = [subprocess.Popen([program, *words], env=environment({**variables, rank: str(number)}), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True) for number in range(2)]
    texts = [process.communicate(timeout=HANG_SECONDS)[0] for process in both]
    if "Open MPI" not in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout:
        pytest.skip("other MPIs understand older process managers")
    assert message in texts[0] and texts[0].count("error:") == 1 and "srun --mpi=pmix" in texts[0], texts
    assert len(texts[0].splitlines()) == 2 and texts[1] == "", texts
    assert all(process.returncode == 1 for process in both)


def test_a_mistake_in_the_words_is_said_once():
    texts = [subprocess.run([CONVERTER, "verify", "--bogus"], env=environment({**NO_PMI, "SLURM_PROCID": str(number)}),
                            capture_output=True, text=True).stderr for number in range(2)]
    assert "--bogus" in texts[0] and texts[1] == ""
