#!/bin/bash
# Runs one of several ranks on one GPU: tests/mpirun.sh 2 tests/gpu/rank.sh COMMAND ... NCCL refuses two ranks of one
# host on one device. With host names of their own the ranks communicate through sockets. Use this for correctness only,
# because the ranks take turns on the GPU.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-0}}}
export NCCL_HOSTID=rank$rank NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0
export NCCL_MAX_NCHANNELS=${NCCL_MAX_NCHANNELS:-2} NCCL_CUMEM_HOST_ENABLE=0
# Only rank 0 writes a report. The other ranks would overwrite it.
if [ "$rank" != 0 ]; then
  for argument; do
    shift
    case $argument in --gtest_output=*) ;; *) set -- "$@" "$argument" ;; esac
  done
fi
exec "$@"
