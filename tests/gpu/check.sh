#!/bin/bash
# Runs all checks that need a GPU: tests/gpu/check.sh [--call 1|2] [--take FOLDER] [--dry] [--only NAME] [--list] (see
# check.py)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for python in ${PYTHON:-} python3 /usr/bin/python3 python; do
  command -v "$python" > /dev/null && exec "$python" "$here/check.py" "$@"
done
echo "error: no python3 was found; set PYTHON" >&2
exit 1
