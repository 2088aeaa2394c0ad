#!/bin/bash
# Puts CUTLASS's headers into build/cutlass. They are NVIDIA's package from PyPI in a fixed version with a fixed
# checksum, without the Python packages that it depends on.
set -eu
version=4.2.0.0
sha256=f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6
cd "$(dirname "$0")/.."
folder=build/cutlass
[ "$(cat $folder/version 2> /dev/null)" = $version ] && exit 0

. .ci/pypi.sh
python=$(python_with_pip)

mkdir -p build
scratch=$(mktemp -d build/cutlass.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
download_wheels "$scratch" --retries 1 --timeout 15 <<< "nvidia-cutlass==$version --hash=sha256:$sha256"
"$python" -c 'import pathlib, sys, zipfile
wheel, to = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for name in wheel.namelist():
    for prefix in ("cutlass_library/source/include/", "cutlass_library/source/tools/util/include/"):
        if name.startswith(prefix) and not name.endswith("/"):
            place = to / "include" / name[len(prefix):]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(wheel.read(name))
    if ".dist-info/" in name and "LICENSE" in name.upper():
        wheel.extract(name, to)' "$scratch"/*.whl "$scratch/unpacked"
[ -e "$scratch/unpacked/include/cutlass/cutlass.h" ] || { echo "the package has no cutlass/cutlass.h" >&2; exit 1; }
echo $version > "$scratch/unpacked/version"
rm -rf $folder
mv "$scratch/unpacked" $folder
