#!/bin/bash
# Does the work of `make study` after the build: makes the data, runs small versions (twins) of the studies of papers,
# and writes their report. After Ctrl-C or a failure, run it again; it continues where it was. Variables:
# PICTURES=folder: a folder with a folder of pictures for each class, in place of the handwritten digits. Fashion-MNIST stays.
# STUDIES="file ...": study files, in place of configs/studies/twin_*.yaml. RANKS: number of ranks, by default one per
# core, from 2 to 16. REPORT: folder of the report, by default results/twins. DATA: folder of the data.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export PYTHON=${PYTHON:-python3}
PICTURES=${PICTURES:-}
data=${DATA:-data_prep/data}
twins="goyal zero_gamma lars batch_schedule adascale critical_batch noise_names noise_digits pet_names smith_le mccandlish shallue keskar"
studies=${STUDIES:-$(for twin in $twins; do echo "configs/studies/twin_$twin.yaml"; done)}
step() { printf '\n== %s\n' "$1"; }

# One rank per core, but at most 16, and at least two, because some trials compare one rank with two.
cores=$(lscpu -p=Core,Socket 2> /dev/null | grep -v '^#' | sort -u | wc -l)
usable=$(nproc)
[ "$cores" -ge 1 ] && [ "$cores" -le "$usable" ] || cores=$usable
[ "$cores" -le 16 ] || cores=16
[ "$cores" -ge 2 ] || cores=2
ranks=${RANKS:-$cores}
# The study starts its trials with the mpirun of the MPI that the program was built with.
[ -n "${MPI_HOME:-}" ] || export MPIRUN=${MPIRUN:-$(sed -n 's/^MPIRUN := //p' build/config.mk)}

# Studies of other pictures get other names, so that nobody mistakes their results for those of the digits.
report=${REPORT:-results/twins} pictures_name="" pictures_data=""
if [ -n "$PICTURES" ]; then
  pictures_name=$(basename "$(realpath -m "$PICTURES")" | tr -c 'A-Za-z0-9\n' _)
  report=${REPORT:-results/twins_$pictures_name}
  pictures_data=pictures_$pictures_name
fi

# Prints the path of a study's experiment.
experiment_of() { realpath --relative-to=. "$(dirname "$1")/$(sed -n 's/^experiment: *\([^ ]*\).*/\1/p' "$1")"; }
# Returns whether a study or its experiment learns the data set of this name.
learns() { grep -Eq "train: *data_prep/data/$2(_[0-9]+)?-train" "$1" "$(experiment_of "$1")"; }

step "Data: Debian's proper names, and ${PICTURES:-handwritten digits of scikit-learn}"
data_prep/study_data.sh names
if [ -n "$PICTURES" ]; then
  data_prep/study_data.sh pictures "$PICTURES" "$pictures_data"
else
  data_prep/study_data.sh digits
fi

for published in fashion mnist; do
  for file in $studies; do
    learns "$file" $published || continue
    data_prep/study_data.sh $published
    break
  done
done

# Runs a study. A signal, such as that of Ctrl-C, makes it write a checkpoint and end with exit code 85.
run_study() {
  bin/ringtrain study "$@" --ranks "$ranks" &
  local job=$! code=0
  trap 'kill -TERM $job 2> /dev/null || true' INT TERM HUP
  wait $job || code=$?
  while kill -0 $job 2> /dev/null; do # a trap ends `wait` before the job has ended
    code=0
    wait $job || code=$?
  done
  trap - INT TERM HUP
  return $code
}

mkdir -p "$report/studies"
failed="" folders=()
for file in $studies; do
  name=$(sed -n 's/^name: *\([^ ]*\).*/\1/p' "$file")
  title=$(sed -n '1s/^# *//p' "$file")
  experiment=$(experiment_of "$file")
  model=$(grep -Eo 'kind: *(resnet|alexnet|cnn|mlp)\b' "$experiment" | sed 's/.* //' || true)
  overrides=()
  # Studies with a published answer keep their data.
  if [ -n "$PICTURES" ] && [ -n "$model" ] && ! learns "$file" fashion && ! learns "$file" mnist; then
    name=${name}_$pictures_name
    overrides=("data.train=$data/$pictures_data-train" "data.validation=$data/$pictures_data-validation"
      data.train_samples=0 data.validation_samples=0 data.classes=0 data.image_size=32 data.resize=32 data.pad=4)
    [ "$model" != resnet ] || overrides+=(model.stem=imagenet)
    copy=$report/studies/$name.yaml
    sed "s|^name: .*|name: $name|; s|^experiment: .*|experiment: $experiment|" "$file" > "$copy"
    file=$copy
  else
    cp "$file" "$report/studies/"
  fi
  resume=()
  [ -e "results/$name" ] && resume=(--resume)

  step "$name: $title"
  started=$SECONDS code=0
  run_study "$file" ${overrides[@]+"${overrides[@]}"} ${resume[@]+"${resume[@]}"} || code=$?
  printf '%s\t%s\t%s\t%s\n' "$name" "$((SECONDS - started))" "$code" \
    "bin/ringtrain study $file${overrides[*]+ ${overrides[*]}} --ranks $ranks" >> "$report/log.tsv"
  if [ $code = 85 ]; then
    printf '\nStopped. The same command goes on where it was.\n' >&2
    exit 85
  fi
  [ $code = 0 ] || failed+=" $name"
  [ -d "results/$name" ] && folders+=("results/$name")
done

step "Report"
[ ${#folders[@]} -gt 0 ] || { echo "error: no study has a trial" >&2; exit 1; }
"$PYTHON" results/report.py "${folders[@]}" -o "$report/report.html" \
  --title "Scaled-down twins of large-batch studies${pictures_name:+, on pictures of $pictures_name}"
results/study_record.sh "$report"
echo
echo "The report: $report/report.html ($((SECONDS / 60)) minutes)"
if [ -n "$failed" ]; then
  echo "error: failed:$failed; what is printed above and the report say which trials, and why" >&2
  exit 1
fi
