"""Tests the measurements of a job's nodes, and the predictions for other numbers of ranks."""
import csv
import json
import re
import subprocess

import pytest

from conftest import LAUNCHER, PROGRAM, ROOT, Job, assert_drawn

QUICK = ["--seconds", "0.3"]


def bench(workshop, file, *words, ranks=1):
    result = workshop.run("bench", *words, *QUICK, "--json", file, ranks=ranks)
    assert result.code == 0, result
    return json.loads(file.read_text()), result


# The keys with which `bench` describes the model of workshop.experiment().
MODEL = ("precision=fp32 model.kind=char_lstm model.hidden=16 model.layers=2 model.dropout=0.2 model.initial=he model.forget_bias=0 "
         "data.sequence=64 data.image_size=224")


@pytest.fixture
def preflight(workshop):
    """Invented measurements: 1 ms + 0.1 ms a sample in the forward pass, twice that in the backward pass, 2 ranks a
    node."""
    passes = [{"micro_batch": m, "forward": 1e-3 + 1e-4 * m, "backward": 2e-3 + 2e-4 * m} for m in (8, 32)]
    step = {"model": MODEL, "micro_batch": 32, "accumulation": 1, "rows_per_rank": 32,
            "forward": 4.2e-3, "backward": 8.4e-3, "update": 1e-3, "passes": passes, "jitter": 0.01, "full_node_pass": 0,
            "shared_pass": 0, "shared_step": 0, "seconds": 13.6e-3, "input_seconds": 0, "input_wait": 0,
            "parameters": 5000, "elements": 5120, "bucket_mib": 1, "element_bytes": 4, "watermark": [[0.5, 0.4], [1, 1]],
            "ranks": 1, "ranks_per_node": 1, "threads": 1, "cores_per_node": 2, "on_device": False, "whole_workers": False}
    file = workshop.folder / "preflight.json"
    file.write_text(json.dumps({
        "version": "made up", "hosts": ["node1"], "ranks": 2, "ranks_per_node": 2, "step": step,
        "fit": {"node": {"alpha": 1e-6, "beta": 1e-10}, "network": {"alpha": 1e-5, "beta": 1e-9}}}))
    return file


def test_predict_takes_the_recorded_step_of_the_simulation(workshop):
    """Measurements stay valid when models of other kinds get new keys."""
    measured = json.loads((ROOT / "tests" / "simulate" / "resnet50_step.json").read_text())
    measured["fit"] = {"node": {"alpha": 1e-6, "beta": 1e-10}, "network": {"alpha": 1e-5, "beta": 1e-9}}
    file = workshop.folder / "measured.json"
    file.write_text(json.dumps(measured))
    result = workshop.run("predict", ROOT / "configs" / "imagenet_resnet50_8192.yaml", "--ranks", "16", "--preflight", file, ranks=0)
    assert result.code == 0, result


def test_predict_refuses_what_is_no_ring_and_says_what_it_takes_sharded_state_for(workshop, preflight):
    for parallel, why in [({"kind": "server", "mode": "async"}, "no common step"),
                          ({"kind": "server", "backup_workers": 1}, "does not wait for all gradients"),
                          ({"kind": "server", "servers": 2}, "go to parameter servers"),
                          ({"kind": "pipeline"}, "bench split measures pipelines")]:
        result = workshop.run("predict", workshop.experiment(parallel=parallel), "--preflight", preflight, ranks=0)
        assert result.code != 0 and why in result.err and "parallel.kind=ring" in result.err, result
    for sharded in (False, True):
        experiment = workshop.experiment(parallel={"shard_state": sharded})
        result = workshop.run("predict", experiment, "--preflight", preflight, "--ranks", "1,2", ranks=0)
        assert result.code == 0 and ("a reduce-scatter and an all-gather" in result.out) == sharded, result


@pytest.mark.thorough
def test_all_kinds_are_measured_into_one_file(workshop):
    file = workshop.folder / "preflight.json"
    experiment = workshop.experiment()
    comm, result = bench(workshop, file, "comm", ranks=2)
    assert comm["ranks"] == comm["ranks_per_node"] == 2 and len(comm["hosts"]) == 1
    assert {s["scope"] for s in comm["comm"]} == {"node"} and all(s["seconds"] > 0 for s in comm["comm"])
    alone = [s for s in comm["comm"] if s.get("sums", 1) == 1]
    assert len({s["bytes"] for s in alone}) >= 3
    # The fitted link explains what was measured, except on a machine with other work, whose outliers weigh less. A ring
    # of two ranks sends two messages of half the bytes.
    fit = comm["fit"]["node"]
    ratios = [(2 * fit["alpha"] + s["bytes"] * fit["beta"]) / s["seconds"] for s in alone]
    assert sum(1 / 2 < ratio < 2 for ratio in ratios) >= 2, (fit, alone)
    assert comm["clock_skew_seconds"] == [0] and comm["versions_equal"]
    assert "GB/s" in result.out
    both, _ = bench(workshop, file, "input", "step", experiment, ranks=2)
    assert both["comm"] == comm["comm"], "what was not measured again stays"
    assert both["input"][0]["host"] == comm["hosts"][0] and both["input"][0]["bytes_per_second"] > 0
    assert both["input"][0]["samples_per_second"] > 0
    step = both["step"]
    assert step["micro_batch"] * step["accumulation"] == step["rows_per_rank"] == 16
    # A part is a difference of two times. On a machine with other work, a small one may come out as 0.
    assert min(step[part] for part in ("forward", "backward", "update", "parameters")) >= 0 and step["forward"] + step["backward"] > 0
    parts = step["accumulation"] * (step["forward"] + step["backward"]) + step["update"]
    assert parts < step["seconds"] * 10  # on a machine with other work, the sums take most of a step
    assert step["elements"] >= step["parameters"] and step["passes"][-1]["micro_batch"] >= step["micro_batch"]
    assert step["watermark"][-1][1] == 1, "the last point is the whole gradient"


@pytest.mark.thorough
def test_a_file_of_another_job_is_refused_and_stays(workshop):
    file = workshop.folder / "preflight.json"
    bench(workshop, file, "comm", ranks=2)
    before = file.read_bytes()
    result = workshop.run("bench", "step", workshop.experiment(), *QUICK, "--json", file, ranks=1)
    assert result.code == 1 and file.read_bytes() == before, result
    assert re.search(r"preflight.json has measurements of 2 ranks on \S+, but this job has 1 rank on ", result.err), result
    assert "another file" in result.err, result


@pytest.mark.thorough
def test_a_sum_that_was_too_slow_to_measure_has_no_time(workshop):
    result = workshop.run("bench", "comm", "--seconds", "0.01", ranks=2)
    assert result.code == 0, result
    (table,) = re.findall(r"us a sum of bytes .*\n((?: +\d+ .*\n)+)", result.out)
    times = [line.split()[1:] for line in table.splitlines()]
    assert all(time == "-" or float(time) > 0 for line in times for time in line), table


@pytest.mark.thorough
def test_what_bench_writes_predict_reads(workshop):
    file, other, experiment = workshop.folder / "preflight.json", workshop.folder / "other.json", workshop.experiment()
    bench(workshop, file, "comm", "input", "step", experiment, ranks=2)
    bench(workshop, other, "step", experiment, ranks=1)
    words = ["predict", experiment, "--ranks", "1..4096", "--preflight", file, "--check"]
    result = workshop.run(*words, other, ranks=0)
    assert result.code == 0, result
    assert "4096" in result.out, result
    compared = re.findall(r"^measured on (\d+) ranks \(\d+ a node\), (fitted|not fitted): ", result.out, re.MULTILINE)
    assert compared == [("2", "fitted"), ("1", "not fitted")], result
    assert "no network was measured" in result.err, result
    result = workshop.run(*words, file, ranks=0)
    assert result.code == 1 and f"--check {file} is also a file that is fitted" in result.err, result


def test_predictions_are_the_same_in_csv_and_json_and_are_drawn(workshop, preflight):
    out = {kind: workshop.folder / f"predicted.{kind}" for kind in ("csv", "json")}
    options = [word for kind, path in out.items() for word in (f"--{kind}", path)]
    result = workshop.run("predict", workshop.experiment(), "--ranks", "1..64", "--preflight", preflight, *options, ranks=0)
    assert result.code == 0, result
    rows = list(csv.DictReader(out["csv"].open()))
    measured = [r for r in rows if r["scaling"] == "measured"]
    rows = [r for r in rows if r["scaling"] != "measured"]
    stored = json.loads(out["json"].read_text())
    assert rows and len(rows) == len(stored["rows"])
    assert [(int(r["ranks"]), float(r["step_seconds"])) for r in measured] == [
        (c["ranks"], pytest.approx(c["measured_seconds"], rel=1e-4)) for c in stored["comparisons"]]
    weak = [r for r in rows if r["scaling"] == "weak" and r["chosen"] == "true"]
    assert {r["topology"] for r in rows if r["nodes"] == "1"} == {"flat"}
    assert {r["topology"] for r in rows if r["nodes"] != "1"} == {"flat", "hierarchical"}
    assert [int(r["ranks"]) for r in weak] == [1, 2, 4, 8, 16, 32, 64]
    assert float(weak[0]["step_seconds"]) == pytest.approx(13.6e-3)
    for row in rows:
        assert float(row["samples_per_second"]) == pytest.approx(int(row["global_batch"]) / float(row["step_seconds"]), rel=1e-3)
        assert float(row["step_seconds_low"]) <= float(row["step_seconds"]) <= float(row["step_seconds_high"])
        assert int(row["nodes"]) == (int(row["ranks"]) + 1) // 2
    efficiency = [float(r["efficiency"]) for r in weak]
    assert efficiency == sorted(efficiency, reverse=True) and efficiency[0] == 1
    assert_drawn(out["csv"])


def test_sums_that_cpus_do_not_have_are_refused_with_their_advice(workshop, preflight):
    result = workshop.run("predict", workshop.experiment(), "--preflight", preflight, "--ranks", "2", "communication.algorithm=tree", ranks=0)
    assert result.code == 1 and "choose auto, ring, halving, hierarchical or mpi; tree is NCCL's" in result.err, result


def test_a_prediction_in_a_job_is_made_once(workshop, preflight):
    words = ["predict", workshop.experiment(), "--ranks", "1..4", "--preflight", preflight]
    alone, job = (workshop.run(*words, ranks=ranks) for ranks in (0, 2))
    assert alone.code == 0 and job.code == 0 and job.out == alone.out, job


def test_rows_of_ranks_that_share_cores_say_so(workshop, preflight):
    def table(*words):
        result = workshop.run("predict", workshop.experiment(), "--preflight", preflight, "--ranks", "1..4", *words, ranks=0)
        assert result.code == 0, result
        return result.out
    assert "cores shared" not in table("--ranks-per-node", 4, "--cores-per-node", 4)
    shared = table("--ranks-per-node", 4)
    assert [line.split()[0] for line in shared.splitlines() if line.endswith(", cores shared")] == ["4", "4"], shared
    assert "not measured" in shared, shared
    with_two = json.loads(preflight.read_text())
    with_two["step"].update(ranks=2, ranks_per_node=2, shared_pass=26e-3, shared_step=28e-3)
    preflight.write_text(json.dumps(with_two))
    assert "measured with two" in table("--ranks-per-node", 4)


def test_the_experiments_batch_ends_at_its_virtual_workers_and_says_so(workshop, preflight):
    result = workshop.run("predict", workshop.experiment(), "--ranks", "1..16", "--preflight", preflight, ranks=0)
    assert result.code == 0 and "not on 8, 16 ranks" in result.out, result


@pytest.mark.parametrize("words, expected", [
    (["bench"], "comm, input, step, split, utilisation and components"),
    (["bench", "speed", "a.yaml"], "comm, input, step, split, utilisation and components"),
    (["bench", "step"], "experiment"),
    (["predict"], "experiment"),
    (["predict", "EXPERIMENT"], "ringtrain bench"),
    (["predict", "EXPERIMENT", "--preflight", "EXPERIMENT"], "JSON"),
    (["predict", "EXPERIMENT", "--preflight", "PREFLIGHT", "--ranks", "many"], "many"),
    (["predict", "EXPERIMENT", "--preflight", "PREFLIGHT", "model.hidden=24"], "model.hidden=24"),
    (["predict", "EXPERIMENT", "--preflight", "PREFLIGHT", "--latency-us", "5"], "--link-gbit"),
])
def test_a_mistake_is_one_sentence(workshop, preflight, words, expected):
    names = {"EXPERIMENT": workshop.experiment(), "PREFLIGHT": preflight}
    result = workshop.run(*[names.get(word, word) for word in words], ranks=0, cwd=workshop.folder.parent)
    assert result.code not in (0, 85) and expected in result.err, result
    assert result.err.count("ringtrain: error") == 1, result


@pytest.mark.thorough
def test_several_nodes_are_measured_inside_between_and_over_all(workshop):
    """The two nodes exist by name only: each pair of ranks sees its own host name."""
    host = "hostname n$((${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} / 2)) && exec \"$@\""
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode != 0:
        pytest.skip("no right to give processes a host name (unshare --uts)")
    file = workshop.folder / "preflight.json"
    env = {"OMPI_MCA_btl_vader_backing_directory": str(workshop.folder)}
    job = Job([LAUNCHER, 4, "unshare", "--uts", "sh", "-c", host, "-", PROGRAM, "bench", "comm", "input",
               workshop.experiment(), "--link-gbit", "10", "--seconds", "1", "--json", file], workshop.folder / "job", env)
    workshop.jobs.append(job)
    result = job.wait()
    assert result.code == 0, result
    measured = json.loads(file.read_text())
    assert measured["hosts"] == ["n0", "n1"] and measured["ranks_per_node"] == 2
    ranks = {(s["scope"], s["ranks"]) for s in measured["comm"]}
    assert ranks == {("node", 2), ("network", 2), ("all", 4)}, ranks
    assert measured["fit"].keys() == {"node", "network", "all"}
    assert [i["host"] for i in measured["input"]] == ["n0", "n1"]
    assert len(measured["clock_skew_seconds"]) == 2 and abs(measured["clock_skew_seconds"][1]) < 1
    assert "% of the link" in result.out, result
