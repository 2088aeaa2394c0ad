#!/bin/bash
# Runs all checks that need a GPU: tests/gpu/check.sh [--call 1|2] [--resume FILE] [--dry] [--only NAME] [--list] (see
# check.py). README.md says how. CHECK_STARTED is when the command began, in seconds since the epoch; set it to
# $(date +%s) before anything is unpacked, so that unpacking counts, too.
set -eu
export CHECK_STARTED=${CHECK_STARTED:-$(date +%s)}
here=$(cd "$(dirname "$0")" && pwd)
for python in ${PYTHON:-} python3 /usr/bin/python3 python; do
  command -v "$python" > /dev/null && exec "$python" "$here/check.py" "$@"
done
echo "error: no python3 was found; set PYTHON" >&2
exit 1
