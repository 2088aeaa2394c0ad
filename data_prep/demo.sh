#!/bin/bash
# Does the work of `make demo` after the build. It converts names to HDF5, trains on 2 ranks, invents names, and draws the
# loss curve. NAMES=file is a CSV file with a column of names, or a file with one name a line. COLUMN=... names the column
# if it is not obvious. Without NAMES, the names are the proper names of Debian's word list.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export NAMES=${NAMES:-} COLUMN=${COLUMN:-} PYTHON=${PYTHON:-python3}
experiment=configs/names.yaml
step() { printf '\n== %s\n' "$1"; }

if [ -z "$NAMES" ]; then
  name=names
  step "Proper names of Debian's word list -> data_prep/data/$name-*.h5"
  mkdir -p data_prep/data
  data_prep/proper_names.sh > data_prep/data/$name.txt
  bin/ringtrain-data names data_prep/data/$name.txt --out data_prep/data/$name --alphabet study31 --force
else
  name=my_names
  [ -r "$NAMES" ] || { echo "error: NAMES=$NAMES cannot be read" >&2; exit 1; }
  step "Names of $NAMES -> data_prep/data/$name-*.h5"
  bin/ringtrain-data names "$NAMES" --out data_prep/data/$name ${COLUMN:+--column "$COLUMN"} --force
fi

step "Training on 2 ranks: 3 epochs, at most two minutes"
data="data.train=data_prep/data/$name-train data.validation=data_prep/data/$name-validation"
# shellcheck disable=SC2086
tests/mpirun.sh 2 bin/ringtrain train $experiment name=$name $data stop.epochs=3 stop.seconds=110 run.log_every_steps=100
run=results/$name/$(readlink results/$name/latest)

step "20 invented names that are not in the data"
bin/ringtrain sample "$run" --count 20 --new-only

step "Loss curve"
"$PYTHON" results/plot.py "$run" -o "$run/loss.png"

[ "$name" = names ] && overrides="" || overrides="name=$name $data "
cat << END

== Where everything lies
data          data_prep/data/$name-{train,validation}-*.h5
run           $run/   (experiment.yaml as resolved, run.json, metrics.jsonl, checkpoints)
loss curve    $run/loss.png

== What to try next
$([ -e bin/libringtrain-cuda.so ] || echo "make cuda   # the part for GPUs, which is not built")
make run N=2 EXPERIMENT=$experiment ARGS="$overrides"   # all 10 epochs
bin/ringtrain sample $run --count 20 --temperature 0.7 --seed 2
bin/ringtrain plan $experiment --ranks 4
make run N=4 EXPERIMENT=$experiment ARGS="${overrides}batch.global=512 learning_rate.base_batch=256 learning_rate.scaling=sqrt"
$PYTHON results/plot.py results/$name/* -o results/compare.png
make test
END
