#!/bin/bash
# Runs a command on N ranks of this machine, also as root, in a container or with more ranks than cores:
#   tests/mpirun.sh N COMMAND ...
# With Open MPI, ranks get equal shares of the cores and stay on them. Ranks are not bound if this process may use only
# some of the machine's CPUs. With more ranks than cores, ranks are not bound either, and they sleep while they wait.
# Runs on several nodes use the site's own launcher (srun).
set -eu
[ $# -ge 2 ] || { echo "usage: tests/mpirun.sh N COMMAND ..." >&2; exit 2; }
ranks=$1
shift
case $ranks in '' | *[!0-9]* | 0) echo "error: the number of ranks is '$ranks', expected 1 or more" >&2; exit 2 ;; esac

# MPIRUN=... or MPI_HOME=... chooses the mpirun. Otherwise it is that of the MPI with which the programs were linked.
root=$(cd "$(dirname "$0")/.." && pwd)
built_with=$(sed -n 's/^MPIRUN := //p' "$root/build/config.mk" 2> /dev/null || true)
[ -x "$root/bin/mpirun" ] && built_with=$root/bin/mpirun # a bundle has its own
mpirun=${MPIRUN:-${MPI_HOME:+$MPI_HOME/bin/mpirun}}
mpirun=${mpirun:-${built_with:-mpirun}}
command -v "$mpirun" > /dev/null || { echo "error: $mpirun was not found; set MPI_HOME (make setup installs Open MPI)" >&2; exit 1; }

# Counts the cores that this process may use. nproc counts hardware threads of the affinity mask.
threads_per_core=$(LC_ALL=C lscpu 2> /dev/null | sed -n 's/^Thread(s) per core: *//p')
case $threads_per_core in '' | *[!0-9]* | 0) threads_per_core=1 ;; esac
usable=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
cores=$(((usable + threads_per_core - 1) / threads_per_core))

version=$("$mpirun" --version 2> /dev/null | head -1)
options=()
case $version in
  *"Open MPI"* | *OpenRTE* | *PRRTE* | *prte*)
    [ "$(id -u)" = 0 ] && options+=(--allow-run-as-root)
    if [ "$ranks" -gt "$cores" ]; then
      options+=(--oversubscribe --bind-to none)
      export OMPI_MCA_mpi_yield_when_idle=1
    elif [ "$usable" -lt "$(nproc --all)" ]; then
      options+=(--bind-to none) # Open MPI would bind to cores outside this process's mask
    else
      options+=(--map-by "slot:PE=$((cores / ranks))" --bind-to core)
    fi
    ;;
  *) ;; # MPICH and similar MPIs oversubscribe, run as root and leave ranks unbound by default
esac
# On SIGINT or SIGTERM, Open MPI sends SIGKILL to all ranks a second later, which can be too soon for a checkpoint. It
# only forwards SIGUSR1 and SIGUSR2. So mpirun gets a process group of its own, which Ctrl-C does not reach, and this
# script turns both signals into SIGUSR1. A second signal becomes SIGUSR2, which ends the run at once, unless a
# checkpoint is being written. A third signal kills the ranks. Open MPI ends every job whose exit code is not 0 with
# banners of its own. They would hide the program's message, so they are left out. All other banners are printed.
without_banners() {
  trap '' INT TERM HUP USR1
  local line block="" inside=no
  while IFS= read -r line || [ -n "$line" ]; do
    if [[ $line =~ ^-{74}$ ]]; then
      if [ $inside = no ]; then
        inside=yes block=$line
        continue
      fi
      inside=no
      case $block in
        *"MPI_ABORT was invoked"* | *"a non-zero exit code. Per user-direction"* | *"exited with non-zero status, thus causing"*) ;;
        *) printf '%s\n%s\n' "$block" "$line" ;;
      esac
    elif [ $inside = yes ]; then
      block+=$'\n'$line
    else
      printf '%s\n' "$line"
    fi
  done
  [ $inside = no ] || printf '%s\n' "$block"
}
exec 3> >(without_banners >&2)
filter=$!
set -m
leash=() # ends mpirun after a kill -9 of this script
setpriv --pdeathsig TERM true 2> /dev/null && leash=(setpriv --pdeathsig TERM)
${leash[@]+"${leash[@]}"} "$mpirun" -n "$ranks" ${options[@]+"${options[@]}"} "$@" < /dev/null 2>&3 3>&- &
job=$!
exec 3>&-
signals=0
stop() {
  signals=$((signals + 1))
  case $signals in 1) signal=USR1 ;; 2) signal=USR2 ;; *) signal=TERM ;; esac
  kill -$signal $job 2> /dev/null || true
}
trap stop INT TERM HUP
trap 'kill -USR1 $job 2> /dev/null || true' USR1
code=0
wait $job || code=$?
while kill -0 $job 2> /dev/null; do # a trap ends `wait` before the job has ended
  sleep 0.1                         # with job control (set -m), `wait` returns at once while mpirun is stopped
  code=0
  wait $job || code=$?
done
wait $filter 2> /dev/null || true # then all output has been printed
case $code in 134 | 135 | 137 | 139) # ABRT, BUS, KILL, SEGV; mpirun does not always report them
  echo "error: a rank was ended by signal $((code - 128)) ($(kill -l $((code - 128))))" >&2 ;;
esac
exit $code
