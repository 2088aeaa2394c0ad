# Functions that the batch scripts share. The scripts read this file with `.` after setting `root` to the project's folder.

say() { echo "[$(date +%F\ %T)] $*"; }
fail() { say "error: $*" >&2; leave 1; }

# The name of the chain of jobs (chain.sh) to which this job belongs.
chain=''
case ${1:-} in --chain=*) chain=${1#--chain=}; shift ;; esac

# Ends the script and the rest of its chain, which would meet the same error or have nothing to do.
terminated=no
leave() {
  if [ -n "$chain" ] && [ $terminated = no ] && [ "$1" != 85 ]; then
    scancel --state=PENDING --user="$(id -un)" --name="$chain"
    say "removed what was left of the chain $chain"
  fi
  exit "$1"
}

root=$(cd "$root" && pwd) || exit
site=${RINGTRAIN_SITE:-$root/slurm/site.env}
[ -r "$site" ] || fail "$site cannot be read; slurm/site.env of the project is the model of it"
# Modules and environments of Spack or conda print text and use variables that are not set.
set +u
# shellcheck source=site.env
. "$site" >&2
set -u

# Outside of a job the script submits itself with the queue settings of site.env. Options for sbatch come first.
if [ -z "${SLURM_JOB_ID:-}" ]; then
  case ${1:-} in '' | -h | --help) sed -n '2,/^$/s/^# \?//p' "$0"; exit 2 ;; esac
  options=()
  while :; do
    case ${1:-} in
      --stage | --preflight | --resume) break ;;
      -?) fail "$1: write sbatch's options as --name=value here, or type sbatch yourself" ;;
      -*) options+=("$1"); shift ;;
      *) break ;;
    esac
  done
  exec sbatch ${options[@]+"${options[@]}"} "$0" "$@"
fi
[ "${SLURM_HET_SIZE:-1}" = 1 ] || fail "a heterogeneous job: only its first part would get ranks. Ask for nodes of one kind"

# The last task of an array has the id of the whole array as its SLURM_JOB_ID: scontrol would take that for all tasks.
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
restart=${SLURM_RESTART_COUNT:-0}
node_count=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
rank_count=${SLURM_NTASKS:-$((node_count * ${SLURM_NTASKS_PER_NODE:-1}))}

# `sbatch --export=NONE` would leave this at NONE for every srun below, and the ranks would have no PATH.
export SLURM_EXPORT_ENV=ALL

# Runs a command once on every node, without MPI, while nothing else runs.
per_node=(srun --mpi=none --nodes="$node_count" --ntasks="$node_count" --ntasks-per-node=1 --cpus-per-task=1)

# Whether every node of the job starts a process within a minute.
nodes_answer() { timeout -k 5 60 "${per_node[@]}" --overlap true > /dev/null 2>&1; }

# Sets `launch`: the program's ranks on all nodes; `launch_one`: one rank.
choose_launcher() {
  local offered mpi=$SRUN_MPI
  if [ "$LAUNCHER" = srun ] && [ "$mpi" = auto ]; then
    mpi=
    if [[ $("${RINGTRAIN[@]}" --version) == *"Open MPI"* ]]; then
      offered=$(srun --mpi=list 2>&1)
      if grep -qw pmix <<< "$offered"; then
        mpi=pmix
      elif command -v mpirun > /dev/null; then
        say "warning: this Slurm has no PMIx (srun --mpi=list), which Open MPI needs; starting with mpirun instead"
        LAUNCHER=mpirun
      else
        fail "this Slurm has no PMIx (srun --mpi=list), which Open MPI needs, and there is no mpirun: see LAUNCHER in $site"
      fi
    fi
  fi
  case $LAUNCHER in
    srun)
      # Slurm's other fence, a tree, sometimes lets ranks pass before all have arrived (22.05). The late ranks then die
      # inside MPI_Init.
      export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
      # Since Slurm 22.05 srun does not take --cpus-per-task over from sbatch. This is not for mpirun, which starts its
      # daemons with srun: a daemon would get the CPUs of one rank for all of its ranks.
      if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
      launch=(srun ${mpi:+--mpi="$mpi"} --kill-on-bad-exit=0 ${SRUN_OPTIONS[@]+"${SRUN_OPTIONS[@]}"})
      # --gpus=8 counts the GPUs of all nodes, and one node has fewer.
      launch_one=(srun ${mpi:+--mpi="$mpi"} --nodes=1 --ntasks=1 --ntasks-per-node=1 ${SLURM_GPUS:+--gpus=1})
      ;;
    mpirun)
      unset SRUN_CPUS_PER_TASK
      launch=(mpirun -n "$rank_count" ${MPIRUN_OPTIONS[@]+"${MPIRUN_OPTIONS[@]}"})
      launch_one=(mpirun -n 1 ${MPIRUN_OPTIONS[@]+"${MPIRUN_OPTIONS[@]}"})
      ;;
    *) fail "$site: LAUNCHER is '$LAUNCHER', expected srun or mpirun" ;;
  esac
}

# Passes signals for the batch script on to the ranks. A signal that comes before they run is remembered in `asked`.
asked=no running=''
pass_signals_on() {
  trap 'asked=yes; [ -z "$running" ] || kill -USR1 "$running" 2> /dev/null' USR1
  # At the time limit and at scancel, Slurm itself sends SIGTERM to every rank. A second signal does no harm.
  trap 'asked=yes terminated=yes; [ -z "$running" ] || kill -USR1 "$running" 2> /dev/null' TERM
}

# Runs a command with its output appended to a file. Sets `code`.
run_and_wait() {
  local log=$1 again
  shift
  "$@" >> "$log" 2>&1 < /dev/null &
  running=$!
  while :; do
    wait "$running"
    code=$?
    [ $code -gt 128 ] || break
    if ! kill -0 "$running" 2> /dev/null; then # it may have ended while a signal, which ends `wait`, was passed on
      wait "$running" 2> /dev/null
      again=$?
      [ $again = 127 ] || code=$again
      break
    fi
  done
  trap '' USR1 TERM
}

# Prints why the ranks were told to stop: cancelled (scancel), requeued (Slurm itself queues the job again after preemption
# or a lost node), preempted (Slurm does not queue it again), or limit (the time limit, or a signal before it).
why_stopped() {
  local shown
  shown=$(SLURM_TIME_FORMAT=standard scontrol show job -o "$job" 2> /dev/null)
  case $shown in
    *" JobState=CANCELLED "*) echo cancelled ;;
    *" PreemptTime=2"*) echo preempted ;;
    *" JobState=COMPLETING Reason=TimeLimit "*) echo limit ;;
    *" Restarts=$((restart + 1)) "*) echo requeued ;;
    *" JobState=COMPLETING "*) echo cancelled ;;
    *) echo limit ;;
  esac
}

# Copies the shards of a data set to every node and prints the prefix of the copies: the same path on all nodes.
stage() {
  local places place
  # shellcheck disable=SC2016
  places=$("${per_node[@]}" bash -c 'eval "echo \"$1\""' - "$NODE_SCRATCH") || return
  place=$(sort -u <<< "$places")
  if [ -z "$place" ] || [[ $place == *$'\n'* ]]; then
    say "warning: no staging, the data is read from where it is: NODE_SCRATCH of $site is $NODE_SCRATCH, on the nodes: ${place//$'\n'/, }" >&2
    echo "$1"
    return
  fi
  place=$place/ringtrain-$(id -un)/$(cksum <<< "$(realpath "$(dirname "$1")")" | cut -d' ' -f1)
  "${per_node[@]}" "$root/slurm/stage.sh" "$1" "$place" "$SCRATCH_KEEP_FREE_GB" >&2 || return
  echo "$place/$(basename "$1")"
}

# A failure is no error if the job is being ended. (With a grace time, Slurm tells the steps and not this script.)
unless_asked() {
  if [ $asked = no ] && [ "$(why_stopped)" = limit ]; then leave "$1"; fi
  asked=yes
}

# Ends the script after the ranks have ended with `code` (unstarted: they were not started), or requeues the job. The script
# sets `before`, the output of newest_point before the ranks started; if it is the same afterwards, no step was made. It
# also defines stopped_words, next_words and by_hand, which print the state, the place where the job continues, and the
# command to continue by hand, and it sets `log`.
what_next() {
  local why node_lost=no
  case $code in
    0) say "finished"; leave 0 ;;
    85) say "$(stopped_words)" ;;
    unstarted) say "asked to stop before the training began" ;;
    *)
      say "ended with exit code $code; the whole log is $log"
      # Often the ranks or srun notice a lost node long before Slurm does.
      if [ $asked = yes ] || nodes_answer; then leave "$code"; fi
      say "not every node of the job answers any more, so that this was no error of the run"
      node_lost=yes
      ;;
  esac
  why=$(why_stopped)
  if [ "$why" = requeued ]; then
    say "Slurm queues the job again"
  elif [ -n "$chain" ]; then
    if [ -n "$(squeue -h --user="$(id -un)" --name="$chain" --states=PENDING -o %i)" ]; then
      say "the next job of the chain goes on; all of it ends with: scancel --name=$chain"
    else
      say "this was the last job of the chain. $(by_hand)"
    fi
  elif [ "$why" = cancelled ]; then
    say "cancelled: not queued again. $(by_hand)"
  elif [ "$why" = limit ] && [ $node_lost = no ] && [ "$(newest_point)" = "$before" ]; then
    fail "no step was made since the last start: a queue again would not end. Is --time longer than start-up, one step and the lead time of --signal?"
  elif [ "$restart" -ge "$MAX_REQUEUES" ]; then
    say "queued again $restart times, which is MAX_REQUEUES of $site: that is enough. $(by_hand)"
  else
    say "queued again; $(next_words)"
    # If the site allows requeueing, Slurm ends this script now.
    trap - TERM
    scontrol requeue "$job" && sleep 60
    say "not queued again after all: slurm/chain.sh does without. $(by_hand)"
  fi
  exit 85
}
