"""Tests `make install`. What it puts into an empty prefix must work from there, without the checkout."""
import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import HANG_SECONDS, LAUNCHER, ROOT, curve, environment

VARIABLES = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LD_LIBRARY_PATH")}


def install(prefix, **variables):
    done = subprocess.run([ROOT / ".ci" / "install.sh"], env={**environment(), "PREFIX": str(prefix), **variables},
                          text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("install") / "empty"
    install(folder)
    return folder


def run(prefix, *words, cwd):
    """Runs a command with the prefix's programs first on PATH."""
    return subprocess.run([str(word) for word in words], cwd=cwd, text=True, capture_output=True, timeout=HANG_SECONDS,
                          env={**VARIABLES, "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"})


@pytest.mark.thorough
def test_an_installed_program_trains_and_is_plotted(prefix, workshop):
    run_dir = workshop.folder / "run"
    experiment = workshop.experiment(stop__steps=3)
    done = run(prefix, LAUNCHER, 2, "ringtrain", "train", experiment, f"run.dir={run_dir}", cwd=workshop.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert curve(run_dir) == curve(workshop.train("built", ranks=2, stop__steps=3))
    share = prefix / "share" / "ringtrain"
    done = run(prefix, share / "results" / "plot.py", run_dir, "-o", "loss.png", cwd=workshop.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(prefix, "ringtrain-data", "verify", workshop.data, cwd=workshop.folder)
    assert done.returncode == 0 and "no faults found" in done.stdout, done


def test_the_installed_experiments_are_those_of_the_checkout(prefix, tmp_path):
    configs = sorted((prefix / "share" / "ringtrain" / "configs").glob("*.yaml"))
    assert [path.name for path in configs] == sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
    done = run(prefix, "ringtrain", "plan", next(p for p in configs if p.name == "imagenet_resnet50_256.yaml"), "--ranks", 8, cwd=tmp_path)
    assert done.returncode == 0 and "256 = " in done.stdout, done


def test_nothing_that_is_installed_names_the_checkout(prefix):
    texts = [path for path in prefix.rglob("*") if path.is_file() and path.read_bytes()[:4] != b"\x7fELF"]
    assert len(texts) > 40
    for path in texts:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        assert str(ROOT).encode() not in data, path


def pages_of(folder):
    return {str(page.relative_to(folder)): page.read_text() for page in sorted(folder.rglob("*.md"))}


def test_every_page_is_installed_and_its_links_and_scripts_exist(prefix):
    folder = prefix / "share" / "doc" / "ringtrain"
    pages = pages_of(folder.resolve())
    known = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, capture_output=True).stdout.split()
    assert len(pages) > 30 and set(known) <= set(pages), set(known) - set(pages)
    missing = [(page, link) for page, text in pages.items() for link in re.findall(r"\]\(([^)\s]+)\)", text)
               if ":" not in link and not link.startswith("#") and not (folder / page).parent.joinpath(link.split("#")[0]).exists()]
    assert missing == []
    # The pages for users also name scripts without a link.
    named = {(page, script) for page, text in pages.items() if page.split("/")[0] in ("README.md", "configs", "data_prep", "results", "slurm")
             and "/bench/" not in page for script in re.findall(r"(?<![\w/.])(?:data_prep|results|slurm)/\w+\.(?:sh|py|sbatch)", text)}
    assert len(named) > 10 and [item for item in sorted(named) if not (folder / item[1]).exists()] == []


@pytest.mark.thorough
def test_settings_of_the_site_outlive_a_second_installation(tmp_path):
    prefix = tmp_path / "prefix"
    install("/opt/elsewhere", DESTDIR=str(tmp_path / "package"))
    assert (tmp_path / "package/opt/elsewhere/bin/ringtrain").exists()
    module, = (tmp_path / "package/opt/elsewhere/share/modulefiles/ringtrain").iterdir()
    assert "prepend-path PATH {/opt/elsewhere/bin}\n" in module.read_text()
    install(prefix)
    site = prefix / "share" / "ringtrain" / "slurm" / "site.env"
    site.write_text(site.read_text() + "LINK_GBIT=200\n")
    assert "was edited and stays" in install(prefix)
    assert site.read_text().endswith("LINK_GBIT=200\n")
    assert (site.parent / "site.env.new").read_text() == (ROOT / "slurm" / "site.env").read_text()


def test_the_checkout_is_no_prefix_and_a_tilde_is_the_home_folder(tmp_path):
    checkout = tmp_path / "ringtrain"
    for name in ".ci/install.sh", "bin/ringtrain", "bin/ringtrain-data":
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    (tmp_path / "link").symlink_to(checkout)
    for prefix in "~/ringtrain", str(tmp_path / "link"):
        done = subprocess.run([checkout / ".ci" / "install.sh"], text=True, capture_output=True,
                              env={**environment(), "PREFIX": prefix, "HOME": str(tmp_path)}, cwd=tmp_path)
        assert done.returncode == 1 and "where the program was built" in done.stderr and not (checkout / "share").exists(), done
        assert (checkout / "bin" / "ringtrain").is_file() and not (tmp_path / "~").exists()


@pytest.mark.skipif(shutil.which("man") is None, reason="no man")
@pytest.mark.parametrize("program, words", [("ringtrain", ["ringtrain plan", "--temperature T", "EXIT CODES", "--bash-completion"]),
                                            ("ringtrain-data", ["verify", "--class-list FILE", "--drop-rare"])])
def test_man_shows_the_page_without_warnings(prefix, program, words):
    page = prefix / "share" / "man" / "man1" / f"{program}.1.gz"
    done = subprocess.run(["man", "--warnings", "-l", page], text=True, capture_output=True,
                          env={**VARIABLES, "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0 and done.stderr == "", done.stderr
    text = re.sub(".\b", "", done.stdout)
    for word in words:
        assert word in text, word
    # The pages and scripts that it names lie below the prefix.
    named = re.findall(rf"{re.escape(str(prefix))}/[\w./-]+\.(?:md|py)", text)
    assert named and all(Path(path).exists() for path in named), named
    assert re.search(r"(?<!/)\b(?:configs|data_prep)/[\w/]*README", text) is None
    # man finds the page through a folder of PATH.
    found = subprocess.run(["man", "-w", program], text=True, capture_output=True,
                           env={**VARIABLES, "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"})
    assert found.stdout.strip() == str(page), found


def completed(prefix, *words):
    """The completions that bash offers for the last word."""
    program = words[0]
    script = prefix / "share" / "bash-completion" / "completions" / program
    listed = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(["bash", "-uc", f'. "$1"; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; '
                           f'_{program.replace("-", "_")}; printf "%s\\n" "${{COMPREPLY[@]}}"', "-", script],
                          text=True, capture_output=True)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout.split()


def test_bash_completes_commands_options_words_and_keys(prefix):
    assert completed(prefix, "ringtrain", "p") == ["plan", "predict"]
    assert completed(prefix, "ringtrain", "plan", "--r") == ["--ranks"]
    assert completed(prefix, "ringtrain", "export", "--dtype", "") == ["fp32", "fp16", "bf16"]
    assert completed(prefix, "ringtrain", "bench", "st") == ["start", "step"] + [f"stop.{k}=" for k in (
        "epochs", "steps", "seconds", "diverged_share", "target_metric", "target_value")]
    assert completed(prefix, "ringtrain", "train", "batch.gl") == ["batch.global="]
    assert completed(prefix, "ringtrain", "train", "") == []  # bash itself then offers files
    assert completed(prefix, "ringtrain", "bench", "") == ["start", "comm", "input", "step", "split", "utilisation", "components"]
    assert completed(prefix, "ringtrain", "bench", "step", "") == []
    assert completed(prefix, "ringtrain-data", "images", "--class") == ["--class-list"]
    done = subprocess.run(["shellcheck", "-s", "bash", prefix / "share/bash-completion/completions/ringtrain"],
                          text=True, capture_output=True) if shutil.which("shellcheck") else None
    assert done is None or done.returncode == 0, done.stdout


LMOD = Path("/usr/share/lmod/lmod/init/bash")


@pytest.mark.skipif(not LMOD.exists(), reason="no Lmod")
def test_a_module_puts_the_programs_on_path(prefix, tmp_path):
    done = subprocess.run(["bash", "-c", f'. {LMOD}; module use "$1" && module load ringtrain && command -v ringtrain && '
                           'ls "$RINGTRAIN_SHARE/slurm/train.sbatch"', "-", prefix / "share" / "modulefiles"],
                          text=True, capture_output=True, cwd=tmp_path, env=VARIABLES)
    assert done.stdout.split("\n")[0] == str(prefix / "bin" / "ringtrain"), done
    assert done.returncode == 0, done
