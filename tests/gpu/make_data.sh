#!/bin/bash
# Makes the data sets that the benchmarks of a GPU train on: tests/gpu/make_data.sh [--tiny]
# It takes seconds, so check.sh starts it in the background. A benchmark that needs the data earlier waits for them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
"$python" "$here/lstm_bench.py" --data-only "$@" &
text=$!
code=0
"$python" "$here/resnet_bench.py" --data-only "$@" || code=$?
wait $text || code=$?
exit $code
