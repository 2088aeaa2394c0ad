#!/bin/bash
# Installs on Debian what a command needs. On other systems it lists what is missing.
#   .ci/setup.sh demo     the build of the programs, and the plot of a run
#   .ci/setup.sh study    also the reports of studies
#   .ci/setup.sh [all]    also the tests, and the build of the library for GPUs where CUDA is
# With WITH_CUDA=yes, the first two build that library, too.
set -u
packages="g++ make pkg-config git libopenmpi-dev openmpi-bin libhdf5-dev libyaml-cpp-dev libdnnl-dev libjpeg-dev libpng-dev zlib1g-dev libutf8proc-dev nlohmann-json3-dev libcli11-dev
  wamerican python3 python3-numpy python3-matplotlib"
for_studies="python3-scipy python3-h5py python3-yaml"
for_tests="libgtest-dev hdf5-tools python3-pytest lmod" # with Lmod a test loads the installed module
purpose=${1:-all}
case $purpose in
  demo) ;;
  study) packages+=" $for_studies" ;;
  all) packages+=" $for_studies $for_tests" ;;
  *) echo "error: .ci/setup.sh knows demo, study and all, not $purpose" >&2; exit 2 ;;
esac

cd "$(dirname "$0")/.." || exit 1

# If there is CUDA, the build downloads cuDNN's front end from PyPI (.ci/cudnn_frontend.sh).
if { [ "$purpose" = all ] || [ -n "${WITH_CUDA:-}" ]; } && [ "${CUDA:-auto}" != 0 ] && command -v "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" > /dev/null; then
  python3 -m pip --version > /dev/null 2>&1 || packages+=" python3-pip"
fi

if command -v dpkg-query > /dev/null; then
  # shellcheck disable=SC2086
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $packages 2> /dev/null | sed -n 's/ installed$//p')
  missing=""
  for package in $packages; do
    grep -qxF "$package" <<< "$installed" || missing+=" $package"
  done
  [ -z "$missing" ] && exit 0
else
  missing=" $packages"
fi

as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
can_install=yes
command -v apt-get > /dev/null || can_install=no
# A sudo that asks for a password is useful only if somebody can type it.
if [ -n "$as_root" ] && ! sudo -n true 2> /dev/null; then
  command -v sudo > /dev/null && [ -t 0 ] || can_install=no
fi

if [ $can_install = yes ]; then
  echo "Installing these Debian packages:$missing"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || echo "apt-get update failed; going on with the lists at hand" >&2
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq $missing > /dev/null ||
    { echo "error: apt-get could not install:$missing" >&2; exit 1; }
  echo "Installed."
  exit 0
fi

echo "These Debian packages are not installed, and there is no apt-get with root or sudo here:"
echo "  $(echo $missing)"
echo "Install them (sudo apt-get install ...), or use what your site has:"
echo "  modules  module load gcc openmpi hdf5 yaml-cpp onednn libjpeg-turbo libpng zlib utf8proc nlohmann-json cli11 googletest python"
echo "  spack    spack load gcc openmpi hdf5 yaml-cpp onednn libjpeg-turbo libpng zlib utf8proc nlohmann-json cli11 googletest py-matplotlib py-h5py py-pyyaml py-pytest"
echo "  or set MPI_HOME, HDF5_HOME, YAML_CPP_HOME, DNNL_HOME, JPEG_HOME, PNG_HOME, ZLIB_HOME, UTF8PROC_HOME, JSON_HOME, CLI11_HOME, GTEST_HOME to their folders."
echo "Looking for the libraries themselves:"
probe=$(mktemp)
trap 'rm -f "$probe"' EXIT
if .ci/configure.sh "$probe"; then
  echo "The libraries are there; going on without the packages."
  exit 0
fi
exit 1
