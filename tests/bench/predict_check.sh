#!/bin/bash
# Compares `ringtrain predict` with measurements, those that it was fitted on and others, on this machine (nothing else
# should run):
#   tests/bench/predict_check.sh EXPERIMENT.yaml [key.path=value ...]
# A model fitted on 1 and 2 ranks predicts 4 ranks of one node, which may be more than its cores. A model fitted on 1
# rank and an all-reduce predicts 2 ranks. ROUNDS=3 rounds of SECONDS_EACH=4 seconds a measurement take less than 4
# minutes. The last lines are medians over the rounds.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
seconds=${SECONDS_EACH:-4} rounds=${ROUNDS:-3}
echo "commit $(git describe --always --dirty), $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg)"
set -- "$@" run.threads=1

# compare "WHAT IT WAS FITTED ON" RANKS FITTED.json,... OTHER.json EXPERIMENT ...
compare() {
  local basis=$1 ranks=$2 fitted=$3 other=$4
  shift 4
  printf '\n== fitted on %s\n' "$basis"
  bin/ringtrain predict "$@" --ranks "$ranks" --ranks-per-node "${ranks#*..}" --preflight "$fitted" --check "$other" |
    tee "$folder/out"
  grep '^measured on' "$folder/out" | sed "s/^/$basis: /" >> "$folder/compared"
}

for round in $(seq "$rounds"); do
  printf '\n=== round %d of %d\n' "$round" "$rounds"
  for ranks in 1 2 4; do
    tests/mpirun.sh $ranks bin/ringtrain bench comm input step "$@" --json "$folder/$ranks.json" --seconds "$seconds"
  done
  rm -f "$folder/comm.json"
  tests/mpirun.sh 2 bin/ringtrain bench comm "$@" --json "$folder/comm.json" --seconds "$seconds" > /dev/null
  compare "1 and 2 ranks" 1..4 "$folder/1.json,$folder/2.json" "$folder/4.json" "$@"
  compare "1 rank and an all-reduce of 2" 1..2 "$folder/1.json,$folder/comm.json" "$folder/2.json" "$@"
done

printf '\n=== medians of %d rounds\n' "$rounds"
# "BASIS: measured on N ranks (K a node), HOW: M ms; predicted P ms (L .. H), off by X %"
sed -E 's/^(.*): measured on ([0-9]+) ranks \([^)]*\), (.*): ([0-9.]+) ms; predicted ([0-9.]+) ms .*, off by ([-+0-9.]+) %$/\1|\2|\3|\4|\5|\6/' \
  "$folder/compared" | awk -F'|' '
  function median(text,   n, i, j, swap, v) {
    n = split(text, v, " ")
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; --j) { swap = v[j]; v[j] = v[j - 1]; v[j - 1] = swap }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
  }
  { key = "fitted on " $1 ": " $2 " ranks, " $3
    if (!(key in off)) order[++keys] = key
    measured[key] = measured[key] " " $4; predicted[key] = predicted[key] " " $5; off[key] = off[key] " " $6 + 0 }
  END { for (i = 1; i <= keys; ++i)
    printf "%s: measured %.3f ms, predicted %.3f ms, off by %+.1f %% (rounds:%s)\n", order[i], median(measured[order[i]]),
           median(predicted[order[i]]), median(off[order[i]]), off[order[i]] }'
