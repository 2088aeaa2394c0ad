#!/bin/bash
# Finds the libraries of the CPU program and writes build/config.mk, which the Makefile includes. It runs when a variable
# or a flag has changed. The build ends with an error if a needed library is missing, or one that the user asked for
# (X_HOME is set). The error names the variable.
set -u
output=${1:?usage: .ci/configure.sh OUTPUT}
. "$(dirname "$0")/probes.sh"

command -v "$CXX" > /dev/null || fail "the compiler $CXX was not found" "Debian: apt-get install g++ (make setup does it) · modules: module load gcc · or set CXX."
links source_location || fail "$CXX does not compile C++20 (<source_location>)" "GCC 11 or Clang 16 and newer do; set CXX."

# For MPI, takes the flags that its compiler wrapper would add.
mpicxx=${MPI_HOME:+$MPI_HOME/bin/mpicxx}
mpicxx=${mpicxx:-$(command -v mpicxx || true)}
if [ -n "$mpicxx" ]; then
  [ -x "$mpicxx" ] || fail "MPI_HOME=$MPI_HOME has no bin/mpicxx" "Set MPI_HOME to MPI's folder, or unset it to take mpicxx from PATH."
  if mpi_cflags=$("$mpicxx" --showme:compile 2> /dev/null); then
    mpi_libs=$("$mpicxx" --showme:link)
  else # MPICH and similar MPIs print the whole command
    shown=$("$mpicxx" -show | cut -d' ' -f2-) || fail "$mpicxx knows neither --showme:compile nor -show"
    mpi_cflags=$(tr ' ' '\n' <<< "$shown" | grep -E '^-[ID]' | tr '\n' ' ')
    mpi_libs=$(tr ' ' '\n' <<< "$shown" | grep -E '^-([Ll]|Wl)' | tr '\n' ' ')
  fi
  mpi_folder=$(sed -n 's/.*-L\([^ ]*\).*/\1/p' <<< " $mpi_libs")
  [ -n "${MPI_HOME:-}" ] && [ -n "$mpi_folder" ] && mpi_libs+=" -Wl,-rpath,$mpi_folder"
elif links mpi.h; then # the compiler is a wrapper itself (Cray)
  mpi_cflags="" mpi_libs=""
else
  fail "MPI was not found (no mpicxx on PATH)" "Debian: apt-get install libopenmpi-dev openmpi-bin (make setup does it) · modules: module load openmpi · spack: spack load openmpi · or set MPI_HOME."
fi
mpi_cflags="$(sed 's/-I */-isystem /g' <<< "$mpi_cflags") -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX"
mpi_libs=$(sed -E 's/-l(mpi_cxx|mpicxx)( |$)/ /g' <<< "$mpi_libs")
# shellcheck disable=SC2086
links mpi.h $mpi_cflags $mpi_libs || fail "a program with mpi.h does not build with the flags of $mpicxx" "$(grep -m1 -i error "$scratch/log")"
mpirun=${mpicxx:+$(dirname "$mpicxx")/mpirun}
[ -x "${mpirun:-}" ] || mpirun=$(command -v mpirun || command -v mpiexec || echo mpirun)
ompi=$(macro OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION.OMPI_RELEASE_VERSION mpi.h $mpi_cflags)
case $ompi in [0-9]*) mpi_version="Open MPI $ompi" ;; *) mpi_version="MPICH $(macro MPICH_VERSION mpi.h $mpi_cflags)" ;; esac
case $mpi_version in *MPICH_VERSION*) mpi_version="unknown make" ;; esac

find_library HDF5_HOME hdf5.h hdf5 libhdf5-dev hdf5 hdf5-serial hdf5 hdf5-openmpi
hdf5_cflags=$cflags hdf5_libs=$libs
hdf5_version=$(macro H5_VERS_MAJOR.H5_VERS_MINOR.H5_VERS_RELEASE hdf5.h $cflags)
[ "$(printf '%s\n' 1.10.6 "$hdf5_version" | sort -V | head -1)" = 1.10.6 ] ||
  fail "HDF5 1.10.6 or later is needed, and hdf5.h is of ${hdf5_version:-an unknown version}" "Set HDF5_HOME to the folder of a newer HDF5 (module load hdf5; spack: spack load hdf5)."

find_library YAML_CPP_HOME yaml-cpp/yaml.h yaml-cpp libyaml-cpp-dev yaml-cpp yaml-cpp
yaml_cflags=$cflags yaml_libs=$libs
yaml_pc=${YAML_CPP_HOME:+$(ls "$YAML_CPP_HOME"/{lib,lib64,share}/pkgconfig/yaml-cpp.pc 2> /dev/null | head -1)}
yaml_version=$(pkg-config --modversion "${yaml_pc:-yaml-cpp}" 2> /dev/null || echo unknown)

find_library DNNL_HOME dnnl.hpp dnnl libdnnl-dev onednn dnnl
dnnl_cflags=$cflags dnnl_libs=$libs
dnnl_version=$(macro DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR.DNNL_VERSION_PATCH oneapi/dnnl/dnnl_version.h $cflags)

find_library JPEG_HOME jpeglib.h jpeg libjpeg-dev libjpeg-turbo libjpeg
jpeg_cflags=$cflags jpeg_libs=$libs
jpeg_version=$(macro LIBJPEG_TURBO_VERSION jconfig.h $cflags)
case $jpeg_version in [0-9]*) ;; *) fail "the libjpeg that was found is not libjpeg-turbo, whose partial decoding is needed" "Set JPEG_HOME to libjpeg-turbo's folder." ;; esac

find_library PNG_HOME png.h png libpng-dev libpng libpng
png_cflags=$cflags png_libs=$libs
png_version=$(macro PNG_LIBPNG_VER_STRING png.h $cflags)

find_library ZLIB_HOME zlib.h z zlib1g-dev zlib-ng zlib zlib
zlib_cflags=$cflags zlib_libs=$libs
zlib_version=$(macro ZLIB_VERSION zlib.h $cflags)

find_library UTF8PROC_HOME utf8proc.h utf8proc libutf8proc-dev utf8proc libutf8proc
utf8proc_cflags=$cflags utf8proc_libs=$libs
utf8proc_version=$(macro UTF8PROC_VERSION_MAJOR.UTF8PROC_VERSION_MINOR.UTF8PROC_VERSION_PATCH utf8proc.h $cflags)

find_library JSON_HOME nlohmann/json.hpp "" nlohmann-json3-dev nlohmann-json nlohmann_json
json_cflags=$cflags
json_version=$(macro NLOHMANN_JSON_VERSION_MAJOR.NLOHMANN_JSON_VERSION_MINOR.NLOHMANN_JSON_VERSION_PATCH nlohmann/json.hpp $cflags)

find_library CLI11_HOME CLI/CLI.hpp "" libcli11-dev cli11 CLI11
cli11_cflags=$cflags
cli11_version=$(macro CLI11_VERSION CLI/Version.hpp $cflags)

case $("$CXX" -dumpmachine) in
  x86_64-*) isas="baseline avx2 avx512 avx512_bf16" isa_flags="" ;;
  *) isas="baseline" isa_flags="-DRINGTRAIN_ONLY_BASELINE" ;;
esac

cat > "$output" << END || exit 1
# Written by .ci/configure.sh.
MPI_CFLAGS := $mpi_cflags
MPI_LIBS := $mpi_libs
MPIRUN := $mpirun
HDF5_CFLAGS := $hdf5_cflags
HDF5_LIBS := $hdf5_libs
YAML_CFLAGS := $yaml_cflags
YAML_LIBS := $yaml_libs
YAML_VERSION := $yaml_version
DNNL_CFLAGS := $dnnl_cflags
DNNL_LIBS := $dnnl_libs
JPEG_CFLAGS := $jpeg_cflags
JPEG_LIBS := $jpeg_libs
PNG_CFLAGS := $png_cflags
PNG_LIBS := $png_libs
ZLIB_CFLAGS := $zlib_cflags
ZLIB_LIBS := $zlib_libs
UTF8PROC_CFLAGS := $utf8proc_cflags
UTF8PROC_LIBS := $utf8proc_libs
JSON_CFLAGS := $json_cflags
CLI11_CFLAGS := $cli11_cflags
ISAS := $isas
ISA_FLAGS := $isa_flags
END

cat << END
  compiler   $("$CXX" --version | head -1)
  MPI        $mpi_version (${mpicxx:-$CXX})
  HDF5       $hdf5_version
  yaml-cpp   $yaml_version
  oneDNN     $dnnl_version
  libjpeg    turbo $jpeg_version
  libpng     $png_version
  zlib       $zlib_version
  utf8proc   $utf8proc_version
  JSON       nlohmann $json_version
  CLI11      $cli11_version
  CPU        kernels for: $isas (chosen at run time)
END
