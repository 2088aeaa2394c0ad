#!/bin/bash
# Builds with a sanitizer in a folder of its own, build/sanitize-KIND, which has links to the sources and the same
# Makefile: tests/sanitize/build.sh address|undefined|thread [GOAL...]. Prints the folder. The build's output goes to
# stderr.
#
# The build `address` also looks for undefined behaviour and includes the fuzzer, so one build serves tests with
# sanitizers and `make fuzz`. No such build has CUDA, and the program's own GPU kernels run in the emulation.
set -eu
cd "$(dirname "$0")/../.."
kind=${1:?usage: tests/sanitize/build.sh address|undefined|thread [GOAL...]}
shift
case $kind in
  address) flags=-fsanitize=address,undefined,fuzzer-no-link ;;
  undefined) flags=-fsanitize=undefined ;;
  thread) flags=-fsanitize=thread ;;
  *) echo "error: unknown sanitizer '$kind': expected address, undefined or thread" >&2; exit 2 ;;
esac
folder=build/sanitize-$kind
mkdir -p "$folder"
for name in src data_prep tests configs results slurm .ci Makefile README.md; do
  [ -e "$folder/$name" ] || ln -s "../../$name" "$folder/$name"
done
compiler=$(.ci/clang.sh)
jobs=()
case " ${MAKEFLAGS:-}" in *" -j"*) ;; *) jobs=(-j"$(nproc)") ;; esac
# -O1 builds as fast as -O0 and runs much faster. The kernels have the same instruction sets as in other builds.
env -u MAKEOVERRIDES make -C "$folder" --no-print-directory ${jobs[@]+"${jobs[@]}"} CXX="$compiler" CUDA=0 WARNINGS=-w \
  OPTIMISE="-O1 -g1 -fno-omit-frame-pointer -ffp-contract=fast -fno-math-errno -fno-trapping-math $flags" \
  ${@:-all tests} >&2
echo "$folder"
