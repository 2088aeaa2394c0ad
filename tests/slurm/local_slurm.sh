#!/bin/bash
# A cluster for tests on one machine. It runs Slurm's own daemons (munged, slurmctld and a slurmd per virtual node) from
# a folder of their own, with ports of their own, and does not touch /etc. tests/README.md lists the differences from a
# real cluster.
#
#   tests/slurm/local_slurm.sh start [--install]   --install: also install packages (root, Debian or Ubuntu)
#   . <(tests/slurm/local_slurm.sh env)            then sbatch, srun, squeue as on any cluster
#   tests/slurm/local_slurm.sh status
#   tests/slurm/local_slurm.sh stop                ends jobs and daemons and removes files; the packages stay
#   tests/slurm/local_slurm.sh purge               also removes the packages that --install has added
#
# Environment: NODES=2, CPUS=8 and GPUS=2 (fake) per node, KILL_WAIT=10 (seconds), NAMESPACES=auto|yes|no,
# LOCAL_SLURM_DIR=/tmp/..., OWNER=PID (the cluster stops when that process has ended).
# Exit code 77 means that it cannot run here. The reason is printed.
#
# As root, every node has its own host name, /dev/shm and /scratch-like folder (namespaces). Otherwise ranks of
# different nodes would share one /dev/shm, so Open MPI uses TCP only.
set -euo pipefail

checkout=$(cd "$(dirname "$0")/../.." && pwd)
number=$(cksum <<< "$checkout" | cut -d' ' -f1)
dir=${LOCAL_SLURM_DIR:-/tmp/slurm-$UID-$number} # short, because paths of sockets have at most 108 characters
nodes=${NODES:-2} cpus=${CPUS:-8} gpus=${GPUS:-2} kill_wait=${KILL_WAIT:-10} namespaces=${NAMESPACES:-auto}
packages=(slurm-wlm slurm-wlm-basic-plugins munge openmpi-bin)
installed_by_us=$dir.packages
export SLURM_CONF=$dir/slurm.conf PATH=$PATH:/usr/sbin:/sbin
unset "${!SBATCH_@}" # the caller may have defaults of another cluster

say() { echo "local_slurm: $*"; }
cannot() { say "$* (not possible here)" >&2; exit 77; }
fail() { say "error: $*" >&2; exit 1; }

# Prints the process ids of this cluster's daemons and job steps. They are recognised by their arguments and
# environment, so processes of other clusters are left alone.
our_processes() {
  local process command
  for process in /proc/[0-9]*; do
    { command=$(tr '\0' ' ' < "$process/cmdline"); } 2> /dev/null || continue
    case $command in
      "munged --key-file=$dir/"*) echo "${process#/proc/}" ;;
      slurmctld* | slurmd* | slurmstepd* | *slurmscriptd*)
        if grep -qzFx "SLURM_CONF=$SLURM_CONF" "$process/environ" 2> /dev/null; then echo "${process#/proc/}"; fi ;;
    esac
  done
}

# Uses the shell's own kill, because a minimal machine may have no other.
end_our_processes() {
  local process
  for process in $(our_processes); do kill -s "$1" "$process" 2> /dev/null || true; done
}

missing_commands() {
  local command
  for command in munged slurmctld slurmd sbatch srun scontrol mpirun; do
    command -v $command > /dev/null || echo $command
  done
}

package_list() { dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | sed -n 's/^ii *//p' | sort; }

install() {
  local missing policy=/usr/sbin/policy-rc.d ours='' failed='' log
  missing=$(missing_commands | xargs)
  [ -n "$missing" ] || return 0
  [ "$1" = --install ] || cannot "there is no $missing; as root: $0 start --install"
  [ "$UID" = 0 ] || cannot "there is no $missing, and only root installs ${packages[*]}"
  command -v apt-get > /dev/null || cannot "there is no $missing, and no apt-get to install ${packages[*]}"
  log=$(mktemp)
  package_list > "$log.before"
  # Debian would start the packages' services at once, without a configured cluster.
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod 755 $policy
    ours=yes
  fi
  say "installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local get=(apt-get -o DPkg::Lock::Timeout=300 -y -q --no-install-recommends install "${packages[@]}")
  { "${get[@]}" || { apt-get -q update && "${get[@]}"; }; } > "$log" 2>&1 || failed=yes
  [ -z $ours ] || rm -f $policy
  if [ $failed ]; then
    tail -n 5 "$log" >&2
    rm -f "$log" "$log.before"
    cannot "apt-get could not install ${packages[*]}"
  fi
  package_list | comm -13 "$log.before" - >> "$installed_by_us"
  rm -f "$log" "$log.before"
  missing=$(missing_commands | xargs)
  [ -z "$missing" ] || cannot "${packages[*]} are installed, and there is still no $missing"
}

# The first of `nodes`+1 free ports. It differs for every checkout, so that several checkouts can be tested at once.
free_ports() {
  local first=$((20000 + number % 20000)) port
  while :; do
    for ((port = first; port <= first + nodes; port++)); do
      if (: < /dev/tcp/127.0.0.1/$port) 2> /dev/null; then first=$((port + 1)); continue 2; fi
    done
    echo $first
    return
  done
}

can_have_namespaces() { unshare --uts --mount sh -c 'hostname node1 && mount -t tmpfs shm /dev/shm' 2> /dev/null; }

write_configuration() {
  local host port i
  host=$(hostname -s)
  port=$(free_ports)
  mkdir -p "$dir"/{state,log,run,scratch}
  chmod 755 "$dir" "$dir/run"
  chmod 1777 "$dir/scratch"
  (umask 077 && head -c 128 /dev/urandom > "$dir/run/munge.key")
  cp /etc/hosts "$dir/hosts"
  cat > "$SLURM_CONF" << END
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
# A requeued job starts when the credentials of its first start have expired, which takes 120 s by default.
AuthInfo=socket=$dir/run/munge.sock,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/%n/spool
# Each node has its own folder, because the PMIx servers of two nodes would use the same one otherwise.
TmpFS=$dir/%n/tmp
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskProlog=$dir/task_prolog
Epilog=$dir/epilog
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobs
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
PropagateResourceLimits=NONE
MpiDefault=none
ReturnToService=2
KillWait=$kill_wait
SlurmdTimeout=60
MinJobAge=3600
# Nodes may claim more cores and memory than this machine has.
SlurmdParameters=config_overrides
END
  if [ "$gpus" -gt 0 ]; then
    echo "GresTypes=gpu" >> "$SLURM_CONF"
    echo "NodeName=node[1-$nodes] Name=gpu File=$dir/dev/nvidia[0-$((gpus - 1))] Flags=nvidia_gpu_env" > "$dir/gres.conf"
  fi
  for ((i = 1; i <= nodes; i++)); do
    echo "NodeName=node$i NodeAddr=127.0.0.1 NodeHostname=$host Port=$((port + i)) CPUs=$cpus RealMemory=64000" \
      "$([ "$gpus" = 0 ] || echo "Gres=gpu:$gpus")" >> "$SLURM_CONF"
    echo "127.0.0.1 node$i" >> "$dir/hosts"
    mkdir -p "$dir/node$i"/{tmp,spool,scratch}
    chmod 1777 "$dir/node$i"/{tmp,scratch}
  done
  cat >> "$SLURM_CONF" << END
# Jobs of the idle partitions are preempted by urgent ones. They are requeued at once, or cancelled after a grace time.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=batch Nodes=ALL Default=YES PriorityTier=1 PreemptMode=OFF
PartitionName=idle Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE
PartitionName=idle_grace Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=30
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
END
  # As at many sites, each job gets a folder on the node's own disk. Open MPI also needs settings for this machine.
  {
    printf '#!/bin/bash\n'
    printf 'folder=%s/scratch/$SLURM_JOB_ID\nmkdir -p $folder\necho export SLURM_TMPDIR=$folder\n' "$dir"
    printf 'echo export %s\n' "${mpi_environment[@]}"
  } > "$dir/task_prolog"
  printf '#!/bin/bash\nrm -rf %s/scratch/"${SLURM_JOB_ID:?}"\n' "$dir" > "$dir/epilog"
  chmod 755 "$dir/task_prolog" "$dir/epilog"
  printf 'export %s\n' "SLURM_CONF=$SLURM_CONF" "PATH=$PATH" "${mpi_environment[@]}" > "$dir/environment"
}

start_node() {
  if [ "$namespaces" = yes ]; then
    unshare --uts --mount bash -c "hostname $1 && mount -t tmpfs -o mode=1777 shm /dev/shm &&
      mount --bind $dir/hosts /etc/hosts && mount --bind $dir/$1/scratch $dir/scratch && exec slurmd -N $1"
  else
    slurmd -N "$1"
  fi
}

all_idle() { [ "$(timeout 5 sinfo -h -t idle -o %D 2> /dev/null)" = "$nodes" ]; }

start() {
  local i deadline
  if [ -n "$(our_processes)" ]; then fail "it is running already in $dir"; fi
  install "${1:-}"
  getent hosts "$(hostname -s)" > /dev/null || cannot "the machine's own name, $(hostname -s), has no address in /etc/hosts"
  rm -rf "$dir"
  mkdir -p "$dir/dev"
  trap 'exit 1' INT TERM
  trap '[ $? = 0 ] || stop >&2' EXIT
  mpi_environment=(OMPI_MCA_mpi_yield_when_idle=1)
  if [ "$UID" = 0 ]; then mpi_environment+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1); fi
  if [ "$namespaces" = auto ]; then namespaces=$(can_have_namespaces && echo yes || echo no); fi
  if [ "$namespaces" = no ]; then mpi_environment+=(OMPI_MCA_btl=self,tcp OMPI_MCA_pml=ob1); fi
  if [ -z "$(hostname -I 2> /dev/null)" ]; then # there is only the loopback interface
    mpi_environment+=(OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo)
    # Without another address, names are not resolved (AI_ADDRCONFIG). This address is reserved for documentation (RFC
    # 5737).
    if ip address add 198.51.100.1/32 dev lo 2> /dev/null; then touch "$dir/loopback_address"; fi
  fi
  for ((i = 0; i < gpus; i++)); do # Slurm asks for a device file, not for a GPU
    mknod "$dir/dev/nvidia$i" c 1 3 2> /dev/null || { say "no device files can be made here: no GPUs"; gpus=0; }
  done
  write_configuration
  munged --key-file="$dir/run/munge.key" --socket="$dir/run/munge.sock" --pid-file="$dir/run/munged.pid" \
    --log-file="$dir/log/munged.log" --seed-file="$dir/run/munged.seed" --num-threads=2
  slurmctld
  for ((i = 1; i <= nodes; i++)); do
    start_node "node$i" || fail "node$i did not start: $(tail -n 3 "$dir/log/node$i.log" 2>&1)"
  done
  deadline=$((SECONDS + 60))
  until all_idle; do
    if [ $SECONDS -gt $deadline ]; then
      tail -n 5 "$dir"/log/*.log >&2
      fail "the nodes did not come up"
    fi
    sleep 0.1
  done
  if [ -n "${OWNER:-}" ]; then
    setsid bash -c 'while kill -0 "$1" 2> /dev/null; do sleep 2; done; LOCAL_SLURM_DIR=$2 "$3" stop' \
      leash "$OWNER" "$dir" "$checkout/tests/slurm/local_slurm.sh" < /dev/null > /dev/null 2>&1 &
    echo $! > "$dir/run/leash.pid"
  fi
  trap - INT TERM EXIT
  say "$nodes nodes are up$([ $namespaces = yes ] && echo ', each with its own host name, /dev/shm and scratch'); now: . <($0 env)"
}

stop() {
  local i leash
  leash=$(cat "$dir/run/leash.pid" 2> /dev/null || true)
  if [ -n "$(our_processes)" ]; then
    timeout 10 scancel --full --signal=KILL --user="$(id -un)" 2> /dev/null || true
    timeout 10 scancel --user="$(id -un)" 2> /dev/null || true
    for ((i = 0; i < 50; i++)); do
      [ -n "$(timeout 5 squeue -h 2> /dev/null)" ] || break
      sleep 0.2
    done
    end_our_processes TERM
    for ((i = 0; i < 100; i++)); do
      [ -n "$(our_processes)" ] || break
      sleep 0.1
    done
    end_our_processes KILL
  fi
  if [ -e "$dir/loopback_address" ]; then ip address del 198.51.100.1/32 dev lo; fi
  rm -rf "$dir"
  # This comes last, since this process may be the leash itself. Another process may have its number by now.
  if [ -n "$leash" ] && [ "$leash" != "$PPID" ] && grep -qzFx leash "/proc/$leash/cmdline" 2> /dev/null; then
    kill "$leash" 2> /dev/null || true
  fi
  say "stopped"
}

status() {
  if [ -z "$(our_processes)" ]; then say "not running"; exit 3; fi
  ps -o pid,etimes,rss,args -p "$(our_processes | paste -sd,)"
  sinfo
  squeue
}

purge() {
  stop
  [ -s "$installed_by_us" ] || return 0
  DEBIAN_FRONTEND=noninteractive xargs apt-get -o DPkg::Lock::Timeout=300 -y -qq purge < "$installed_by_us" > /dev/null
  say "removed $(xargs < "$installed_by_us")"
  rm -f "$installed_by_us"
}

case ${1:-} in
  start) start "${2:-}" ;;
  stop | status | purge) "$1" ;;
  env) cat "$dir/environment" ;;
  *) sed -n '2,20s/^# \?//p' "$0"; exit 2 ;;
esac
