#!/bin/bash
# A chain of jobs for a run that takes longer than the queue allows, where jobs are not requeued: each starts when the one
# before has ended and goes on from its checkpoint. The first that finishes, or meets an error, removes the rest.
#
#   slurm/chain.sh NUMBER [sbatch's options] slurm/train.sbatch [--stage] EXPERIMENT.yaml [key.path=value ...]
#   slurm/chain.sh 5 --time=24:00:00 --nodes=2 slurm/train.sbatch configs/imagenet_resnet50_8192.yaml
set -eu
usage() { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
case ${1:-} in '' | *[!0-9]* | 0) usage ;; esac
count=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=site.env
. "${RINGTRAIN_SITE:-$root/slurm/site.env}"

options=()
while [ $# -gt 0 ] && [[ $1 != *.sbatch ]]; do options+=("$1"); shift; done
[ $# -ge 2 ] || usage
script=$1
shift

# One folder for all, named after the chain unless the user has a name for it.
chain=chain-$(date +%Y%m%d-%H%M%S)-$$
case " $*" in *" run.dir="* | *" run.id="*) folder=() ;; *) folder=("run.id=$chain") ;; esac
export RINGTRAIN_CHAIN=$chain
before='' submitted=()
for ((i = 1; i <= count; i++)); do
  before=$(sbatch --parsable ${before:+--dependency=afterany:"$before"} ${options[@]+"${options[@]}"} --job-name="$chain" \
    --export=ALL "$script" "$@" ${folder[@]+"${folder[@]}"})
  before=${before%%;*} # "id;cluster" where there are several clusters
  submitted+=("$before")
done
echo "${submitted[*]}"
echo "To end the chain: scancel --name=$chain" >&2
