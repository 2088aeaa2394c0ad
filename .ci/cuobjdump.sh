#!/bin/bash
# Puts cuobjdump and nvdisasm, which show the code of compiled kernels, into build/cuobjdump. They are NVIDIA's packages
# from PyPI in fixed versions with fixed checksums. If the build's CUDA toolkit has both programs, as most toolkits do,
# nothing is downloaded. Prints the folder that has them.
set -eu
cd "$(dirname "$0")/.."
home=$(sed -n 's/^CUDA_FOLDER := //p' build/cuda.mk 2> /dev/null || true)
for folder in ${home:+"$home/bin"} build/cuobjdump/bin; do
  [ -x "$folder/cuobjdump" ] && [ -x "$folder/nvdisasm" ] && echo "$folder" && exit 0
done

. .ci/pypi.sh
python=$(python_with_pip)
mkdir -p build
scratch=$(mktemp -d build/cuobjdump.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
download_wheels "$scratch" --retries 1 --timeout 15 --platform manylinux2014_x86_64 >&2 <<'END'
nvidia-cuda-cuobjdump==13.5.37 --hash=sha256:38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58
nvidia-cuda-nvdisasm==13.5.37 --hash=sha256:d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca
END
"$python" -c 'import pathlib, sys, zipfile
to = pathlib.Path(sys.argv[1])
(to / "bin").mkdir(parents=True)
for wheel in map(zipfile.ZipFile, sys.argv[2:]):
    for name in wheel.namelist():
        if "/bin/" in name and not name.endswith("/"):
            (to / "bin" / name.rsplit("/", 1)[1]).write_bytes(wheel.read(name))
        if ".dist-info/" in name and "LICENSE" in name.upper():
            wheel.extract(name, to)' "$scratch/unpacked" "$scratch"/*.whl
chmod +x "$scratch"/unpacked/bin/*
rm -rf build/cuobjdump
mv "$scratch/unpacked" build/cuobjdump
echo build/cuobjdump/bin
