# Functions that the batch scripts share. The scripts set `root` to the project's folder, and then read this file with `.`.

say() { echo "[$(date +%F\ %T)] $*"; }
fail() { say "error: $*" >&2; leave 1; }

# The name of the chain of jobs (chain.sh) to which this job belongs.
chain=''
case ${1:-} in --chain=*) chain=${1#--chain=}; shift ;; esac

# Ends the script and cancels the later jobs of its chain. They would meet the same error, or have nothing to do. If the
# job was terminated, or ends with exit code 85, the later jobs stay.
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
# The file may load modules or Spack. They print text, and they use variables that are not set. This must not end the
# script.
set +u
# shellcheck source=site.env
. "$site" >&2
set -u

# Outside of a job, the script submits itself with the queue settings of site.env. Options for sbatch come before all other
# arguments.
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

# The SLURM_JOB_ID of the last task of an array is the id of the whole array. scontrol would then act on all tasks, so a task
# is named ARRAY_TASK here.
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
restart=${SLURM_RESTART_COUNT:-0}
node_count=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
rank_count=${SLURM_NTASKS:-$((node_count * ${SLURM_NTASKS_PER_NODE:-1}))}

# `sbatch --export=NONE` sets this variable to NONE. Every srun below would use it, and the ranks would have no PATH.
export SLURM_EXPORT_ENV=ALL

# The beginning of a command line: it runs a command once on every node, without MPI. No other step may run then.
per_node=(srun --mpi=none --nodes="$node_count" --ntasks="$node_count" --ntasks-per-node=1 --cpus-per-task=1)

# Returns success if every node of the job starts a process within a minute.
nodes_answer() { timeout -k 5 60 "${per_node[@]}" --overlap true > /dev/null 2>&1; }

# Sets three commands. `launch` starts the program's ranks on all nodes. `launch_one` starts one rank. `launcher` is the
# beginning of a command to which a study adds the number and the places of a trial's ranks.
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
      # The alternative to the ring is a tree. In Slurm 22.05, the tree sometimes lets ranks continue before all ranks have
      # arrived. The late ranks then die inside MPI_Init.
      export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
      # Since Slurm 22.05, sbatch's --cpus-per-task no longer reaches srun. This variable passes it on. mpirun must not
      # have it: mpirun starts its daemons with srun, and a daemon would get the CPUs of one rank for all of its ranks.
      if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
      launcher=(srun ${mpi:+--mpi="$mpi"} ${SRUN_OPTIONS[@]+"${SRUN_OPTIONS[@]}"})
      launch=("${launcher[@]}" --kill-on-bad-exit=0)
      # --gpus=8 counts the GPUs of all nodes, and one node has fewer.
      launch_one=(srun ${mpi:+--mpi="$mpi"} --nodes=1 --ntasks=1 --ntasks-per-node=1 ${SLURM_GPUS:+--gpus=1})
      ;;
    mpirun)
      unset SRUN_CPUS_PER_TASK
      launcher=(mpirun ${MPIRUN_OPTIONS[@]+"${MPIRUN_OPTIONS[@]}"})
      launch=("${launcher[@]}" -n "$rank_count")
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

# Runs a command, appends its output to a file, and sets `code` to its exit code.
run_and_wait() {
  local log=$1 again
  shift
  "$@" >> "$log" 2>&1 < /dev/null &
  running=$!
  while :; do
    wait "$running"
    code=$?
    [ $code -gt 128 ] || break
    if ! kill -0 "$running" 2> /dev/null; then # a signal ends `wait`; the command may have ended at the same time
      wait "$running" 2> /dev/null
      again=$?
      [ $again = 127 ] || code=$again
      break
    fi
  done
  trap '' USR1 TERM
}

# Prints why the ranks were told to stop:
#   cancelled  scancel
#   requeued   preemption or a lost node, and Slurm itself queues the job again
#   preempted  preemption, and Slurm does not queue the job again
#   limit      the time limit, or a signal before it
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

# Copies the shards of a data set to every node. Prints the prefix of the copies, which is the same on all nodes. If
# NODE_SCRATCH is empty or differs between the nodes, it copies nothing, and prints a warning and the original prefix.
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

# Ends the script with exit code $1, unless the job is being stopped. A failure is then no error. `asked` alone does not show
# this: at a preemption with a grace time, Slurm sends the signal to the steps but not to this script.
unless_asked() {
  if [ $asked = no ] && [ "$(why_stopped)" = limit ]; then leave "$1"; fi
  asked=yes
}

# Decides what happens after the ranks have ended with `code`: requeues the job, or ends the script. The code `unstarted`
# means that the ranks were not started. The script that calls this function must set or define:
#   before         the output of newest_point before the ranks started. If it is the same afterwards, no step was made
#   newest_point   prints the newest checkpoint
#   stopped_words  prints the state
#   next_words     prints where the job continues
#   by_hand        prints the command to continue by hand
#   log            the path of the training log
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
    fail "no step was made since the last start, so the job is not queued again. Is --time longer than start-up, one step and the lead time of --signal?"
  elif [ "$restart" -ge "$MAX_REQUEUES" ]; then
    say "queued again $restart times, which is MAX_REQUEUES of $site: that is enough. $(by_hand)"
  else
    say "queued again; $(next_words)"
    # If the site allows requeueing, Slurm ends this script now.
    trap - TERM
    scontrol requeue "$job" && sleep 60
    say "not queued again after all. If this site does not requeue jobs, use slurm/chain.sh. $(by_hand)"
  fi
  exit 85
}
