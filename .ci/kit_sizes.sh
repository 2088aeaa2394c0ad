#!/bin/bash
# Prints the largest parts of the kit for a GPU, and the sizes of the kit and of this repository's tracked files. If their
# sum is larger than KIT_MIB MiB [62], that is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
limit_mib=${KIT_MIB:-62}
archive=build/ringtrain-gpu-kit.tar.xz
folder=build/gpu-kit/ringtrain-gpu-kit

tracked_files() { # a folder of `make dist` has no git
  git ls-files -z 2> /dev/null || find . \( -path ./build -o -path ./bin \) -prune -o -type f -print0
}
kit=$(stat -c %s "$archive")
tracked=$({ tracked_files | du --apparent-size --block-size=1 --total --files0-from=- 2> /dev/null || true; } | sed -n '$s/\t.*//p') # a file may be deleted
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }

echo "The largest parts of the kit, unpacked ($(mib "$(du -s --apparent-size --block-size=1 $folder | cut -f1)") in all):"
(cd $folder && du -s --apparent-size --block-size=1 programs/* bin/*.so lib/* mpi plans results tests configs) | sort -rn | head -5 |
  while read -r bytes part; do printf '  %10s  %s\n' "$(mib "$bytes")" "$part"; done
echo "$archive: $(mib "$kit")"
echo "tracked files: $(mib "$tracked")"
echo "sum: $(mib $((kit + tracked))), at most $limit_mib MiB (KIT_MIB)"
[ $((kit + tracked)) -le $((limit_mib * 1048576)) ] || { echo "error: the kit and the tracked files are larger than KIT_MIB=$limit_mib MiB" >&2; exit 1; }
cat <<'TEXT'
On the machine with the GPU (tests/gpu/README.md says more):
  export CHECK_STARTED=$(date +%s) OUT=/tmp/out && python3 -c "import tarfile; tarfile.open('ringtrain-gpu-kit.tar.xz').extractall('/tmp')" &&
    /tmp/ringtrain-gpu-kit/tests/gpu/check.sh --call 1
TEXT
