#!/bin/bash
# Runs every command for a short time, on one, two or three ranks: tests/sanitize/commands.sh CHECKOUT. Takes the
# programs from the checkout's bin/. Stops at the first command that fails.
set -eu
root=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMPI_MCA_btl_vader_backing_directory=$work
program=$root/bin/ringtrain data=$root/bin/ringtrain-data
said() { echo "  $*"; }
alone() { said "$@"; "$program" "$@" > last.out 2> last.err || failed $?; }
ranks() { local n=$1; shift; said "$n ranks: $*"; "$root/tests/mpirun.sh" "$n" "$program" "$@" > last.out 2> last.err || failed $?; }
failed() {
  [ "$1" = "${expected:-0}" ] && return
  echo "exit code $1"; cat last.out last.err
  exit 1
}

for a in an bel co da el fi gus ha; do for b in is jo ka lo mi ne ru sa; do for c in '' to ra; do echo $a$b$c; done; done; done > names.txt
"$data" names names.txt --out names > last.out 2> last.err || failed $?
"$data" text names.txt --out text > last.out 2> last.err || failed $?
"$data" verify names > last.out 2> last.err || failed $?
cat > names.yaml << END
name: names
model: {hidden: 16, dropout: 0.1}
data: {train: names-train, validation: names-validation, loader_threads: 2}
batch: {global: 32, worker: 8}
optimizer: {kind: adam}
learning_rate: {base: 0.01}
stop: {steps: 12}
evaluate: {every_epochs: 0, every_steps: 4}
checkpoint: {every_epochs: 0, every_steps: 3, keep: 2}
run: {log_every_steps: 2, threads: 2}
END
alone plan names.yaml --ranks 2
alone train names.yaml run.dir=one
alone train names.yaml run.dir=one stop.steps=20 --resume
alone sample one --count 3
alone evaluate one
alone export one --out weights.safetensors
alone import weights.safetensors names.yaml run.dir=imported
ranks 2 train names.yaml run.dir=two
ranks 2 train names.yaml run.dir=servers parallel.kind=server parallel.servers=2
ranks 3 train names.yaml run.dir=async parallel.kind=server parallel.mode=async
ranks 3 train names.yaml run.dir=backup parallel.kind=server parallel.backup_workers=1
ranks 2 train names.yaml run.dir=shares parallel.shard_state=true
ranks 2 train names.yaml run.dir=stages parallel.kind=pipeline parallel.stages=2 batch.micro=8
ranks 2 bench comm input step start names.yaml --seconds 0.2 --json preflight.json
ranks 2 bench split names.yaml parallel.kind=pipeline parallel.stages=2 --seconds 0.2
ranks 2 bench utilisation --largest 4 --seconds 0.2
alone predict names.yaml --ranks 1..16 --preflight preflight.json
cat > small.yaml << END
name: small
experiment: names.yaml
ranks_per_trial: 1
repeat: 3
END
alone study small.yaml --ranks 2
# The signal leads to a checkpoint and exit code 85.
said "a run that SIGUSR1 stops"
"$program" train names.yaml run.dir=stopped stop.steps=100000 test.slow_rank=0 test.slow_seconds=0.02 > last.out 2> last.err &
until grep -qs '"step": *4,' stopped/metrics.jsonl; do kill -0 $! || break; sleep 0.1; done
kill -USR1 $!
code=0
wait $! || code=$?
expected=85 failed $code

# The pictures are the golden files of the tests, in two classes.
for class in a b; do mkdir -p pictures/train/$class pictures/val/$class; done
for file in "$root"/tests/golden/images/4*.jpg; do
  for split in train val; do for class in a b; do cp "$file" pictures/$split/$class/; done; done
done
"$data" images pictures --out images --broken skip > last.out 2> last.err || failed $?
"$data" verify images > last.out 2> last.err || failed $?
cat > images.yaml << END
name: images
model: {kind: resnet, depth: 18, width: 16, stem: small}
data: {train: images-train, validation: images-validation, image_size: 16, resize: 20, loader_threads: 2}
batch: {global: 8, worker: 4}
optimizer: {kind: sgd, momentum: 0.9}
learning_rate: {base: 0.01}
stop: {steps: 3}
run: {threads: 2}
END
alone train images.yaml run.dir=images-one
ranks 2 train images.yaml run.dir=images-two
alone evaluate images-one
ranks 2 bench components images.yaml --seconds 0.2

# These arrays stand for those of another program.
python=python3
"$python" -c 'import h5py' 2> /dev/null || python=/usr/bin/python3 # Debian's own Python sees Debian's h5py
"$python" - << END
import h5py, numpy
with h5py.File("arrays.h5", "w") as file:
    file["x"] = numpy.arange(24 * 16 * 16 * 3, dtype=numpy.uint8).reshape(24, 16, 16, 3)
    file["y"] = numpy.arange(24) % 3
END
for encoding in raw jpeg; do
  "$data" import arrays.h5 --images x --labels y --out arrays-$encoding --encoding $encoding --rows 0:16 --validation-rows 16:24 > last.out 2> last.err || failed $?
  "$data" verify arrays-$encoding > last.out 2> last.err || failed $?
  alone train images.yaml data.train=arrays-$encoding-train data.validation=arrays-$encoding-validation run.dir=arrays-$encoding
done
