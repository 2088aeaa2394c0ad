#!/bin/bash
# Makes build/pytorch, a virtual environment with PyTorch, torchvision (from PyPI, for the CPU) and h5py. The benchmarks
# compare ringtrain with it. It is for development only, and nothing else in the project uses it.
#   tests/bench/setup_pytorch.sh [torch version]
set -eu
cd "$(dirname "$0")/../.."
version=${1:-}
for python in python3 /usr/bin/python3; do
  "$python" -c 'import ensurepip, venv' 2> /dev/null && break
  python=""
done
[ -n "$python" ] || { echo "error: no python3 here can make virtual environments; install python3-venv" >&2; exit 1; }
"$python" -m venv build/pytorch
build/pytorch/bin/pip install --quiet "torch${version:+==$version}" torchvision numpy h5py
build/pytorch/bin/python -c 'import torch; print("PyTorch", torch.__version__, "is in build/pytorch")'
