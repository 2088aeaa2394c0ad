#!/bin/bash
# Puts the four IDX files of Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747) into a folder, as links or files:
#   .ci/fashion_mnist.sh FOLDER
# They come from FASHION_MNIST=FOLDER if it is set, or from an installed Debian package dataset-fashion-mnist. Otherwise
# the package is downloaded (31 MB) and unpacked, not installed.
set -eu -o pipefail
. "$(dirname "$0")/fetched_data.sh"
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
  link_from "$FASHION_MNIST" "$1" ||
    fail "FASHION_MNIST=$FASHION_MNIST has not all of these files, or they cannot be read: $files"
  exit 0
fi
has_all "$1" && exit 0
inside=usr/share/datasets/fashion-mnist
link_from "/$inside" "$1" && exit 0

package=$(debian_package dataset-fashion-mnist)
[ -n "$package" ] || not_found "Fashion-MNIST was not found" dataset-fashion-mnist \
  "install Debian's package dataset-fashion-mnist, or give a folder with its files: FASHION_MNIST=folder"
for file in $files; do
  dpkg-deb --fsys-tarfile "$package" | tar -xO "./$inside/$file" > "$1/$file.tmp"
  mv "$1/$file.tmp" "$1/$file"
done
