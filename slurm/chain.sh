#!/bin/bash
# A chain of jobs for a run that takes longer than the queue allows, where jobs are not requeued: each starts when the ones
# before have ended and goes on from their checkpoint. The first that finishes, or meets an error, removes the rest.
#
#   slurm/chain.sh NUMBER [sbatch's options] slurm/train.sbatch [--stage] EXPERIMENT.yaml [key.path=value ...]
#   slurm/chain.sh 5 --time=24:00:00 --nodes=2 slurm/train.sbatch configs/imagenet_resnet50_8192.yaml
set -u
usage() { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
case ${1:-} in '' | *[!0-9]* | 0) usage ;; esac
count=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd) || exit
site=${RINGTRAIN_SITE:-$root/slurm/site.env}
[ -r "$site" ] || { echo "error: $site cannot be read" >&2; exit 1; }
# Modules print, and use variables that are not set.
set +u
# shellcheck source=site.env
. "$site" >&2
set -u

options=()
while [ $# -gt 0 ] && [[ $1 != *.sbatch ]]; do options+=("$1"); shift; done
[ $# -ge 2 ] || usage
script=$1
shift
case " ${options[*]-} " in *" --array"* | *" -a"*) echo "error: a chain is of single jobs: not with --array" >&2; exit 2 ;; esac

# One folder for all, named after the chain unless the user has a name for it.
chain=chain-$(date +%Y%m%d-%H%M%S)-$$
case " $* " in *" run.dir="* | *" run.id="*) folder=() ;; *) folder=("run.id=$chain") ;; esac
submitted=()
for ((i = 1; i <= count; i++)); do
  # On all before, since one that is cancelled while it waits has ended, too.
  after=()
  if [ $i -gt 1 ]; then after=("--dependency=afterany$(printf ':%s' "${submitted[@]}")"); fi
  if ! number=$(sbatch --parsable ${options[@]+"${options[@]}"} ${after[@]+"${after[@]}"} --job-name="$chain" \
    "$script" --chain="$chain" "$@" ${folder[@]+"${folder[@]}"}); then
    echo "error: job $i of $count was refused; submitted: ${submitted[*]-none}. To end them: scancel --name=$chain" >&2
    exit 1
  fi
  submitted+=("${number%%;*}") # "id;cluster" where there are several clusters
done
echo "${submitted[*]}"
echo "To end the chain: scancel --name=$chain" >&2
