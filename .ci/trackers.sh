#!/bin/bash
# Makes build/trackers, a virtual environment with TensorBoard and Weights & Biases (from PyPI). results/follow.py finds
# both there. Nothing else in the project uses them.
set -eu
packages=("tensorboard==2.21.*" "wandb==0.31.*")
cd "$(dirname "$0")/.."
folder=build/trackers
[ "$(cat $folder/packages 2> /dev/null)" = "${packages[*]}" ] && exit 0

# Takes PYTHON, or else the distribution's python3. Only a Python of the same version finds these packages, because
# compiled packages fit one version only. If another python3 will run follow.py, set PYTHON to it.
python=""
for candidate in ${PYTHON:-} /usr/bin/python3 python3; do
  "$candidate" -c 'import ensurepip, venv' 2> /dev/null && python=$candidate && break
done
[ -n "$python" ] || { echo "no python3 here can make virtual environments (Debian: apt-get install python3-venv)" >&2; exit 1; }

mkdir -p build
rm -rf $folder
trap '[ -f $folder/packages ] || rm -rf $folder' EXIT
"$python" -m venv $folder
$folder/bin/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: "${packages[@]}" pyyaml < /dev/null
echo "${packages[*]}" > $folder/packages
