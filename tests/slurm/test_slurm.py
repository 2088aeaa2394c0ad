"""Tests the batch scripts and the program on a real Slurm: two virtual nodes, started by local_slurm.sh."""
import json
import os
import re
import shutil
import signal
import time

import pytest
from cluster import ROOT, SCRIPTS, STEPS, Job, e2e, until
from conftest import together

PAIRS = ["--nodes=2"]  # four ranks, with the two tasks per node of train.sbatch
HOSTS = {"node1": [0, 1], "node2": [2, 3]}


def last_start(run_dir):
    return json.loads((run_dir / "run.json").read_text())["starts"][-1]


def step_numbers(run_dir):
    return [record["step"] for record in e2e.steps(run_dir)]


# ---- Tests that run together, the slowest first --------------------------------------------------------------------

@together
def test_at_the_time_limit_a_checkpoint_is_made_within_kill_wait_and_the_job_goes_on(shop, whole):
    # With URG in place of USR1, the job learns of the limit only by SIGTERM. One step takes a second here.
    job = shop.train("run", options=["--nodes=1", "--ntasks-per-node=1", "--time=1", "--signal=B:URG@1"],
                     env=shop.slow_checkpoints(), checkpoint__every_steps=1, stop__steps=10**6, stop__epochs=0)
    job.wait_for_restart()
    assert "TIME LIMIT" in job.output() and "] queued again; " in job.output(), job.told()
    before = e2e.last_step(shop.folder / "run")
    job.wait_for_step(shop.folder / "run", before + 2)
    assert f"resuming after step {before} " in job.log(restart=1), job.told()
    job.signal("KILL", "--full")
    job.cluster.run("scancel", job.id)
    assert step_numbers(shop.folder / "run")[:before + 2] == list(range(1, before + 3)), "steps got lost"


@together
def test_slurms_own_signal_before_the_time_limit_leads_to_a_checkpoint_and_the_job_goes_on(shop, whole):
    job = shop.train("run", options=["--nodes=1", "--ntasks-per-node=1", "--time=1", "--signal=B:USR1@20"],
                     env=shop.slow_checkpoints(), checkpoint__every_steps=1, stop__steps=10**6, stop__epochs=0)
    job.wait_for_restart()
    assert "stopped with a checkpoint" in job.output() and "TIME LIMIT" not in job.output(), job.told()
    job.cluster.run("scancel", job.id)


@together
def test_a_job_that_is_signalled_in_mid_epoch_is_queued_again_and_has_the_same_curve_bit_for_bit(shop, whole):
    job = shop.train("run", options=PAIRS)
    job.wait_for_step(shop.folder / "run", 3)
    job.ask_for_checkpoint()
    job.wait()
    assert job.restarts() == 1, job.told()
    assert "resuming after step" in job.log(restart=1), job.told()
    e2e.assert_same_bits(shop.folder / "run", whole)
    record = last_start(shop.folder / "run")
    assert (record["slurm"]["SLURM_JOB_ID"], record["slurm"]["SLURM_RESTART_COUNT"]) == (job.id, "1")
    assert not shop.cluster.has_namespaces or record["hosts"] == HOSTS


@together
def test_signals_while_the_checkpoint_is_being_written_lose_nothing(shop, whole):
    run = shop.folder / "run"
    job = shop.train("run", options=PAIRS, env=shop.slow_checkpoints(), checkpoint__every_steps=4)

    def under_way():
        return [path.name for path in (run / "checkpoints").glob("step-*.h5.tmp")]

    first = until(under_way, job.told)
    job.ask_for_checkpoint()
    until(lambda: under_way() and under_way() != first, job.told)  # waits for the checkpoint that was asked for
    job.signal("TERM")
    job.ask_for_checkpoint()
    until(lambda: "stopped with a checkpoint" in job.output(), job.told)
    assert not under_way()
    asked = int(e2e.checkpoints(run)[-1].stem.split("-")[1])
    job.wait()
    assert f"resuming after step {asked} " in job.log(restart=1), job.told()
    e2e.assert_same_bits(run, whole)


@together
def test_two_nodes_with_two_tasks_equal_mpirun_with_four_ranks(shop, whole):
    job = shop.train(options=PAIRS).wait()
    run = shop.folder / "results" / "names" / f"job-{job.id}"
    e2e.assert_same_bits(run, whole)
    assert not shop.cluster.has_namespaces or last_start(run)["hosts"] == HOSTS
    assert f"Slurm job {job.id}, on node[1-2], started by srun --mpi=pmix" in job.log(), job.told()


@together
def test_mpirun_inside_a_job_equals_mpirun_without_slurm(shop, whole):
    job = shop.train("run", options=PAIRS, env=shop.site("LAUNCHER=mpirun MPIRUN_OPTIONS=(--bind-to none)")).wait()
    e2e.assert_same_bits(shop.folder / "run", whole)
    # The daemon that starts the second node's ranks has as many CPUs as the first node's.
    assert not shop.cluster.has_namespaces or re.search("^node1, node2: 2 ranks, CPUs", job.log(), re.MULTILINE), job.told()


@together
def test_scancel_leaves_a_checkpoint_and_the_run_goes_on_on_another_number_of_nodes_within_rounding(shop, whole):
    run = shop.folder / "run"
    job = shop.train("run", options=PAIRS)
    job.wait_for_step(run, 3)
    job.cluster.run("scancel", job.id)
    job.wait("CANCELLED")
    until(lambda: "not queued again" in job.output(), job.told)
    assert job.restarts() == 0 and e2e.last_step(run) < STEPS, job.told()
    other = shop.train("run", "--resume", options=["--nodes=1"]).wait()
    assert "within rounding" in other.log(), other.told()
    e2e.assert_close(run, whole)


@together
def test_a_task_of_an_array_is_queued_again_without_the_others(shop, whole):
    array = shop.train(options=["--nodes=1", "--ntasks-per-node=1", "--array=1-3"], seed="%a")
    tasks = [Job(shop.cluster, f"{array.id}_{number}", shop.folder) for number in (1, 2, 3)]
    last = tasks[-1]  # its job id is that of the whole array
    last.wait_for_step(shop.folder / "results" / "names" / f"job-{last.id}", 3)
    last.ask_for_checkpoint()
    for task in tasks:
        task.wait()
    assert [task.restarts() for task in tasks] == [0, 0, 1], last.told()
    curves = [e2e.curve(shop.folder / "results" / "names" / f"job-{task.id}") for task in tasks]
    assert [len(curve) for curve in curves] == [STEPS] * 3
    assert len({curve[0] for curve in curves}) == 3, "the seeds are the same"


@together
def test_where_jobs_are_not_requeued_the_job_ends_with_85_and_says_how_to_go_on(shop, whole):
    job = shop.train("run", options=["--nodes=1", "--no-requeue"])
    job.wait_for_step(shop.folder / "run", 3)
    job.ask_for_checkpoint()
    job.wait("FAILED")
    assert job.fields()["ExitCode"] == "85:0", job.told()
    assert "not queued again after all" in job.output() and f"run.dir={shop.folder}/run --resume" in job.output(), job.told()


@together
def test_the_jobs_of_a_chain_go_on_where_the_one_before_stopped_and_the_rest_is_removed(shop, whole):
    done = shop.cluster.run(SCRIPTS / "chain.sh", 4, "--hold", "--nodes=2", "--export=NONE", SCRIPTS / "train.sbatch",
                            ROOT / "configs" / "names.yaml", *shop.keys("run"), cwd=shop.folder)
    assert done.returncode == 0, done.stderr
    first, waiting, third, fourth = (Job(shop.cluster, number, shop.folder) for number in done.stdout.split())
    # A job that is cancelled before its turn must not let the next one start earlier.
    shop.cluster.run("scancel", waiting.id)
    waiting.wait("CANCELLED")
    shop.cluster.run("scontrol", "release", third.id, fourth.id)
    time.sleep(3)  # the scheduler runs every two seconds
    assert third.state() == "PENDING", third.told()
    shop.cluster.run("scontrol", "release", first.id)
    first.wait_for_step(shop.folder / "run", 3)
    first.ask_for_checkpoint()
    first.wait("FAILED")
    assert first.fields()["ExitCode"] == "85:0" and first.restarts() == 0, first.told()
    assert "the next job of the chain goes on" in first.output(), first.told()
    third.wait()
    fourth.wait("CANCELLED")
    e2e.assert_same_bits(shop.folder / "run", whole)


@together
def test_an_error_ends_the_job_once_with_the_reason_in_its_output(shop, whole):
    typo = shop.train(options=["--nodes=1"], model__hiden=4).wait("FAILED")
    assert "model.hiden" in typo.output() and typo.restarts() == 0, typo.told()
    (shop.folder / "full").mkdir()
    (shop.folder / "full" / "thesis.txt").write_text("mine")
    full = shop.train("full", options=["--nodes=1"]).wait("FAILED")
    assert "not empty" in full.output() and full.restarts() == 0, full.told()


@together
def test_without_pmix_there_is_one_error_with_advice_instead_of_singletons(shop, whole):
    job = shop.train("run", options=PAIRS, env=shop.site("SRUN_MPI=none")).wait("FAILED")
    assert "srun --mpi=pmix" in job.output(), job.told()
    done = shop.cluster.run("srun", "--mpi=none", "--nodes=2", "--ntasks=4", e2e.PROGRAM, "train",
                            ROOT / "configs" / "names.yaml", *shop.keys("run"))
    assert done.returncode != 0 and "srun started 4 processes without PMIx" in done.stderr, done.stderr
    assert not (shop.folder / "run").exists()


@together
def test_where_slurm_has_no_pmix_mpirun_starts_the_ranks(shop, whole):
    # Prints what `srun --mpi=list` prints for a Slurm without PMIx. Everything else is the real srun.
    srun = shop.folder / "without-pmix" / "srun"
    srun.parent.mkdir()
    srun.write_text('#!/bin/bash\n[ "$1" != --mpi=list ] || { echo "MPI plugin types are... none pmi2" >&2; exit; }\nexec '
                    + shop.cluster.run("which", "srun").stdout.strip() + ' "$@"\n')
    srun.chmod(0o755)
    job = shop.train("run", options=["--nodes=1", "--ntasks-per-node=4"],
                     env=shop.site(f"PATH={srun.parent}:$PATH\nMPIRUN_OPTIONS=(--allow-run-as-root --oversubscribe)"), stop__steps=5).wait()
    assert "this Slurm has no PMIx" in job.output() and "starting with mpirun instead" in job.output(), job.told()
    assert "started by mpirun" in job.log() and e2e.last_step(shop.folder / "run") == 5, job.told()


@together
def test_a_job_is_queued_again_no_more_often_than_max_requeues(shop, whole):
    job = shop.train("run", options=["--nodes=1", "--ntasks-per-node=4"], env=shop.site("MAX_REQUEUES=0"))
    job.wait_for_step(shop.folder / "run", 3)
    job.ask_for_checkpoint()
    job.wait("FAILED")
    assert "queued again 0 times, which is MAX_REQUEUES" in job.output() and job.restarts() == 0, job.told()
    assert job.fields()["ExitCode"] == "85:0", job.told()


@together
def test_preflight_measures_the_jobs_own_nodes_before_it_trains(shop, whole):
    job = shop.train("run", "--preflight", options=["--nodes=2", "--ntasks-per-node=1"], stop__steps=5).wait(timeout=240)
    said = job.output()
    assert f"measured: logs/preflight-{job.id}.json" in said and said.index("measured:") < said.index("] finished"), job.told()
    assert (shop.folder / "logs" / f"preflight-{job.id}.json").exists() and e2e.last_step(shop.folder / "run") == 5, job.told()


@together
def test_a_heterogeneous_job_is_refused_with_the_reason(shop, whole):
    done = shop.cluster.run("sbatch", "--parsable", "--nodes=1", "--ntasks=1", ":", "--nodes=1", "--ntasks=1", SCRIPTS / "train.sbatch",
                            ROOT / "configs" / "names.yaml", *shop.keys("run"), cwd=shop.folder)
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip().split(";")[0]
    output = shop.folder / f"train-{number}.out"
    until(lambda: output.exists() and "heterogeneous" in output.read_text(), f"the refusal of job {number}")
    assert "only its first part would get ranks" in output.read_text()
    assert not (shop.folder / "run").exists()


@together
def test_ranks_that_were_bound_to_one_gpu_are_named(shop, whole):
    if not shop.cluster.has_gpus or not shop.cluster.has_namespaces:
        pytest.skip("no device files for GPUs, or no nodes with names of their own, can be made here")
    shared = shop.train("shared", options=["--nodes=2", "--gpus-per-node=1"], stop__steps=1).wait("FAILED")
    assert "on node1, but 1 device (CUDA_VISIBLE_DEVICES=0): rank 1 is left without one" in shared.output() or \
        "on node2, but 1 device (CUDA_VISIBLE_DEVICES=0): rank 3 is left without one" in shared.output(), shared.told()
    for enough in ["--gpus-per-node=2"], ["--gpus-per-task=1"], ["--gpus=4"], ["--gpus-per-node=2", "--cpus-per-gpu=1"]:
        shop.train(f"enough{enough}", options=["--nodes=2", *enough], stop__steps=1).wait()


@together
def test_sbatch_without_the_users_environment_trains_as_well(shop, whole):
    site = shop.site('RINGTRAIN=(env "$root/bin/ringtrain")')["RINGTRAIN_SITE"]  # env is found by PATH only
    job = shop.train("run", options=["--nodes=2", f"--export=RINGTRAIN_SITE={site}"], stop__steps=2).wait()
    assert e2e.last_step(shop.folder / "run") == 2, job.told()


@together
def test_a_project_in_a_folder_with_a_space_trains_from_elsewhere_with_a_site_that_prints_and_uses_what_is_not_set(shop, whole):
    project = shop.folder / "my project"
    project.mkdir()
    for part in "slurm", "bin":
        (project / part).symlink_to(ROOT / part)
    env = shop.site('echo "loading $NO_SUCH_VARIABLE"; LINK_GBIT=')
    job = shop.submit(project / "slurm" / "train.sbatch", "--stage", ROOT / "configs" / "names.yaml",
                      *shop.keys("the run", stop__steps=2), options=["--nodes=1"], env=env).wait()
    assert e2e.last_step(shop.folder / "the run") == 2, job.told()
    by_itself = shop.cluster.run(project / "slurm" / "train.sbatch", "--nodes=1", "--exclusive",
                                 ROOT / "configs" / "names.yaml", *shop.keys("another run", stop__steps=2),
                                 cwd=shop.folder, env=env)
    Job(shop.cluster, by_itself.stdout.split()[-1], shop.folder).wait()
    assert by_itself.stdout.startswith("Submitted"), by_itself.stdout


@together
def test_a_signal_before_the_training_ends_the_job_with_a_word_and_not_by_the_signal(shop, whole):
    slow = shop.site("NODE_SCRATCH='$(touch started; sleep 4; echo $SLURM_TMPDIR)'")
    job = shop.train("run", "--stage", options=["--nodes=1"], env=slow)
    until(lambda: (shop.folder / "started").exists(), job.told)
    job.ask_for_checkpoint()
    job.wait("FAILED")
    assert "asked to stop before the training began" in job.output() and "no step was made" in job.output(), job.told()
    assert job.fields()["ExitCode"] == "1:0" and not (shop.folder / "run").exists(), job.told()


@together
def test_names_are_converted_and_verified_by_prep(shop, whole):
    source = shop.folder / "names.txt"
    source.write_text("\n".join(e2e.some_names(100, 5)) + "\n")
    job = shop.submit(SCRIPTS / "prep.sbatch", "names", source, "--out", shop.folder / "data" / "names").wait()
    assert "finished" in job.output() and list((shop.folder / "data").glob("names-train-*.h5")), job.told()


@together
def test_images_are_converted_by_all_ranks_of_two_nodes_into_the_same_files(shop, whole):
    images = sorted((ROOT / "tests" / "golden" / "images").glob("*.jpg"))
    for number, image in enumerate(images):
        place = shop.folder / "images" / ("even" if number % 2 == 0 else "odd")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, place)
    words = ["images", shop.folder / "images", "--validation", "0.3", "--broken", "skip", "--out"]
    job = shop.submit(SCRIPTS / "prep.sbatch", *words, shop.folder / "job" / "images",
                      options=["--nodes=2", "--ntasks-per-node=2"]).wait()
    assert "4 rank(s)" in job.output(), job.told()
    (shop.folder / "alone").mkdir()
    done = shop.cluster.run(e2e.CONVERTER, *words, shop.folder / "alone" / "images")
    assert done.returncode == 0, done.stderr
    by_job, alone = (sorted((shop.folder / folder).glob("*.h5")) for folder in ("job", "alone"))
    assert len(by_job) == 2 and [file.name for file in by_job] == [file.name for file in alone]
    assert [file.read_bytes() for file in by_job] == [file.read_bytes() for file in alone]


@together
def test_preflight_measures_both_nodes_and_predict_reads_what_it_writes(shop, whole):
    experiment = ROOT / "configs" / "names.yaml"
    job = shop.submit(SCRIPTS / "preflight.sbatch", experiment, "--seconds=1", *shop.keys()).wait()
    path = shop.folder / "logs" / f"preflight-{job.id}.json"
    measured = json.loads(path.read_text())
    assert measured["ranks"] == 4 and measured["step"]["parameters"] > 0 and measured["input"], job.told()
    if shop.cluster.has_namespaces:
        assert measured["hosts"] == ["node1", "node2"] and {"node", "network"} <= {c["scope"] for c in measured["comm"]}
    predicted = shop.cluster.run(e2e.PROGRAM, "predict", experiment, "--ranks", "1..64", "--preflight", path, *shop.keys())
    assert predicted.returncode == 0, predicted.stderr


@together
def test_slurm_accepts_every_batch_script(shop, whole):
    for script in sorted(SCRIPTS.glob("*.sbatch")):
        done = shop.cluster.run("sbatch", "--test-only", script, cwd=shop.folder)
        assert done.returncode == 0, f"{script.name}: {done.stderr}"


@together
def test_a_script_that_is_started_without_sbatch_submits_itself_with_the_sites_settings(shop, whole):
    env = shop.site("export SBATCH_JOB_NAME=mine SBATCH_PARTITION=batch")
    done = shop.cluster.run(SCRIPTS / "prep.sbatch", "--ntasks-per-node=2", "names", "x.txt", cwd=shop.folder, env=env)
    job = Job(shop.cluster, done.stdout.split()[-1], shop.folder)
    assert job.fields()["JobName"] == "mine" and job.fields()["NumTasks"] == "2", done.stdout + done.stderr
    assert "no --out PREFIX" in job.wait("FAILED").output()


@together
def test_every_node_gets_one_copy_that_its_ranks_share(shop, whole):
    if not shop.cluster.has_namespaces:
        pytest.skip("the virtual nodes have no disks of their own")
    job = shop.train("run", "--stage", options=PAIRS, stop__steps=3)
    scratch = f"scratch/{job.id}/ringtrain-"
    job.wait()
    for node in "node1", "node2":
        assert job.output().count(f"{node}: staged") == 2, job.told()  # training and validation data
        assert f"{node}: staged {shop.data}-train to {shop.cluster.folder}/{scratch}" in job.output(), job.told()
    assert job.output().count("2 copied") == 4, job.told()
    assert scratch in last_start(shop.folder / "run")["train"]["path"]
    assert e2e.curve(shop.folder / "run") == e2e.curve(whole)[:3]


@together
def test_a_copy_that_has_been_corrupted_is_found_and_made_again(shop, whole):
    if not shop.cluster.has_namespaces:
        pytest.skip("the virtual nodes have no disks of their own")
    kept = shop.cluster.folder / "scratch" / "kept"
    env = shop.site(f"NODE_SCRATCH={kept}")
    shop.train("first", "--stage", options=PAIRS, env=env, stop__steps=3).wait()
    # The nodes' scratch folders, seen from outside.
    copies = sorted((shop.cluster.folder / "node2" / "scratch" / "kept").glob("*/*/names-train-*.h5"))
    assert len(copies) == 2
    content = bytearray(copies[0].read_bytes())
    content[len(content) // 2] ^= 1
    copies[0].write_bytes(content)
    copies[1].write_bytes(copies[1].read_bytes()[:-100])
    again = shop.train("again", "--stage", options=PAIRS, env=env, stop__steps=3).wait()
    for copy in copies:
        assert f"warning: node2: {kept}/{copy.parent.parent.name}/{copy.parent.name}/{copy.name} is not what" in again.output()
        assert copy.read_bytes() == (shop.data.parent / copy.name).read_bytes()
    lines = [line for line in again.output().splitlines() if f"staged {shop.data}-train" in line]
    assert sum("node1" in line and "0 copied" in line and "2 there already" in line for line in lines) == 1, lines
    assert sum("node2" in line and "2 copied" in line and "0 there already" in line for line in lines) == 1, lines
    assert e2e.curve(shop.folder / "again") == e2e.curve(whole)[:3]


@together
def test_without_space_on_the_nodes_the_data_is_read_from_where_it_is_with_a_warning(shop, whole):
    job = shop.train("run", "--stage", options=PAIRS, env=shop.site("SCRATCH_KEEP_FREE_GB=9999999"), stop__steps=3).wait()
    assert "warning: node1: no space for" in job.output() and "warning: node2: no space for" in job.output(), job.told()
    assert e2e.curve(shop.folder / "run") == e2e.curve(whole)[:3]
    nowhere = shop.train("nowhere", "--stage", options=PAIRS, env=shop.site("NODE_SCRATCH="), stop__steps=3).wait()
    assert "warning: no staging" in nowhere.output(), nowhere.told()
    assert e2e.curve(shop.folder / "nowhere") == e2e.curve(whole)[:3]


@together
def test_a_disk_that_alters_what_is_copied_is_not_read_from(shop, whole):
    for broken_times in 1, 2:
        tools, place = shop.folder / f"tools{broken_times}", shop.folder / f"disk{broken_times}"
        tools.mkdir()
        count = tools / "count"
        (tools / "tee").write_text(f"""#!/bin/bash
            /usr/bin/tee "$@"
            echo >> {count}
            [ $(wc -l < {count}) -gt {broken_times} ] || printf x | dd of="$1" bs=1 seek=999 conv=notrunc status=none\n""")
        (tools / "tee").chmod(0o755)
        env = {"PATH": f"{tools}:{shop.cluster.environment['PATH']}"}
        done = shop.cluster.run(SCRIPTS / "stage.sh", f"{shop.data}-train", place, 0, env=env)
        assert done.returncode == 0, done.stderr
        shards = sorted(place.glob("names-train-*.h5"))
        assert [shard.is_symlink() for shard in shards] == [broken_times == 2, False], done.stdout + done.stderr
        assert [shard.read_bytes() for shard in shards] == [(shop.data.parent / s.name).read_bytes() for s in shards]
        assert "differs from what was read" in done.stderr and ("not to be trusted" in done.stderr) == (broken_times == 2)


@together
def test_a_disk_that_fills_up_is_not_read_from_and_what_was_cut_off_is_removed(shop, whole):
    tools, place = shop.folder / "tools", shop.folder / "disk"
    tools.mkdir()
    place.mkdir()
    (tools / "tee").write_text('#!/bin/bash\n/usr/bin/tee "$@"\ntruncate -s 1000 "$1"; exit 1\n')
    (tools / "tee").chmod(0o755)
    first, second = sorted(shop.data.parent.glob("names-train-*.h5"))
    (place / f"{second.name}.part").write_text("of a job that was killed")
    env = {"PATH": f"{tools}:{shop.cluster.environment['PATH']}"}
    done = shop.cluster.run(SCRIPTS / "stage.sh", f"{shop.data}-train", place, 0, env=env)
    assert done.returncode == 0 and done.stderr.count("could not be copied") == 2, done.stderr
    assert "not to be trusted" not in done.stderr
    assert {path.name for path in place.iterdir()} == {".lock", first.name, second.name}
    assert (place / first.name).is_symlink() and (place / second.name).is_symlink()
    shop.cluster.run(SCRIPTS / "stage.sh", f"{shop.data}-train", place, 0)
    (place / f"{second.name}.part").write_text("of a job that was killed")
    (place / f"{second.name}.checked").unlink()
    full = shop.cluster.run(SCRIPTS / "stage.sh", f"{shop.data}-train", place, 9999999)
    assert "no space for" in full.stderr and not (place / f"{second.name}.part").exists(), full.stderr


@together
def test_a_job_of_an_installed_program_needs_no_checkout(shop, whole):
    prefix = shop.folder / "prefix"
    done = shop.cluster.run(ROOT / ".ci" / "install.sh", env={"PREFIX": str(prefix)})
    assert done.returncode == 0, done.stderr
    share = prefix / "share" / "ringtrain"
    job = shop.submit(share / "slurm" / "train.sbatch", share / "configs" / "names.yaml", *shop.keys("run", stop__steps=4),
                      options=["--nodes=1"])
    job.wait()
    assert last_start(shop.folder / "run")["command_line"][:3] == [
        f"{share}/bin/ringtrain", "train", f"{share}/configs/names.yaml"], job.told()
    assert step_numbers(shop.folder / "run") == [1, 2, 3, 4]


# ---- Tests that run alone, since they take nodes from the others ---------------------------------------------------

@pytest.mark.parametrize("partition", ["idle", "idle_grace"])
def test_a_preempted_job_makes_room_with_a_checkpoint_is_queued_again_and_has_the_same_curve(alone, shop, whole, partition):
    job = shop.train("run", options=["--nodes=2", "--exclusive", f"--partition={partition}"])
    job.wait_for_step(shop.folder / "run", 3)
    shop.cluster.run("sbatch", "--nodes=2", "--exclusive", "--partition=urgent", "--wrap=true", cwd=shop.folder)
    said = "] Slurm queues the job again" if partition == "idle" else "] queued again; "
    until(lambda: said in job.output(), job.told)
    asked = e2e.last_step(shop.folder / "run")
    job.wait()
    assert f"resuming after step {asked} " in job.log(restart=1), job.told()
    e2e.assert_same_bits(shop.folder / "run", whole)


def test_a_job_that_loses_a_node_ends_is_queued_again_and_has_the_same_curve(alone, shop, whole):
    job = shop.train("run", options=PAIRS)
    job.wait_for_step(shop.folder / "run", 3)
    try:
        shop.cluster.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
        job.wait_for_restart()
    finally:
        shop.cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    job.wait()
    e2e.assert_same_bits(shop.folder / "run", whole)


def test_a_node_that_the_ranks_miss_before_slurm_does_is_no_error_of_the_run(alone, shop, whole):
    if not shop.cluster.has_namespaces:
        pytest.skip("the ranks of a virtual node cannot be told from the others")
    job = shop.train("run", options=PAIRS)
    job.wait_for_step(shop.folder / "run", 3)
    daemon, victim = shop.cluster.daemon("node2"), shop.cluster.rank("node2")
    os.kill(daemon, signal.SIGSTOP)  # Slurm checks its nodes only twice a minute
    try:
        os.kill(victim, signal.SIGKILL)
        until(lambda: "not every node of the job answers" in job.output(), job.told)
    finally:
        os.kill(daemon, signal.SIGCONT)
        shop.cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    job.wait_for_restart()
    job.wait()
    e2e.assert_same_bits(shop.folder / "run", whole)


def test_a_job_that_is_preempted_while_it_stages_is_queued_again(alone, shop, whole):
    # In the first start, the shell that names the folder ends with an error, however its `sleep` ends. It must not go on.
    slow = shop.site("NODE_SCRATCH='$SLURM_TMPDIR/${SLURM_RESTART_COUNT:?$(touch started; sleep 60)}'")
    job = shop.train("run", "--stage", options=["--nodes=2", "--exclusive", "--partition=idle_grace"], env=slow,
                     stop__steps=2)
    until(lambda: (shop.folder / "started").exists(), job.told)
    shop.cluster.run("sbatch", "--nodes=2", "--exclusive", "--partition=urgent", "--wrap=true", cwd=shop.folder)
    job.wait_for_restart()
    job.wait()
    assert "asked to stop before the training began" in job.output(), job.told()
