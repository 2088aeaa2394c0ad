#!/bin/bash
# Installs what `make fuzz` needs in addition to the build: Clang 19 with its run-time libraries, OpenMP and symbolizer.
# (Debian 12's own Clang 14 has no <source_location>.) CLANG=/path/to/clang++ names another compiler. Prints the
# compiler.
set -eu
packages="clang-19 libclang-rt-19-dev libomp-19-dev llvm-19"
if [ -n "${CLANG:-}" ]; then
  command -v "$CLANG" > /dev/null || { echo "error: CLANG=$CLANG was not found" >&2; exit 1; }
  echo "$CLANG"
  exit 0
fi
if command -v dpkg-query > /dev/null; then
  # shellcheck disable=SC2086
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $packages 2> /dev/null | grep -c ' installed$' || true)
  if [ "$installed" != 4 ]; then
    as_root=""
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    # shellcheck disable=SC2086
    { $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || true
      $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq $packages; } >&2 ||
      { echo "error: cannot install $packages; install them, or set CLANG to a clang++ of version 16 or newer" >&2; exit 1; }
  fi
fi
command -v clang++-19 > /dev/null && echo clang++-19 || { echo "error: no clang++-19 was found; set CLANG to a clang++ of version 16 or newer" >&2; exit 1; }
