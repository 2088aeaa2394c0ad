#!/bin/bash
# Copies the shards of a data set to this node's own disk. train.sbatch runs this script once on every node.
#
#   slurm/stage.sh PREFIX FOLDER [KEEP_FREE_GB]
#
# Every copy is compared with the original by size and checksum. If it differs, it is made again. Copies of an earlier job are
# used if they are unchanged. A copy may be impossible (no space, or a disk that changes data). The script then prints a
# warning and puts a link to the original into the folder, and training reads that shard over the network. The path is the
# same on all nodes.
set -u
[ $# -ge 2 ] || { echo "usage: slurm/stage.sh PREFIX FOLDER [KEEP_FREE_GB]" >&2; exit 2; }
prefix=$1 folder=$2 keep_free=$(( ${3:-2} << 20 )) # KiB
host=${SLURMD_NODENAME:-$(hostname -s)}
warn() { echo "warning: $host: $*" >&2; }

shopt -s nullglob
shards=("$prefix"-[0-9]*-of-[0-9]*.h5)
case $prefix in *.h5) shards=("$prefix") ;; esac
if [ ! -r "${shards[0]:-}" ]; then
  echo "error: $host: no shards $prefix-*-of-*.h5 that can be read" >&2
  exit 1
fi
mkdir -p "$folder" 2> /dev/null
if [ ! -w "$folder" ]; then
  echo "error: $host: cannot write to $folder: see NODE_SCRATCH in slurm/site.env" >&2
  exit 1
fi
# Two jobs on one node may want the same data set.
exec 9> "$folder/.lock"
flock 9 2> /dev/null || warn "no locks in $folder: another job that stages the same data there may get in the way"

free() { df --output=avail -k "$folder" | tail -n 1; }
checksum() { b2sum < "$1" | cut -d' ' -f1; }
# Prints size and time of the original. If they change, an earlier copy must not be used.
identity() { stat -L -c '%s %Y' "$1"; }

# Returns success if copy $2 agrees with its note, and the note is about original $1.
is_good() {
  local note
  note=$(cat "$2.checked" 2> /dev/null) || return
  [ -f "$2" ] && [ ! -L "$2" ] && [ "${note% *}" = "$(identity "$1")" ] &&
    [ "$(stat -c %s "$2")" = "${note%% *}" ] && [ "$(checksum "$2")" = "${note##* }" ]
}

# Copies $1 to $2. Returns 0 if the copy is good, 1 if the bytes on the disk are not those that were read, 2 if the copy could
# not be written.
copy() {
  local what read
  what=$(identity "$1")
  read=$(set -o pipefail; tee "$2.part" < "$1" | b2sum | cut -d' ' -f1) && sync "$2.part" || return 2
  [ "$(stat -c %s "$2.part")" = "${what% *}" ] && [ "$(checksum "$2.part")" = "$read" ] || return 1
  { echo "$what $read" > "$2.checked" && mv "$2.part" "$2"; } || return 2
}

# Copies $1 to $2, and once more if the copy differs. Removes an incomplete copy.
copy_twice() {
  local result
  copy "$1" "$2"
  result=$?
  if [ $result = 1 ]; then
    warn "the copy of $1 in $folder differs from what was read; once more"
    copy "$1" "$2"
    result=$?
    [ $result != 1 ] || warn "the second copy differs, too: the disk of $folder is not to be trusted; $1 is read from where it is"
  fi
  [ $result != 2 ] || warn "$1 could not be copied to $folder (full, or over a quota?): it is read from where it is"
  [ $result = 0 ] || rm -f "$2.part" "$2.checked"
  return $result
}

start=$SECONDS copied=0 kept=0 linked=0 bytes=0
for shard in "${shards[@]}"; do
  target=$folder/$(basename "$shard")
  size=$(stat -L -c %s "$shard")
  if is_good "$shard" "$target"; then
    kept=$((kept + 1))
    continue
  fi
  [ ! -f "$target.checked" ] || warn "$target is not what it was when it was copied (or the original is not): it is copied again"
  rm -f "$target" "$target.checked" "$target.part"
  if [ $(($(free) - size / 1024)) -lt "$keep_free" ]; then
    [ $linked -gt 0 ] || warn "no space for $shard in $folder: it has $(($(free) >> 20)) GiB free and keeps $((keep_free >> 20)); read from where it is"
  elif copy_twice "$shard" "$target"; then
    copied=$((copied + 1)) bytes=$((bytes + size))
    continue
  fi
  ln -sfn "$(realpath "$shard")" "$target" || exit
  linked=$((linked + 1))
done
echo "$host: staged $prefix to $folder: $copied copied ($((bytes >> 20)) MiB, $((SECONDS - start)) s), $kept there already, $linked linked"
