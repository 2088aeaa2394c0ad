#!/bin/bash
# Groups source files into translation units: .ci/units.sh MOST FILE... A unit includes at most MOST files of one folder.
# Writes build/unity/FOLDER-N.cpp, only where its contents have changed, and prints the names of the units.
set -euo pipefail
most=$1
shift
declare -A files
for file in "$@"; do
  files[${file%/*}]+="$file "
done
mkdir -p build/unity
for folder in $(printf '%s\n' "${!files[@]}" | LC_ALL=C sort); do
  read -ra all <<< "${files[$folder]}"
  units=$(((${#all[@]} + most - 1) / most))
  for ((unit = 0; unit < units; ++unit)); do
    from=$((${#all[@]} * unit / units)) to=$((${#all[@]} * (unit + 1) / units))
    name=build/unity/${folder//\//_}-$((unit + 1)).cpp
    text=$(printf '#include "%s"\n' "${all[@]:from:to-from}")
    if [ ! -e "$name" ] || [ "$text" != "$(< "$name")" ]; then printf '%s\n' "$text" > "$name"; fi
    echo "$name"
  done
done
