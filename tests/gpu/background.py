#!/usr/bin/env python3
"""What runs beside the checks from the first second on: nvidia-smi writes clocks, power and temperature to a table, the
libraries are read into the page cache, and the data sets of the benchmarks are made. `background.py read FILE...` reads
files. Every process is ended with the call, also when the call itself is killed."""
import contextlib
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CLOCKS = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu"
CLOCKS_MILLISECONDS = 500
PR_SET_PDEATHSIG = 1
# The libraries of a process that uses the GPU, the first needed first. PyTorch has its own folder.
LIBRARIES = ["libcudnn.so*", "libcudnn_graph.so*", "libcudnn_engines_*.so*", "libcudnn_heuristic.so*", "libcudnn_ops.so*", "libcudnn_cnn.so*",
             "libcudnn_adv.so*", "libcublasLt.so*", "libcublas.so*", "libcudart.so*", "libnvrtc.so*", "libnvrtc-builtins.so*"]
USUAL_FOLDERS = ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib64", "/usr/lib64/nvidia", "/usr/lib/x86_64-linux-gnu",
                 "/usr/lib/aarch64-linux-gnu"]


def package_folders():
    """Folders of Python packages: of this Python, of an active environment, and of the python3 in the path."""
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            folders += glob.glob(f"{os.environ[variable]}/lib/python3*/site-packages")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(["python3", "-c", "import sys; print('\\n'.join(sys.path))"], capture_output=True, text=True, timeout=10).stdout
        folders += [path for path in said.splitlines() if path.endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys(folders))


def library_files(packages=None):
    """The files of cuDNN, cuBLAS, the runtime and PyTorch. They are searched where src/backend/cuda/device/libraries.cpp
    searches them: of each library, only the first folder that has it counts."""
    packages = package_folders() if packages is None else packages
    folders = os.environ.get("RINGTRAIN_CUDA_LIBRARIES", "").split(":")
    folders += [f"{os.environ[v]}/{lib}" for v in ("CUDNN_HOME", "CUDA_HOME") if os.environ.get(v) for lib in ("lib64", "lib")]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":") + USUAL_FOLDERS
    folders += [folder for package in packages for folder in sorted(glob.glob(f"{package}/nvidia/*/lib"))]
    found = []
    for pattern in LIBRARIES:
        found += next(filter(None, (sorted(Path(folder).glob(pattern)) for folder in folders if folder)), [])
    found += next(filter(None, (sorted(Path(package).glob("torch/lib/*.so*")) for package in packages)), [])
    return list(dict.fromkeys(path.resolve() for path in found if path.is_file()))


def read(paths):
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def end_with_parent():
    """The kernel ends the child when the process that started it dies in any way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Background:
    """Processes beside the checks. Leaving the `with` block ends them."""

    def __init__(self, log):
        self.log, self.processes = log, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def start(self, command, output):
        """Starts a command in a process group of its own. Returns it, or None when there is no such program."""
        try:
            process = subprocess.Popen([str(part) for part in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=end_with_parent)
        except OSError as error:
            self.log.write(f"not started: {' '.join(map(str, command))}: {error}\n")
            return None
        self.processes.append(process)
        return process

    def record_clocks(self, path):
        if shutil.which("nvidia-smi"):
            by_line = ["stdbuf", "-oL"] if shutil.which("stdbuf") else []  # else the end of the table is lost
            with open(path, "w") as table:
                self.start([*by_line, "nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv", "-lms", CLOCKS_MILLISECONDS], table)

    def read_libraries(self):
        files = library_files()
        self.log.write(f"read into the page cache: {len(files)} files, {sum(path.stat().st_size for path in files) >> 20} MiB\n")
        self.start([sys.executable, __file__, "read", *files], subprocess.DEVNULL)

    def make_data(self, dry):
        """Makes the data sets. A benchmark that needs them earlier waits for them."""
        tiny = ["--tiny", "--device", "cpu"] if dry else []
        os.environ.setdefault("PYTHON", sys.executable)
        self.start([ROOT / "tests/gpu/make_data.sh", *tiny], self.log)


if __name__ == "__main__":
    read(sys.argv[2:])
