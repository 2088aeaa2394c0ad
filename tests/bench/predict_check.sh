#!/bin/bash
# Compares `ringtrain predict` with measurements that it was not fitted on, on this machine (nothing else should run):
#   tests/bench/predict_check.sh EXPERIMENT.yaml [key.path=value ...]
# A model fitted on 1 and 2 ranks predicts 4 ranks of one node, which may be more than its cores. A model fitted on 1
# rank and an all-reduce predicts 2 ranks.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "commit $(git describe --always --dirty), $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg)"
set -- "$@" run.threads=1
for ranks in 1 2 4; do
  tests/mpirun.sh $ranks bin/ringtrain bench comm input step "$@" --json "$folder/$ranks.json" --seconds "${SECONDS_EACH:-10}"
done
tests/mpirun.sh 2 bin/ringtrain bench comm "$@" --json "$folder/comm.json" --seconds "${SECONDS_EACH:-10}" > /dev/null
printf '\n== fitted on 1 and 2 ranks\n'
bin/ringtrain predict "$@" --ranks 1..4 --ranks-per-node 4 --preflight "$folder/1.json,$folder/2.json" --check "$folder/4.json"
printf '\n== fitted on 1 rank and an all-reduce of 2\n'
bin/ringtrain predict "$@" --ranks 1..2 --preflight "$folder/1.json,$folder/comm.json" --check "$folder/2.json"
