#!/bin/bash
# Prints scikit-learn's handwritten digits, 1,797 lines of 64 grey values (0 to 16) and the digit:
#   .ci/digits.sh > digits.csv
# They come from DIGITS=FILE (digits.csv.gz) if it is set, or from an installed scikit-learn. Otherwise
# Debian's package python3-sklearn is downloaded (2 MB) and unpacked, not installed.
set -eu -o pipefail
. "$(dirname "$0")/fetched_data.sh"
inside=datasets/data/digits.csv.gz

file=$(given_file DIGITS "scikit-learn's digits.csv.gz")
[ -n "$file" ] || file=$(file_of_module sklearn "$inside")
if [ -n "$file" ]; then
  gzip -dc "$file"
  exit 0
fi
package=$(debian_package python3-sklearn)
[ -n "$package" ] || not_found "scikit-learn's digits were not found" python3-sklearn \
  "install scikit-learn (apt-get install python3-sklearn, or a module), or give its file: DIGITS=.../sklearn/$inside"
dpkg-deb --fsys-tarfile "$package" | tar -xO "./usr/lib/python3/dist-packages/sklearn/$inside" | gzip -dc
