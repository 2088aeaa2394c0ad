#!/bin/bash
# Fuzzes one target, or each target in turn, and appends to tests/fuzz/record.csv: tests/fuzz/run.sh [TARGET]
# [SECONDS] (make fuzz). With SEEDS=0 it begins without the stored inputs. Findings are in build/fuzz/findings. The exit
# code is 1 when there is a finding.
set -eu
cd "$(dirname "$0")/../.."
wanted=${1:-} seconds=${2:-600}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "error: SECONDS=$seconds, expected a whole number of at least 1" >&2; exit 2; }
folder=$(tests/sanitize/build.sh address build/tests/fuzz)
program=$folder/build/tests/fuzz
names=$($program)
if [ -n "$wanted" ] && ! grep -qx "$wanted" <<< "$names"; then
  echo "error: there is no target '$wanted'; the targets are" $names >&2
  exit 2
fi

# An input of 16 KiB may need some MiB (for a picture or a table), but never as much as these limits.
limits=(-max_len=16384 -timeout=60 -rss_limit_mb=1024 -malloc_limit_mb=128 -print_final_stats=1 -verbosity=1)
# libhdf5 asks malloc for what a damaged file says before it looks at the checksum, and it handles a refusal. So for its
# targets AddressSanitizer refuses what is larger than max_allocation_size_mb. The program's own `new` of such a size
# ends as a finding.
options=allocator_may_return_null=1:detect_stack_use_after_return=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitize/leaks.supp:print_suppressions=0
export ASAN_SYMBOLIZER_PATH=${ASAN_SYMBOLIZER_PATH:-$(command -v llvm-symbolizer-19 || true)}
export OMP_NUM_THREADS=1
record=tests/fuzz/record.csv
mkdir -p build/fuzz/findings
[ -e $record ] || echo "date,target,commit,cpu_seconds,executions,edges,corpus,seeds,findings" > $record
commit=$(git describe --always 2> /dev/null || echo unknown)
# The record itself changes with every target, so it is left out.
[ -z "$(git status --porcelain -- Makefile src data_prep tests/fuzz ':!tests/fuzz/record.csv' 2> /dev/null)" ] || commit+=-dirty
found=0
for name in ${wanted:-$names}; do
  corpus=build/fuzz/corpus/$name log=build/fuzz/$name.log
  [ "${SEEDS:-1}" = 0 ] && corpus=$(mktemp -d)
  mkdir -p "$corpus"
  seeds=()
  if [ "${SEEDS:-1}" != 0 ]; then
    for each in tests/fuzz/corpus/$name tests/fuzz/findings/$name; do [ -d "$each" ] && seeds+=("$each"); done
    case $name in
      jpeg | record) seeds+=(tests/golden/images) ;;
      safetensors) seeds+=(tests/golden) ;;
      experiment) seeds+=(configs) ;;
      study) seeds+=(configs/studies) ;;
    esac
  fi
  case $name in checkpoint | dataset_*) largest=:max_allocation_size_mb=127 ;; *) largest='' ;; esac
  echo "fuzz $name for $seconds s (log: $log)"
  code=0
  # The limit is in seconds of the clock. `time` measures the CPU time for the record. One thread computes all the time.
  { TIMEFORMAT="%U %S"; time ASAN_OPTIONS=$options$largest RINGTRAIN_FUZZ=$name $program "${limits[@]}" \
    -max_total_time="$seconds" -artifact_prefix=build/fuzz/findings/$name- "$corpus" ${seeds[@]+"${seeds[@]}"} > "$log" 2>&1; } 2> "$log.time" || code=$?
  read -r user system < <(tail -1 "$log.time")
  cpu=$(awk "BEGIN {printf \"%.0f\", $user + $system}")
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
  edges=$(grep -oE 'cov: [0-9]+' "$log" | tail -1 | cut -d' ' -f2)
  size=$(ls "$corpus" | wc -l)
  findings=0
  if [ $code = 72 ]; then # libFuzzer's exit code after SIGINT or SIGTERM
    echo "  interrupted"
  elif [ $code != 0 ]; then
    findings=1 found=1
    echo "  finding: $(grep -m1 -aE '^finding:|ERROR:|runtime error:|BINGO' "$log" | cut -c1-300 || echo "exit code $code")"
    grep -m1 'Test unit written to' "$log" | sed 's/^/  /' || true
  fi
  echo "$(date -u +%F),$name,$commit,$cpu,${runs:-0},${edges:-0},$size,${SEEDS:-1},$findings" >> $record
  echo "  ${runs:-0} executions, ${edges:-0} edges, $cpu CPU seconds"
done
exit $found
