#!/bin/bash
# Builds with a sanitizer and runs everything that the programs can do without a GPU: tests/sanitize/run.sh
# address|undefined|thread [commands] [unit] [mpi] (make sanitize KIND=...; all three by default). UNIT and MPI are
# GoogleTest filters. Logs are in build/sanitize-KIND/logs. The exit code is 1 when a part failed.
# tests/sanitize/README.md is the record.
set -eu
cd "$(dirname "$0")/../.."
kind=${1:?usage: tests/sanitize/run.sh address|undefined|thread [commands] [unit] [mpi]}
shift
parts=${*:-commands unit mpi}
goals=(bin/ringtrain bin/ringtrain-data)
for part in $parts; do
  case $part in
    commands) ;;
    unit | mpi) goals+=("build/tests/${part}_tests") ;;
    *) echo "error: unknown part '$part': expected commands, unit or mpi" >&2; exit 2 ;;
  esac
done
folder=$(tests/sanitize/build.sh "$kind" "${goals[@]}")
. tests/sanitize/environment.sh
# Programs and tests look for their files in this folder.
export RINGTRAIN_ROOT=$PWD/$folder GTEST_COLOR=no
logs=$folder/logs
mkdir -p "$logs"
result=0
running=()
# Looks for findings in all output. A test that expects its child to fail would hide a finding.
judge() {
  local log=$1 code=$2 findings
  findings=$(grep -cE '^(SUMMARY: |.*: runtime error: )' "$log" || true)
  echo "$(basename "$log" .log): exit code $code, $findings findings; $(grep -E '^\[  (PASSED|FAILED)  \] [0-9]+ test' "$log" | tail -n 2 | tr '\n' ' ')"
  if [ "$code" != 0 ] || [ "$findings" != 0 ]; then
    result=1
    grep -hE '^(SUMMARY: |.*: runtime error: |\[  FAILED  \])' "$log" | sort | uniq -c | sort -rn | head -n 20 || true
  fi
}
for part in $parts; do
  case $part in
    commands)
      code=0
      tests/sanitize/commands.sh "$folder" > "$logs/commands.log" 2>&1 || code=$?
      judge "$logs/commands.log" $code
      ;;
    unit)
      shards=$(nproc)
      # Some tests limit the size of files and fork. A child would hang if its report of leaks did not fit the limit, so
      # the output goes through a pipe.
      for ((shard = 0; shard < shards; ++shard)); do
        (cd "$folder" && set -o pipefail && GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard \
          build/tests/unit_tests --gtest_filter="${UNIT:-*}" 2>&1 | cat > "$OLDPWD/$logs/unit-$shard.log") &
        running[shard]=$!
      done
      for ((shard = 0; shard < shards; ++shard)); do
        code=0
        wait "${running[shard]}" || code=$?
        judge "$logs/unit-$shard.log" $code
      done
      ;;
    mpi)
      for ranks in 2 4; do
        code=0
        (cd "$folder" && tests/mpirun.sh $ranks build/tests/mpi_tests --gtest_filter="${MPI:-*}") > "$logs/mpi-$ranks.log" 2>&1 || code=$?
        judge "$logs/mpi-$ranks.log" $code
      done
      ;;
  esac
done
exit $result
