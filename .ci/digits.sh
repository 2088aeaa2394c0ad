#!/bin/bash
# Prints scikit-learn's handwritten digits, 1,797 lines of 64 grey values (0 to 16) and the digit:
#   .ci/digits.sh > digits.csv
# They come from DIGITS=FILE (digits.csv.gz) if it is set, or from an installed scikit-learn. Otherwise
# Debian's package python3-sklearn is downloaded (2 MB) and unpacked, not installed.
set -eu -o pipefail
inside=sklearn/datasets/data/digits.csv.gz

if [ -n "${DIGITS:-}" ]; then
  [ -r "$DIGITS" ] || { echo "error: DIGITS=$DIGITS cannot be read, expected scikit-learn's digits.csv.gz" >&2; exit 1; }
  exec gzip -dc "$DIGITS"
fi
for python in ${PYTHON:-} python3 /usr/bin/python3; do
  folder=$("$python" -c 'import importlib.util as u; print(u.find_spec("sklearn").submodule_search_locations[0])' 2> /dev/null) || continue
  [ -r "$folder/${inside#sklearn/}" ] && exec gzip -dc "$folder/${inside#sklearn/}"
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null; then
  chmod 755 "$scratch" # apt downloads as a user of its own
  fetch() { (cd "$scratch" && apt-get download -qq python3-sklearn > /dev/null 2> "$scratch/log"); }
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  fetch || { $as_root apt-get update -qq > /dev/null 2>&1 && fetch; } || true
  package=$(find "$scratch" -name '*.deb')
  if [ -n "$package" ]; then
    dpkg-deb --fsys-tarfile "$package" | tar -xO "./usr/lib/python3/dist-packages/$inside" | gzip -dc
    exit 0
  fi
fi
{
  echo "error: scikit-learn's digits were not found, and python3-sklearn could not be fetched$([ -s "$scratch/log" ] && echo ": $(tail -1 "$scratch/log")")"
  echo "  hint: install scikit-learn (apt-get install python3-sklearn, or a module), or give its file: DIGITS=.../$inside"
} >&2
exit 1
