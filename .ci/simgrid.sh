#!/bin/bash
# Installs what `make simulate` needs in addition to the build: SimGrid's SMPI.
set -eu
if ! command -v smpicxx > /dev/null; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  # shellcheck disable=SC2086
  { $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || true
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq libsimgrid-dev; } >&2 ||
    { echo "error: cannot install libsimgrid-dev; install SimGrid 3.32 or newer, with smpicxx and smpirun in PATH" >&2; exit 1; }
fi
