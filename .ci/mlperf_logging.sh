#!/bin/bash
# Puts MLPerf's package of logs and checkers into build/mlperf-logging. It comes from PyPI in a fixed version with a
# fixed checksum, without the packages that it depends on (NumPy and SciPy are Debian's). results/report.py finds it
# there.
set -eu
version=4.1.68
sha256=1f199ff35625308786fe3410410d3b03a32661a8b2babd022eacad7b91166f03
cd "$(dirname "$0")/.."
folder=build/mlperf-logging
[ "$(cat $folder/version 2> /dev/null)" = $version ] && exit 0

. .ci/pypi.sh
python=$(python_with_pip)

mkdir -p build
scratch=$(mktemp -d build/mlperf-logging.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
echo "mlperf-logging==$version --hash=sha256:$sha256" > "$scratch/requirements.txt"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
  --root-user-action=ignore --target "$scratch/unpacked" -r "$scratch/requirements.txt" < /dev/null
echo $version > "$scratch/unpacked/version"
rm -rf $folder
mv "$scratch/unpacked" $folder
