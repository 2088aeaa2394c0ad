"""Tests the scaled-down studies. Every trial of each study is planned on its own data, and `make study` runs studies
and reports them."""
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import h5py
import pytest
import yaml

from conftest import HANG_SECONDS, ROOT, environment

TWINS = sorted((ROOT / "configs" / "studies").glob("twin_*.yaml"))
WORDS = "/usr/share/dict/words"


def names_model(path):
    study = yaml.safe_load(path.read_text())
    return yaml.safe_load((path.parent / study["experiment"]).read_text())["model"]["kind"] == "char_lstm"


@pytest.fixture(scope="module")
def proper_names(tmp_path_factory):
    if not os.path.exists(WORDS):
        pytest.skip(f"there is no word list at {WORDS} (Debian: wamerican)")
    folder = tmp_path_factory.mktemp("proper")
    subprocess.run([ROOT / "data_prep" / "study_data.sh", "names"], env=environment({"DATA": str(folder)}), check=True,
                   capture_output=True, timeout=HANG_SECONDS)
    return folder / "names"


@pytest.mark.parametrize("path", TWINS, ids=lambda path: path.stem)
def test_every_trial_of_a_twin_is_planned(workshop, request, path):
    words = []
    if names_model(path):
        names = request.getfixturevalue("proper_names")
        words = [f"data.train={names}-train", f"data.validation={names}-validation"]
    result = workshop.run("study", path, "--plan", *words, ranks=0)
    assert result.code == 0 and "trial " in result.out, result


@pytest.mark.parametrize("words", [[], ["report", "name", "more"]])
def test_a_wrong_call_of_the_record_prints_its_usage(words):
    done = subprocess.run([ROOT / "results" / "study_record.sh", *words], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stderr) == (2, "usage: results/study_record.sh REPORT_FOLDER [NAME]\n")


class Shop:
    """Runs results/study.sh on a study of its own. Its results lie in the shared folder and are removed at the end."""

    def __init__(self, folder):
        self.folder, self.name = folder, f"e2e-twin-{os.getpid()}"
        self.results, self.report = ROOT / "results" / self.name, folder / "report"
        self.data = folder / "data"

    def write(self, **changes):
        experiment = {
            "name": "e2e-twin", "seed": 1, "model": {"kind": "char_lstm", "hidden": 8, "layers": 1, "dropout": 0},
            "data": {"train": f"{self.data}/names-train", "validation": f"{self.data}/names-validation"},
            "batch": {"global": 256, "worker": 16}, "learning_rate": {"base": 0.01}, "stop": {"steps": 30},
            "evaluate": {"every_epochs": 0, "every_steps": 10}, "run": {"threads": 1}, **changes.pop("experiment", {})}
        (self.folder / "small.yaml").write_text(yaml.safe_dump(experiment))
        study = {"name": self.name, "experiment": "small.yaml", "vary": {"learning_rate.base": [0.01, 0.02]}, **changes}
        (self.folder / "study.yaml").write_text("# A small study\n" + yaml.safe_dump(study, sort_keys=False))

    def start(self, **extra):
        extra = {"STUDIES": str(self.folder / "study.yaml"), "DATA": str(self.data), "REPORT": str(self.report), "RANKS": "2",
                 "PYTHON": sys.executable, **extra}
        return subprocess.Popen([ROOT / "results" / "study.sh"], env=environment(extra), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def run(self, **extra):
        process = self.start(**extra)
        out, err = process.communicate(timeout=HANG_SECONDS)
        return process.returncode, out, err

    def states(self):
        return {t["name"]: t["state"] for t in json.loads((self.results / "study.json").read_text())["trials"]}


@pytest.fixture
def shop(tmp_path, digits_of):
    shop = Shop(tmp_path)
    shop.digits = digits_of
    os.environ["DIGITS"] = str(digits_of)
    yield shop
    del os.environ["DIGITS"]
    shutil.rmtree(shop.results, ignore_errors=True)


@pytest.fixture(scope="module")
def digits_of(tmp_path_factory):
    """Makes a file like scikit-learn's, so that nothing is downloaded."""
    import gzip
    path = tmp_path_factory.mktemp("digits") / "digits.csv.gz"
    rows = (",".join([*(str((i * 7 + j * j * (i % 13)) % 17) for j in range(64)), str(i % 10)]) for i in range(1797))
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    return path


def record(shop, **extra):
    return subprocess.run([ROOT / "results" / "study_record.sh", shop.report, shop.name], capture_output=True, text=True,
                          env=environment({"PYTHON": sys.executable, **extra}), timeout=HANG_SECONDS)


def same_cell(old, new):
    """Numbers have six digits."""
    return new == old or abs(float(new) - float(old)) <= 1e-5 * abs(float(old)) and len(new) < len(old)


def check_kept(shop):
    """Checks `make study-record`. Figures are kept once, in smaller files. A record that would be too large changes
    nothing."""
    kept = ROOT / "results" / "studies" / shop.name
    try:
        done = record(shop, RECORD_MIB="0.01")
        assert done.returncode == 1 and "MiB; RECORD_MIB allows 0.01" in done.stderr and not kept.exists(), done
        done = record(shop)
        assert done.returncode == 0, done
        before, after = (sorted(p.relative_to(f) for p in (f / "report").iterdir()) for f in (shop.report, kept))
        courses = {Path(f"report/{name}.csv") for name in ("losses", "rate_course", "noise_scale", "batch_course")}
        assert len(courses & set(before)) > 1 and after == [p for p in before if p.suffix != ".png" and p not in courses]
        assert (kept / "studies" / "study.yaml").exists() and "| study |" in (kept / "README.md").read_text()
        for name in after:
            old, new = (shop.report / name).read_text(), (kept / name).read_text()
            if name.suffix == ".csv":
                cells = [re.split("[,\n]", text) for text in (old, new)]
                assert len(cells[0]) == len(cells[1]) and all(map(same_cell, *cells)), name
            else:
                assert len(new) < 0.5 * len(old), name
        page = (kept / "report.html").read_text()
        links = set(re.findall(r'(?:href|src)="([^"#]+)"', page))
        assert links == {str(name) for name in after} and "<svg" not in page, links
        assert page.count("<img ") == sum(name.suffix == ".svg" for name in after)
        done = record(shop, RECORD_MIB="0.01")
        assert done.returncode == 1 and (kept / "report.html").read_text() == page, done
    finally:
        shutil.rmtree(kept, ignore_errors=True)
        assert not kept.with_name(kept.name + ".tmp").exists()
        if not any(kept.parent.iterdir()):
            kept.parent.rmdir()


def svg_of(drawing):
    file = io.StringIO()
    drawing.savefig(file, format="svg")
    return file.getvalue()


def module_of_smaller():
    sys.path.insert(0, str(ROOT / "results"))
    try:
        from reporting import small_svg
    finally:
        sys.path.pop(0)
    return small_svg


def test_markers_of_equal_style_keep_it_in_their_definition():
    """A browser may not find the rule of a class in the copy that <use> makes of a definition: such markers were black."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axis = pyplot.subplots()
    for size in (4, 8):
        axis.plot([1, 2], [1, 2], marker="o", markersize=size, color="#0072b2", linestyle="")
    small_svg, before = module_of_smaller(), svg_of(figure)
    pyplot.close(figure)
    root = ElementTree.fromstring(small_svg.smaller(before))
    defined = [element for defs in root.iter(small_svg.NAMESPACE + "defs") for element in defs.iter() if element.get("id")]
    assert len([e for e in defined if "fill:#0072b2" in (e.get("style") or "")]) == 2 and not any(e.get("class") for e in defined)


def test_a_smaller_figure_shows_the_same():
    """Draws lines, markers, dotted hatches and turned letters. The smaller file has their texts and markers, and lines
    of fewer points."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axis = pyplot.subplots()
    # The small waves are 0.2 points high, so they cannot be seen. Matplotlib keeps them.
    axis.plot(range(501), [abs(i - 250) / 50 + 0.004 * (i % 2) for i in range(501)], marker="o", markevery=100, label="a < b")
    axis.bar([100, 400], [3, 4], width=50, hatch="...", color="#aabbcc")
    axis.set_xscale("symlog")
    axis.set_ylabel("a turned label", color="#123456")
    axis.legend()
    with pyplot.rc_context({"svg.fonttype": "path"}):
        before = svg_of(figure)
    pyplot.close(figure)
    small_svg = module_of_smaller()
    after = small_svg.smaller(before)
    root = ElementTree.fromstring(after)
    texts = {element.text: element for element in root.iter(small_svg.NAMESPACE + "text")}
    assert {"a < b", "a turned label", "10", "0"} <= set(texts) and "rotate(-90)" in after, texts
    assert 60 < float(texts["a turned label"].get("textLength")) < 80
    assert "fill:#123456" in after
    links = re.findall(r"url\(#(\w+)\)|<use href=\"#(\w+)\"", after)
    assert {a or b for a, b in links} <= {element.get("id") for element in root.iter()}
    markers = re.findall(r"<use [^>]*", after)
    assert len(markers) == 7 and all("y=" in marker for marker in markers)  # ticks are no markers any more
    drawn = [len(re.findall(r"<(?:path|use)(?![^>]*DejaVu)", svg)) for svg in (before, after)]
    assert drawn[1] < 0.7 * drawn[0], drawn
    assert after.count("<pattern") == before.count("<pattern") == 1 and 'width="72"' not in after
    points = [max(re.findall(r'd="[mM]([^mMzZ"]*)"', svg), key=len) for svg in (before, after)]
    points = [len(re.findall(r"-?(?:\d+\.?\d*|\.\d+)", line)) // 2 for line in points]
    assert points[0] > 150 and 2 < points[1] < 80, points


@pytest.mark.thorough
def test_a_study_is_run_reported_and_kept(shop):
    shop.write()
    code, out, err = shop.run()
    assert code == 0, out + err
    assert set(shop.states().values()) == {"finished"} and len(shop.states()) == 2
    page = (shop.report / "report.html").read_text()
    assert "<svg" in page and f"The report: {shop.report}/report.html" in out
    record = (shop.report / "README.md").read_text()
    assert f"| {shop.name} | 2 |" in record and "bin/ringtrain study" in record and "| machine |" in record
    check_kept(shop)
    # A second call finds nothing to do, and the trials are the same.
    before = {p: p.stat().st_mtime_ns for p in shop.results.glob("*/metrics.jsonl")}
    code, out, err = shop.run()
    assert code == 0 and before == {p: p.stat().st_mtime_ns for p in shop.results.glob("*/metrics.jsonl")}, out + err


@pytest.mark.thorough
def test_a_failed_trial_is_told_at_the_end(shop):
    shop.write(vary={"data.train": [f"{shop.data}/names-train", f"{shop.data}/broken-train"]})
    shop.data.mkdir()
    subprocess.run([ROOT / "data_prep" / "study_data.sh", "names"], env=environment({"DATA": str(shop.data)}), check=True,
                   capture_output=True)
    for path in shop.data.glob("names-train-*"):
        broken = shutil.copy(path, str(path).replace("names-", "broken-"))
        with h5py.File(broken, "r+") as file:
            file["tokens"][::100] ^= 1  # found by the checksums when a block is read
    code, out, err = shop.run()
    assert code == 1 and f"error: failed: {shop.name}; " in err, out + err
    assert sorted(shop.states().values()) == ["failed", "finished"], shop.states()
    assert (shop.report / "report.html").exists()


@pytest.mark.thorough
def test_after_a_signal_it_goes_on(shop):
    shop.write(experiment={"stop": {"steps": 1500}})
    process = shop.start()
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 0 for p in shop.results.glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 85 and "goes on where it was" in err, out + err
    shop_code, out, err = shop.run()
    assert shop_code == 0 and set(shop.states().values()) == {"finished"}, out + err
    starts = [len(json.loads(p.read_text())["starts"]) for p in shop.results.glob("*/run.json") if not p.parent.is_symlink()]
    assert max(starts) == 2, starts
