#!/bin/sh
# The start script of a bundle. `make bundle` copies it into the bundle's folder under the name `ringtrain`. It starts a
# program of that folder with the folder's own C library, loader and MPI. Nothing is installed, and the folder may lie
# anywhere. CUDA's libraries come from the machine: from a toolkit or module (CUDA_HOME, CUDNN_HOME, NCCL_HOME,
# LD_LIBRARY_PATH), from a Python environment (nvidia/*/lib), or from the folders of RINGTRAIN_CUDA_LIBRARIES.
set -eu
self=$(readlink -f "$0")
here=${self%/*}
export PATH # when it is not set, the shell has one of its own, and mpirun's ranks need it
name=${0##*/} # bin/* and build/tests/* are links to this script
loader=$(echo "$here"/lib/ld-*.so.*)
[ -x "$here/programs/$name" ] || { echo "error: this folder has no program $name" >&2; exit 1; }

export RINGTRAIN_EXECUTABLE="$here/bin/ringtrain" RINGTRAIN_ROOT="${RINGTRAIN_ROOT:-$here}"
export OPAL_PREFIX="$here/mpi" OPAL_BINDIR="$here/bin" OPAL_LIBDIR="$here/mpi/lib" OPAL_PKGLIBDIR="$here/mpi/plugins"
export OPAL_DATADIR="$here/mpi/share" OPAL_PKGDATADIR="$here/mpi/share/openmpi" OPAL_SYSCONFDIR="$here/mpi/etc"
export PMIX_PREFIX="$here/mpi" PMIX_LIBDIR="$here/mpi/lib" PMIX_PKGLIBDIR="$here/mpi/pmix" PMIX_DATADIR="$here/mpi/share"
export PMIX_PKGDATADIR="$here/mpi/share/pmix" PMIX_SYSCONFDIR="$here/mpi/etc"
# Without mpirun, a rank starts no daemon. mpirun starts ranks on this machine only (without ssh).
export OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_plm=isolated

exec "$loader" --library-path "$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$here/programs/$name" "$@"
