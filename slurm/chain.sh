#!/bin/bash
# Submits several jobs, one after the other, for a run that takes longer than the queue allows, on sites without requeueing.
# Each job waits for those before it and continues from their checkpoint. When the run ends or fails, the rest is cancelled.
#
#   slurm/chain.sh NUMBER [sbatch's options] slurm/train.sbatch [--stage] EXPERIMENT.yaml [key.path=value ...]
#   slurm/chain.sh 5 --time=24:00:00 --nodes=2 slurm/train.sbatch configs/imagenet_resnet50_8192.yaml
#
# With the folder of a run in place of EXPERIMENT.yaml, the chain continues that run.
set -u
usage() { sed -n '2,8s/^# \?//p' "$0" >&2; exit 2; }
case ${1:-} in '' | *[!0-9]* | 0) usage ;; esac
count=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd) || exit
site=${RINGTRAIN_SITE:-$root/slurm/site.env}
[ -r "$site" ] || { echo "error: $site cannot be read" >&2; exit 1; }
# Modules print text, and they use variables that are not set. This must not end the script.
set +u
# shellcheck source=site.env
. "$site" >&2
set -u

options=()
while [ $# -gt 0 ] && [[ $1 != *.sbatch ]]; do options+=("$1"); shift; done
[ $# -ge 2 ] || usage
script=$1
shift
case " ${options[*]-} " in *" --array"* | *" -a"*) echo "error: a chain consists of single jobs; --array cannot be used with it" >&2; exit 2 ;; esac

# All jobs use one folder. It has the name of the chain unless the user gives another one, or the folder of a run.
chain=chain-$(date +%Y%m%d-%H%M%S)-$$
case " $* " in *" run.dir="* | *" run.id="*) folder=() ;; *) folder=("run.id=$chain") ;; esac
for argument in "$@"; do if [ -d "$argument" ]; then folder=(); fi; done
submitted=()
for ((i = 1; i <= count; i++)); do
  # Each job depends on all jobs before it, not only on the last one. A job that is cancelled while it waits counts as
  # ended, and the next job would then start too early.
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
