"""Tests the numbers that results/plot.py draws, and its messages about bad input."""
import importlib.util
import json
import os
import struct
import subprocess
import sys

import pytest

from conftest import HANG_SECONDS, ROOT

SCRIPT = ROOT / "results" / "plot.py"
sys.path.insert(0, str(ROOT / "results"))


@pytest.fixture(scope="module")
def plot():
    spec = importlib.util.spec_from_file_location("plot", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder, losses):
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": i, "loss": loss, "elapsed_seconds": 2.0 * i}) for i, loss in enumerate(losses, 1)]
    lines.insert(2, json.dumps({"step": 2, "validation_loss": 7.5}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 9, "lo')
    return folder


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=HANG_SECONDS)


def test_records_are_read_and_a_line_that_was_cut_off_is_told(plot, tmp_path, capsys):
    records = plot.read_run(write_run(tmp_path / "a", [4.0, 3.0, 2.0]) / "metrics.jsonl")
    assert [r["step"] for r in records] == [1, 2, 2, 3]
    assert "line 5: not JSON" in capsys.readouterr().err
    assert plot.points(records, "step", "loss") == ([1, 2, 3], [4.0, 3.0, 2.0])
    # An evaluation has no time of its own and takes that of the step before it.
    assert plot.points(records, "seconds", "validation_loss") == ([4.0], [7.5])


def test_smoothing_is_the_mean_of_the_last_values(plot):
    assert plot.smoothed([4.0, 2.0, 6.0, 1.0], 2) == [4.0, 3.0, 4.0, 3.5]
    assert plot.smoothed([4.0, 2.0], 1) == [4.0, 2.0]
    values = [float(n * n % 7) for n in range(23)]
    assert plot.smoothed(values, 5) == pytest.approx([sum(values[max(0, n - 4):n + 1]) / min(5, n + 1) for n in range(23)])
    assert plot.smoothed([1e20, *[2.0] * 7], 3)[3:] == [2.0] * 5  # the step at which a run nearly fell apart


def test_runs_are_named_by_the_shortest_end_that_tells_them_apart(plot, tmp_path):
    paths = [write_run(tmp_path / name / "first", [1.0]) / "metrics.jsonl" for name in ("names", "text")]
    assert [plot.label(path, paths) for path in paths] == ["names/first", "text/first"]


@pytest.mark.thorough
def test_two_runs_are_drawn_into_one_picture(tmp_path):
    pytest.importorskip("matplotlib")
    runs = [write_run(tmp_path / name, [5.0, 4.0, 3.0]) for name in "ab"]
    sizes = {}
    for panels, words in {1: [], 2: ["--y", "loss", "validation_loss", "--log", "--x", "seconds"]}.items():
        picture = tmp_path / f"{panels}.png"
        done = run(*runs, "-o", picture, *words)
        assert done.returncode == 0 and f"wrote {picture}" in done.stdout, done.stderr
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG")
        sizes[panels] = struct.unpack(">II", content[16:24])
    assert sizes == {1: (960, 600), 2: (960, 1080)}  # a panel is 4 inches high


def test_many_runs_have_colors_of_their_own_and_a_legend_beside_the_curves(plot, tmp_path):
    to_rgba = pytest.importorskip("matplotlib.colors").to_rgba
    runs = {f"run {i:02}": plot.read_run(write_run(tmp_path / str(i), [5.0, 4.0, 3.0 + i]) / "metrics.jsonl") for i in range(24)}
    for count, beside in (3, False), (24, True):
        few = dict(list(runs.items())[:count])
        figure = plot.draw(few, "step", [["loss", "validation_loss"]], False, 0)
        axis, = figure.axes
        colors = {to_rgba(line.get_color()) for line in axis.lines}
        assert len(colors) == count
        figure.canvas.draw()
        curves, legend = axis.get_window_extent(), axis.get_legend().get_window_extent()
        assert (legend.x0 > curves.x1) == beside
        assert legend.x1 <= figure.bbox.x1 and curves.width > 0.5 * figure.bbox.width


@pytest.mark.parametrize("count", [2, 8])
def test_names_are_drawn_as_they_are_and_numbers_are_no_formulas(plot, tmp_path, count):
    """Matplotlib takes what stands between two $ for a formula, and leaves names that begin with _ out of a legend."""
    pytest.importorskip("matplotlib")
    runs = {name: plot.read_run(write_run(tmp_path / name, [5.0, 4.0, 3.0]) / "metrics.jsonl")
            for name in ["_a$b^{$<b>", "$x$", *(f"_{i}" for i in range(2, count))]}
    figure = plot.draw(runs, "step", [["loss", "validation_loss"]], True, 2)
    axis, = figure.axes
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == [f"{name}: {key}" for name in runs for key in ("loss", "validation loss")]
    figure.savefig(tmp_path / "a.svg")
    svg = (tmp_path / "a.svg").read_text()
    assert "DejaVuSans-24" in svg, "the $ itself (hexadecimal 24) is drawn"
    assert "mathdefault" not in svg
    low, high = axis.get_ylim()
    shown = [text.get_text() for text in axis.get_yticklabels() if low <= text.get_position()[1] <= high]
    assert len(shown) > 2 and all(float(text) > 0 for text in shown), shown


def test_what_is_no_run_among_others_is_told_and_left_out(tmp_path):
    pytest.importorskip("matplotlib")
    write_run(tmp_path / "a", [5.0, 4.0, 3.0])
    (tmp_path / "b" / "checkpoints").mkdir(parents=True)
    (tmp_path / "study.json").write_text("{}\n" * 5)
    (tmp_path / "latest").symlink_to("a")
    picture = tmp_path.parent / f"{tmp_path.name}.png"
    done = run(*sorted(tmp_path.iterdir()), "-o", picture)
    assert done.returncode == 0 and picture.exists(), done
    told = [line for line in done.stderr.splitlines() if line.endswith("; left out") and "line " not in line]
    assert [word in line for word, line in zip(("b/metrics.jsonl does not exist", "study.json is neither"), told)] == [True, True], done.stderr
    done = run(tmp_path / "b", tmp_path / "study.json")
    assert done.returncode == 1 and "error: " in done.stderr and "b/metrics.jsonl does not exist" in done.stderr, done


@pytest.mark.parametrize("kind", ["utilisation", "split"])
def test_the_tables_of_bench_have_a_color_for_each_line(kind):
    to_rgba = pytest.importorskip("matplotlib.colors").to_rgba
    import plot_bench
    if kind == "utilisation":
        row = {"ranks": "1", "threads": "1", "model": "cnn", "image_size": "32", "precision": "fp32", "matrix_gflops": "10", "limit_mib": "100",
               "samples_per_second": "5", "share_of_matrix_rate": "0.5", "memory_mib": "10", "fits": "yes"}
        figure = plot_bench.draw_utilisation({str(i): [{**row, "batch_per_rank": str(2**i)}] for i in range(12)})
    else:
        row = {"experiment": "e", "stages": "2", "ranks": "2", "schedule": "1f1b", "samples_per_second": "5", "split_size": "8"}
        figure = plot_bench.draw_split([{**row, "cuts": str(i)} for i in range(12)])
    lines = [line for line in figure.axes[0].lines if line.get_label() != "fastest"]
    assert len(lines) == 12 == len({to_rgba(line.get_color()) for line in lines})


def test_bench_tables_are_named_by_what_tells_their_files_apart(tmp_path):
    import plot_bench

    paths = [tmp_path / gpu / "bench" / "utilisation.csv" for gpu in ("a100", "h100")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("batch_per_rank,fits\n1,yes\n")
    assert list(plot_bench.read_all([*paths, paths[0]])) == ["a100/bench/utilisation", "h100/bench/utilisation"]
    assert list(plot_bench.read_all(paths[:1])) == ["utilisation"]


def test_a_python_without_matplotlib_hands_over_to_one_that_has_it(tmp_path):
    pytest.importorskip("matplotlib")
    words = [SCRIPT, write_run(tmp_path / "run", [5.0, 4.0]), "-o", tmp_path / "loss.png"]
    bare = [sys.executable, "-S", "-E"]  # without the distribution's packages
    here = {"PATH": os.environ["PATH"], "PYTHON": sys.executable}
    done = subprocess.run([*bare, *words], env=here, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0 and (tmp_path / "loss.png").exists(), done
    done = subprocess.run([*bare, *words], env={**here, "RINGTRAIN_PYTHON_TRIED": "1"}, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1 and "no Python with matplotlib was found" in done.stderr and "Traceback" not in done.stderr, done


@pytest.mark.parametrize("words, expected", [
    (["nowhere"], "nowhere does not exist; a run is a folder with a metrics.jsonl"),
    (["empty"], "has no records"),
    (["good", "--y", "speed"], "none of the runs has speed against step"),
    (["good", "-o", "missing/loss.png"], "missing/loss.png cannot be written: No such file"),
    (["good", "-o", "loss.txt"], "loss.txt cannot be written: Format 'txt' is not supported"),
])
def test_a_mistake_is_one_sentence(tmp_path, words, expected):
    pytest.importorskip("matplotlib")
    write_run(tmp_path / "good", [1.0, 2.0])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").write_text("")
    done = run(*[word if word.startswith("-") or word == "speed" else tmp_path / word for word in words])
    assert done.returncode == 1 and expected in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_format_that_bench_tables_cannot_have_is_one_sentence(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "split.csv").write_text("experiment,stages,ranks,schedule,samples_per_second,split_size,cuts\ne,2,2,1f1b,5,8,1\n")
    words = [SCRIPT.with_name("plot_bench.py"), tmp_path / "split.csv", "-o", tmp_path / "split.txt"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1 and "split.txt cannot be written: Format 'txt' is not supported" in done.stderr, done
    assert len(done.stderr.splitlines()) == 1, done


@pytest.mark.parametrize("content, words", [
    (b"split_size\n8\n", "there is no column 'cuts'"),
    (b"split_size,cuts,samples_per_second\n8,1,fast\n", "could not convert string to float: 'fast'"),
    (b"split_size,cuts,samples_per_second\n8,1\n", "could not convert string to float: ''"),
    (b"split_size,\xff\n8,1\n", "table.csv is no CSV file"),
    (b"batch_per_rank,fits\n1,yes\n", "there is no column 'ranks'"),
])
def test_a_bench_table_that_was_changed_is_one_sentence(tmp_path, content, words):
    pytest.importorskip("matplotlib")
    (tmp_path / "table.csv").write_bytes(content)
    command = [sys.executable, SCRIPT.with_name("plot_bench.py"), tmp_path / "table.csv", "-o", tmp_path / "a.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1 and words in done.stderr and "table.csv" in done.stderr and done.stderr.count("\n") == 1, done


@pytest.mark.thorough
def test_a_small_png_keeps_the_colours_of_thin_lines(tmp_path):
    numpy, pyplot = pytest.importorskip("numpy"), pytest.importorskip("matplotlib.pyplot")
    from matplotlib import image
    from reporting import pictures
    figure, axes = pyplot.subplots(3, 3, figsize=(13, 13))
    for axis in axes.flat:
        for i in range(10):
            axis.plot([0, 1], [i, i + 0.5], f"C{i}", linewidth=1 if i % 3 else 4)
    pictures.save(figure, tmp_path / "small.png")
    figure.savefig(tmp_path / "large.png", dpi=120)
    pyplot.close(figure)
    small, large = (image.imread(tmp_path / f"{name}.png")[:, :, :3] for name in ("small", "large"))
    assert small.shape == large.shape and numpy.abs(small - large).max() < 0.12
    assert (tmp_path / "small.png").stat().st_size < 0.6 * (tmp_path / "large.png").stat().st_size
