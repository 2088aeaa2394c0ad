# What the batch scripts share. They are read with `.`, after `root` was set to the project's folder.

say() { echo "[$(date +%F\ %T)] $*"; }
fail() { say "error: $*" >&2; exit 1; }

site=${RINGTRAIN_SITE:-$root/slurm/site.env}
[ -r "$site" ] || fail "$site cannot be read; slurm/site.env of the project is the model of it"
# shellcheck source=site.env
. "$site"

# Outside of a job the script submits itself, with the queue's settings of site.env; sbatch's options come first.
if [ -z "${SLURM_JOB_ID:-}" ]; then
  case ${1:-} in '' | -h | --help) sed -n '2,/^$/s/^# \?//p' "$0"; exit 2 ;; esac
  options=()
  while [[ ${1:-} == --*=* ]]; do options+=("$1"); shift; done
  exec sbatch ${options[@]+"${options[@]}"} "$0" "$@"
fi

# The last task of an array has the id of the whole array as its SLURM_JOB_ID: scontrol would take that for all tasks.
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
restart=${SLURM_RESTART_COUNT:-0}

# `sbatch --export=NONE` leaves this at NONE for every srun below, and ranks without PATH.
export SLURM_EXPORT_ENV=ALL
# Since Slurm 22.05 srun does not take sbatch's --cpus-per-task by itself.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

node_count=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
# A command once on every node, without MPI, beside nothing else.
per_node=(srun --mpi=none --nodes="$node_count" --ntasks="$node_count" --ntasks-per-node=1 --cpus-per-task=1)

# Sets `launch`: the program's ranks on all nodes; `launch_one`: one rank, on the first node.
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
      # Slurm's other way to let all ranks wait for each other, a tree, now and then lets some go before all have come
      # (22.05): the ranks that are behind then die inside MPI_Init.
      export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
      launch=(srun ${mpi:+--mpi="$mpi"} --kill-on-bad-exit=0 ${SRUN_OPTIONS[@]+"${SRUN_OPTIONS[@]}"})
      launch_one=(srun ${mpi:+--mpi="$mpi"} --nodes=1 --ntasks=1 --ntasks-per-node=1)
      ;;
    mpirun)
      launch=(mpirun ${MPIRUN_OPTIONS[@]+"${MPIRUN_OPTIONS[@]}"})
      launch_one=("${launch[@]}" -n 1)
      ;;
    *) fail "$site: LAUNCHER is '$LAUNCHER', expected srun or mpirun" ;;
  esac
}

# Runs a command with its output appended to a file; signals for the batch script reach it. Sets `code` and `terminated`.
terminated=no
run_and_wait() {
  local log=$1 running
  shift
  "$@" >> "$log" 2>&1 < /dev/null &
  running=$!
  trap 'kill -USR1 $running 2> /dev/null' USR1
  # At the time limit and at scancel Slurm itself sends SIGTERM to every rank: only wait for them.
  trap 'terminated=yes' TERM
  while :; do # a trap ends `wait`
    wait $running
    code=$?
    kill -0 $running 2> /dev/null || break
  done
  trap '' USR1 TERM
}

# Why the ranks were told to stop: prints cancelled (scancel), requeued (Slurm itself queues the job again: preemption,
# a lost node), or limit (its time, or a signal ahead of that or of a preemption).
why_stopped() {
  local shown
  shown=$(scontrol show job -o "$job" 2> /dev/null)
  case $shown in
    *" JobState=CANCELLED "*) echo cancelled ;;
    *" JobState=COMPLETING Reason=TimeLimit "* | *" PreemptTime=2"*) echo limit ;;
    *" Restarts=$((restart + 1)) "*) echo requeued ;;
    *" JobState=COMPLETING "*) echo cancelled ;;
    *) echo limit ;;
  esac
}

# Ends the script. What is left of its chain would meet the same error, or find nothing to do.
leave() {
  if [ -n "${RINGTRAIN_CHAIN:-}" ] && [ $terminated = no ] && [ "$1" != 85 ]; then
    scancel --state=PENDING --user="$(id -un)" --name="$RINGTRAIN_CHAIN"
    say "removed what was left of the chain $RINGTRAIN_CHAIN"
  fi
  exit "$1"
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
