#!/bin/bash
# Puts cuDNN's front end (headers only) into build/cudnn-frontend. It is NVIDIA's package from PyPI in a fixed version
# with a fixed checksum, without the Python packages that it depends on.
set -eu
version=1.32.0
sha256=c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0
cd "$(dirname "$0")/.."
folder=build/cudnn-frontend
[ "$(cat $folder/version 2> /dev/null)" = $version ] && exit 0

. .ci/pypi.sh
python=$(python_with_pip)

mkdir -p build
scratch=$(mktemp -d build/cudnn-frontend.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
# The headers are the same for every machine and Python, so this one package is taken everywhere, and the
# checksum is that of this package.
download_wheels "$scratch" --platform manylinux_2_28_x86_64 --implementation cp --python-version 3.11 --abi cp311 \
  <<< "nvidia-cudnn-frontend==$version --hash=sha256:$sha256"
"$python" -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith("include/") or ".dist-info/" in n and "LICENSE" in n.upper()])' \
  "$scratch"/*.whl "$scratch/unpacked"
[ -e "$scratch/unpacked/include/cudnn_frontend.h" ] || { echo "the package has no include/cudnn_frontend.h" >&2; exit 1; }
echo $version > "$scratch/unpacked/version"
rm -rf $folder
mv "$scratch/unpacked" $folder
