"""Tests slurm/train.sbatch and prep.sbatch with stand-ins for Slurm's commands: requeues, launchers, and jobs whose nodes
are of two kinds."""
import os
import re
import subprocess
import sys

import pytest

from conftest import HANG_SECONDS, ROOT, environment, last_step

sys.path.insert(0, str(ROOT / "tests" / "faults"))
from running import STUBS  # noqa: E402


class Batch:
    """The script in a folder of its own, with Slurm's variables for a job of two ranks."""

    def __init__(self, workshop):
        self.workshop, self.folder = workshop, workshop.folder
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name, text in STUBS.items():
            self.command(name, text)

    def command(self, name, text):
        (self.bin / name).write_text("#!/bin/bash\n" + text)
        (self.bin / name).chmod(0o755)

    def run(self, *words, **variables):
        if not any(str(word).startswith(str(self.folder)) for word in words):
            words = [*words, self.workshop.experiment(stop__steps=5), f"run.dir={self.folder / 'run'}"]
        return self.start("train.sbatch", *words, **variables)

    def start(self, script, *words, site="", path=None, **variables):
        file = self.folder / "site.env"
        file.write_text('. "$root/slurm/site.env"\nLAUNCHER=mpirun\n'
                        f"MPIRUN_OPTIONS=(--allow-run-as-root --oversubscribe --bind-to none)\n{site}\n")
        variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "here",
                     "RINGTRAIN_SITE": str(file), "RINGTRAIN_ROOT": str(ROOT), "FAULTS_FOLDER": str(self.folder),
                     "PATH": f"{self.bin}:{path or os.environ['PATH']}", "OMPI_MCA_plm": "isolated", "OMPI_MCA_ras": "^slurm",
                     "OMPI_MCA_mpi_yield_when_idle": "1", **variables}
        return subprocess.run([ROOT / "slurm" / script, *words], cwd=self.folder, env=environment() | variables,
                              capture_output=True, text=True, timeout=HANG_SECONDS)


@pytest.fixture
def batch(workshop):
    return Batch(workshop)


def test_a_job_that_was_queued_again_too_often_starts_nothing(batch):
    done = batch.run(site="MAX_REQUEUES=3", SLURM_RESTART_COUNT="4")
    assert done.returncode == 85 and "queued again 4 times, more than MAX_REQUEUES" in done.stdout, done
    assert not (batch.folder / "run").exists()


@pytest.mark.parametrize("restarts, again", [(2, True), (3, False)])
def test_the_last_queue_again_is_that_of_max_requeues(batch, restarts, again):
    # The ranks train to their end, and then return 85, as ranks do that stop with a checkpoint before the time limit.
    batch.command("ranks", f'"{ROOT}/bin/ringtrain" "$@" || exit\n[ "$1" != train ] || exit 85\n')
    done = batch.run(site=f'MAX_REQUEUES=3\nRINGTRAIN=("{batch.bin}/ranks")', SLURM_RESTART_COUNT=str(restarts))
    assert (batch.folder / "requeued").exists() == again, done
    if again:
        assert "queued again; goes on after step 5" in done.stdout, done
    else:
        assert done.returncode == 85 and "queued again 3 times, which is MAX_REQUEUES" in done.stdout and "--resume" in done.stdout, done


def test_preflight_runs_first_and_once_on_the_jobs_own_ranks(batch):
    batch.command("ranks", f'echo "$1" >> "{batch.folder}/called"\n[ "$1" != bench ] || set -- "$@" --seconds 0.05\n'
                           f'exec "{ROOT}/bin/ringtrain" "$@"\n')
    site = f'RINGTRAIN=("{batch.bin}/ranks")'
    done = batch.run("--preflight", site=site)
    assert done.returncode == 0, done
    assert (batch.folder / "called").read_text().split() == ["plan", "bench", "bench", "train", "train"]
    assert "measured: logs/preflight-7.json" in done.stdout and (batch.folder / "logs" / "preflight-7.json").exists(), done
    assert last_step(batch.folder / "run") == 5
    # A requeued job does not measure again.
    (batch.folder / "called").unlink()
    assert batch.run("--preflight", site=site, SLURM_RESTART_COUNT="1").returncode == 0
    assert "bench" not in (batch.folder / "called").read_text()


def test_a_preflight_that_fails_ends_the_job_before_the_training(batch):
    batch.command("ranks", f'[ "$1" != bench ] || exit 3\nexec "{ROOT}/bin/ringtrain" "$@"\n')
    done = batch.run("--preflight", site=f'RINGTRAIN=("{batch.bin}/ranks")')
    assert done.returncode == 3, done
    assert not (batch.folder / "run").exists()


def test_without_pmix_mpirun_starts_the_ranks_with_a_warning(batch):
    batch.command("srun", '[ "$1" != --mpi=list ] || { echo "srun: MPI types are... none pmi2"; exit; }\n' + STUBS["srun"])
    done = batch.run(site="LAUNCHER=srun")
    assert done.returncode == 0 and "this Slurm has no PMIx" in done.stdout and "starting with mpirun instead" in done.stdout, done
    assert last_step(batch.folder / "run") == 5
    log = next((batch.folder / "logs").glob("*.log")).read_text()
    assert "started by mpirun" in log, log


def test_without_pmix_and_mpirun_there_is_one_error(batch):
    tools = batch.folder / "tools"
    tools.mkdir()
    for name in "bash dirname grep sed head mkdir date cat id find sort tail env scontrol awk tr cut rm sleep ls".split():
        found = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True).stdout.strip()
        if found.startswith("/"):
            (tools / name).symlink_to(found)
    batch.command("srun", '[ "$1" != --mpi=list ] || { echo "srun: MPI types are... none pmi2"; exit; }\n' + STUBS["srun"])
    done = batch.run(site="LAUNCHER=srun", path=str(tools))
    assert done.returncode == 1 and re.search("error: this Slurm has no PMIx .* and there is no mpirun: see LAUNCHER in", done.stderr), done
    assert not (batch.folder / "run").exists()


def test_a_heterogeneous_job_is_refused(batch):
    done = batch.run(SLURM_HET_SIZE="2")
    assert done.returncode == 1 and "a heterogeneous job: only its first part would get ranks" in done.stderr, done
    assert not (batch.folder / "run").exists()


def test_a_runs_folder_goes_on_in_its_place(batch):
    run = batch.workshop.train("run", stop__steps=3)
    stored = (run / "experiment.yaml").read_text()
    (batch.folder / "latest").symlink_to(run)
    done = batch.run(batch.folder / "latest", "stop.steps=5", "--resume")
    assert done.returncode == 0 and f"run folder {run}\n" in done.stdout, done
    assert last_step(run) == 5 and (run / "experiment.yaml").read_text() == stored.replace("steps: 3", "steps: 5")
    # A job of a chain also goes on, and `--preflight` takes the experiment in the folder.
    batch.command("ranks", f'echo "$1" "$3" >> "{batch.folder}/called"\n[ "$1" != bench ] || exit 0\nexec "{ROOT}/bin/ringtrain" "$@"\n')
    site = f'RINGTRAIN=("{batch.bin}/ranks")'
    done = batch.run("--chain=c", "--preflight", run, "stop.steps=7", site=site)
    assert done.returncode == 0 and last_step(run) == 7, done


def test_a_chain_on_a_runs_folder_names_no_other_folder(batch):
    run = batch.workshop.train("run", stop__steps=3)
    batch.command("sbatch", f'echo "$@" >> "{batch.folder}/submitted"; echo 7\n')
    for source, is_run in (run, True), (batch.workshop.experiment(), False):
        (batch.folder / "submitted").unlink(missing_ok=True)
        done = subprocess.run([ROOT / "slurm" / "chain.sh", "2", ROOT / "slurm" / "train.sbatch", source, "--resume"], text=True,
                              capture_output=True, env={**environment(), "PATH": f"{batch.bin}:{os.environ['PATH']}"}, cwd=batch.folder)
        submitted = (batch.folder / "submitted").read_text()
        assert done.returncode == 0 and submitted.count(str(source)) == 2 and ("run.id=" in submitted) != is_run, done


@pytest.mark.parametrize("command, ranks, again", [("images", 2, "--resume"), ("import", 2, "--resume"), ("names", 1, ""), ("text", 1, "")])
def test_prep_shares_the_conversions_of_images_among_the_ranks_and_resumes_them(batch, command, ranks, again):
    batch.command("converter", f'echo "$*" >> "{batch.folder}/called"\n')
    site = f'RINGTRAIN_DATA=("{batch.bin}/converter")'
    for restarts, more in ("0", ""), ("1", again):
        done = batch.start("prep.sbatch", command, "input", "--out", batch.folder / "out", site=site, SLURM_RESTART_COUNT=restarts)
        assert done.returncode == 0 and "finished" in done.stdout, done
        called = (batch.folder / "called").read_text().splitlines()
        assert called == [f"{command} input --out {batch.folder / 'out'} {more}".strip()] * ranks
        (batch.folder / "called").unlink()
