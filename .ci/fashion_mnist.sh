#!/bin/bash
# Puts the four IDX files of Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747) into a folder, as links or files:
#   .ci/fashion_mnist.sh FOLDER
# They come from FASHION_MNIST=FOLDER if it is set, or from an installed Debian package dataset-fashion-mnist. Otherwise
# the package is downloaded (31 MB) and unpacked, not installed.
set -eu -o pipefail
[ $# = 1 ] || { echo "usage: .ci/fashion_mnist.sh FOLDER" >&2; exit 2; }
files="train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz"
mkdir -p "$1"

has_all() {
  local file
  for file in $files; do [ -r "$1/$file" ] || return 1; done
}

# link_from FROM TO: links the files. Returns 1 if one of them cannot be read.
link_from() {
  local file
  has_all "$1" || return 1
  [ "$1" -ef "$2" ] && return
  for file in $files; do ln -sf "$(realpath "$1/$file")" "$2/$file"; done
}

if [ -n "${FASHION_MNIST:-}" ]; then
  link_from "$FASHION_MNIST" "$1" && exit 0
  echo "error: FASHION_MNIST=$FASHION_MNIST has not all of these files, or they cannot be read: $files" >&2
  exit 1
fi
has_all "$1" && exit 0
inside=usr/share/datasets/fashion-mnist
link_from "/$inside" "$1" && exit 0

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null; then
  chmod 755 "$scratch" # apt downloads as a user of its own
  fetch() { (cd "$scratch" && apt-get download -qq dataset-fashion-mnist > /dev/null 2> "$scratch/log"); }
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  fetch || { $as_root apt-get update -qq > /dev/null 2>&1 && fetch; } || true
  package=$(find "$scratch" -name '*.deb')
  if [ -n "$package" ]; then
    for file in $files; do
      dpkg-deb --fsys-tarfile "$package" | tar -xO "./$inside/$file" > "$1/$file.tmp"
      mv "$1/$file.tmp" "$1/$file"
    done
    exit 0
  fi
fi
{
  echo "error: Fashion-MNIST was not found, and dataset-fashion-mnist could not be fetched$([ -s "$scratch/log" ] && echo ": $(tail -1 "$scratch/log")")"
  echo "  hint: install Debian's package dataset-fashion-mnist, or give a folder with its files: FASHION_MNIST=folder"
} >&2
exit 1
