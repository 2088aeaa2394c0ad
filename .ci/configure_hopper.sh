#!/bin/bash
# Finds CUTLASS for bin/libringtrain-hopper.so, and writes build/hopper.mk, which the Makefile includes. NVCC is the compiler
# of build/cuda.mk. It is no error if CUTLASS cannot be fetched: CUTLASS_WHY is then the reason.
set -u
output=${1:?usage: NVCC=... .ci/configure_hopper.sh OUTPUT}
. "$(dirname "$0")/probes.sh"

# Finds CUTLASS's headers for the library that `make hopper` builds. Nothing else needs them.
find_cutlass() {
  cutlass_include=${CUTLASS_HOME:+$CUTLASS_HOME/include}
  if [ -n "$cutlass_include" ]; then
    [ -e "$cutlass_include/cutlass/cutlass.h" ] || fail "CUTLASS_HOME=$CUTLASS_HOME has no include/cutlass/cutlass.h" "Set CUTLASS_HOME to the folder of CUTLASS 4.2, or unset it."
  elif .ci/cutlass.sh > "$scratch/cutlass" 2>&1; then
    cutlass_include=build/cutlass/include
  else
    cutlass_why="CUTLASS could not be fetched: $(why_not_fetched "$scratch/cutlass" | tr -d '"$`')"
  fi
  [ -n "$cutlass_include" ] || return
  cutlass_version=$(macro CUTLASS_MAJOR.CUTLASS_MINOR.CUTLASS_PATCH cutlass/version.h -I"$cutlass_include" | tr -d ' ')
  if ! "${NVCC##* }" --list-gpu-arch | grep -qx compute_90; then
    cutlass_include="" cutlass_why="$NVCC does not know compute_90"
  fi
}

cutlass_include="" cutlass_why="" cutlass_version=""
if [ -n "${NVCC:-}" ]; then find_cutlass; else cutlass_why="the build has no CUDA"; fi

cat > "$output" << END || exit 1
# Written by .ci/configure_hopper.sh.
CUTLASS_INCLUDE := $cutlass_include
CUTLASS_WHY := $cutlass_why
END
echo "  CUTLASS    ${cutlass_include:+$cutlass_version}${cutlass_why:+none, no library for Hopper: $cutlass_why}"
