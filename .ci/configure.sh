#!/bin/bash
# Finds the libraries and writes build/config.mk, which the Makefile includes. It runs when a variable or a flag has
# changed. The build ends with an error if a needed library is missing, or one that the user asked for (X_HOME is set, or
# CUDA=1). The error names the variable. Without CUDA=1, a missing CUDA, cuDNN or NCCL is no error, even if its
# X_HOME is set: the build is then for CPUs only.
set -u
output=${1:?usage: .ci/configure.sh OUTPUT}
CXX=${CXX:-g++}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { # what is wrong, what to do
  echo "error: $1" >&2
  [ -n "${2:-}" ] && echo "       $2" >&2
  exit 1
}

# Returns whether a program with this header links with these flags.
links() { # header, flags...
  local header=$1
  shift
  printf '#include <cstdio>\n#include <%s>\nint main() { return 0; }\n' "$header" > "$scratch/probe.cpp" # jpeglib.h needs FILE
  "$CXX" -std=c++20 "$scratch/probe.cpp" -o "$scratch/probe" "$@" 2> "$scratch/log"
}

# Prints the value of a macro of a header.
macro() { # name, header, flags...
  local name=$1 header=$2
  shift 2
  printf '#include <%s>\nringtrain_value %s\n' "$header" "$name" |
    "$CXX" -std=c++20 -x c++ -E -P - "$@" 2> /dev/null | sed -n 's/^ringtrain_value //p' | tr -d '" '
}

# Prints the library's folder below X_HOME.
library_folder() { # home, library name
  local folder
  for folder in "$1/lib64" "$1/lib" "$1/lib/$("$CXX" -dumpmachine)" "$1/lib/$(uname -m)-linux-gnu" "$1"; do
    ls "$folder/lib$2".* > /dev/null 2>&1 && echo "$folder" && return
  done
}

# Sets cflags and libs of one library. They come from X_HOME if it is set, else from pkg-config, else from the system's
# folders.
find_library() { # variable, header, library ("" = header only), Debian package, module/spack name, pkg-config names...
  local variable=$1 header=$2 library=$3 package=$4 module=$5 home folder="" name
  shift 5
  home=${!variable:-}
  if [ -n "$home" ]; then
    [ -e "$home/include/$header" ] || fail "$variable=$home has no include/$header" "Set $variable to the folder that holds include/ and lib/ of $module, or unset it."
    cflags="-isystem $home/include" libs=""
    [ "$home" -ef /usr ] && cflags="" # with -isystem, it would come before the compiler's own headers
    if [ -n "$library" ]; then
      folder=$(library_folder "$home" "$library")
      [ -n "$folder" ] || fail "$variable=$home has no lib/lib$library" "Set $variable to the folder that holds include/ and lib/ of $module, or unset it."
      libs="-L$folder -Wl,-rpath,$folder -l$library"
    fi
    # shellcheck disable=SC2086
    links "$header" $cflags $libs || fail "$variable=$home: a program with $header does not build" "$(grep -m1 -i error "$scratch/log")"
    return
  fi
  for name in "$@"; do
    pkg-config --exists "$name" 2> /dev/null || continue
    cflags=$(pkg-config --cflags "$name" | sed 's/-I */-isystem /g') libs=$(pkg-config --libs "$name")
    # shellcheck disable=SC2086
    links "$header" $cflags $libs && return
  done
  cflags="" libs="${library:+-l$library}"
  # shellcheck disable=SC2086
  links "$header" $libs && return
  fail "$module was not found ($header${library:+, lib$library})" \
    "Debian: apt-get install $package (make setup does it) · modules: module load $module · spack: spack load $module · or set $variable."
}

# Records why the GPU backend cannot be built. With CUDA=1 this is an error. Otherwise the build is for CPUs only and
# prints the reason.
no_cuda() { # what is missing, what to do
  [ "${CUDA:-auto}" = 1 ] && fail "CUDA=1, but $1" "$2 Or build with CUDA=0."
  cuda_line="off ($1)"
  return 1
}

# Finds the folder of a header of cuDNN or NCCL: below its own variable, next to CUDA, or in the compiler's folders.
find_header() { # variable, header; sets folder ("" = the compiler finds it)
  local home=${!1:-}
  for home in ${home:+"$home"} "$cuda_home"; do
    folder=$home/include
    [ -e "$folder/$2" ] && return
    [ -n "${!1:-}" ] && return 1
  done
  folder=""
  printf '#include <%s>\n' "$2" | "$CXX" -std=c++20 -x c++ -E - -isystem "$cuda_home/include" > /dev/null 2>&1
}

missing() { # variable, header
  if [ -n "${!1:-}" ]; then echo "$1=${!1} has no include/$2"; else echo "$2 was not found beside CUDA ($cuda_home) or among the system's headers"; fi
}

find_cuda() {
  case ${CUDA:-auto} in
    auto | 1) ;;
    0) cuda_line="off (CUDA=0)" && return ;;
    *) fail "CUDA=$CUDA is not one of auto, 0, 1" ;;
  esac
  local nvcc folder found
  if [ -n "${CUDA_HOME:-}" ]; then
    nvcc=$CUDA_HOME/bin/nvcc
    [ -x "$nvcc" ] || no_cuda "CUDA_HOME=$CUDA_HOME has no bin/nvcc" "Set CUDA_HOME to the CUDA toolkit's folder (module load cuda)." || return
  else
    nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || no_cuda "no nvcc was found" "Set CUDA_HOME to the CUDA toolkit's folder (module load cuda)." || return
    nvcc=$(readlink -f "$nvcc")
  fi
  cuda_home=$(cd "$(dirname "$nvcc")/.." && pwd)
  cuda_cflags=""
  for folder in "$cuda_home/include" "$cuda_home/targets/$(uname -m)-linux/include"; do
    [ -e "$folder/cuda_runtime.h" ] && cuda_cflags="-isystem $folder" && break
  done
  [ -n "$cuda_cflags" ] || no_cuda "$cuda_home has no include/cuda_runtime.h" "Set CUDA_HOME to a complete CUDA toolkit." || return
  found=$(library_folder "$cuda_home" cudart_static)
  [ -n "$found" ] || no_cuda "$cuda_home has no lib64/libcudart_static.a" "Set CUDA_HOME to a complete CUDA toolkit." || return
  cuda_libs="$found/libcudart_static.a -ldl -lrt"

  find_header CUDNN_HOME cudnn.h || no_cuda "$(missing CUDNN_HOME cudnn.h)" "Set CUDNN_HOME to cuDNN's folder (module load cudnn)." || return
  [ -z "$folder" ] || [[ " $cuda_cflags " == *" $folder "* ]] || cuda_cflags+=" -isystem $folder"
  find_header NCCL_HOME nccl.h || no_cuda "$(missing NCCL_HOME nccl.h)" "Set NCCL_HOME to NCCL's folder (module load nccl)." || return
  [ -z "$folder" ] || [[ " $cuda_cflags " == *" $folder "* ]] || cuda_cflags+=" -isystem $folder"

  local cuda cudnn nccl
  cuda=$(macro CUDART_VERSION cuda_runtime_api.h $cuda_cflags)
  cudnn=$(macro CUDNN_MAJOR.CUDNN_MINOR.CUDNN_PATCHLEVEL cudnn_version.h $cuda_cflags)
  nccl=$(macro NCCL_MAJOR.NCCL_MINOR.NCCL_PATCH nccl.h $cuda_cflags)
  [ "${cudnn%%.*}" = 9 ] || no_cuda "cuDNN 9 is needed, and cudnn.h is of ${cudnn:-an unknown version}" "Set CUDNN_HOME to a cuDNN 9." || return

  if [ -n "${CUDNN_FRONTEND_HOME:-}" ]; then
    found=$CUDNN_FRONTEND_HOME/include
    [ -e "$found/cudnn_frontend.h" ] || no_cuda "CUDNN_FRONTEND_HOME=$CUDNN_FRONTEND_HOME has no include/cudnn_frontend.h" "Set it to the folder that holds include/ of NVIDIA's cudnn-frontend." || return
  else
    found=build/cudnn-frontend/include
    .ci/cudnn_frontend.sh > "$scratch/frontend" 2>&1 ||
      no_cuda "cuDNN's front end could not be fetched: $(tail -1 "$scratch/frontend")" "Fetch it where there is a network (make setup), or set CUDNN_FRONTEND_HOME to a copy of NVIDIA's cudnn-frontend." || return
  fi
  local frontend
  frontend=$(sed -n 's/#define CUDNN_FRONTEND_M[AI][JN]OR_VERSION *//p' "$found/cudnn_frontend_version.h" | paste -sd.)
  cuda_cflags+=" -isystem $found -DNV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING" # cuDNN is opened at run time (libraries.h)

  # Compiles one object for each kind of GPU, and the portable code of the last one for newer GPUs.
  local known architecture last=""
  known=$("$nvcc" --list-gpu-arch)
  cuda_gencode=""
  for architecture in ${CUDA_ARCHITECTURES:-80 90 100}; do
    if ! grep -qx "compute_${architecture%[af]}" <<< "$known"; then
      [ -z "${CUDA_ARCHITECTURES:-}" ] || no_cuda "$nvcc does not know CUDA_ARCHITECTURES=$architecture" "It knows: $(sed 's/compute_//' <<< "$known" | paste -sd' ')." || return
      continue
    fi
    cuda_gencode+=" -gencode arch=compute_$architecture,code=sm_$architecture" last=$architecture
  done
  [ -n "$last" ] || no_cuda "$nvcc knows none of the architectures 80 90 100" "Set CUDA_ARCHITECTURES." || return
  cuda_gencode+=" -gencode arch=compute_$last,code=compute_$last"
  case $(command -v "$CXX") in */ccache/*) nvcc="ccache $nvcc" ;; esac # nvcc is cached if the compiler is
  cuda_nvcc=$nvcc cuda_state=on
  cuda_versions="CUDA $((cuda / 1000)).$((cuda % 1000 / 10)), cuDNN $cudnn (front end $frontend), NCCL $nccl,$(grep -oE 'code=sm_[0-9af]+' <<< "$cuda_gencode" | sed 's/code=/ /' | tr -d '\n')"
  cuda_line="on ($cuda_versions; $cuda_home)"
  [ "${CUDA:-auto}" = 1 ] || cuda_line+=$'\n             make demo CUDA=0 builds without it, and sooner'
}

# Finds CUTLASS's headers for the library that `make hopper` builds. Nothing else needs them.
find_cutlass() {
  cutlass_include=${CUTLASS_HOME:+$CUTLASS_HOME/include}
  if [ -n "$cutlass_include" ]; then
    [ -e "$cutlass_include/cutlass/cutlass.h" ] || fail "CUTLASS_HOME=$CUTLASS_HOME has no include/cutlass/cutlass.h" "Set CUTLASS_HOME to the folder of CUTLASS 4.2, or unset it."
  elif [ $cuda_state != on ]; then
    cutlass_why="CUDA is off"
  elif .ci/cutlass.sh > "$scratch/cutlass" 2>&1; then
    cutlass_include=build/cutlass/include
  else
    cutlass_why="CUTLASS could not be fetched: $(tail -1 "$scratch/cutlass" | tr -d '"$`')"
  fi
  [ -n "$cutlass_include" ] || return
  cutlass_version=$(macro CUTLASS_MAJOR.CUTLASS_MINOR.CUTLASS_PATCH cutlass/version.h -I"$cutlass_include" | tr -d ' ')
  if [ $cuda_state = on ] && ! "${cuda_nvcc##* }" --list-gpu-arch | grep -qx compute_90; then
    cutlass_include="" cutlass_why="$cuda_nvcc does not know compute_90"
  fi
}

command -v "$CXX" > /dev/null || fail "the compiler $CXX was not found" "Debian: apt-get install g++ (make setup does it) · modules: module load gcc · or set CXX."
links source_location || fail "$CXX does not compile C++20 (<source_location>)" "GCC 11 or Clang 16 and newer do; set CXX."
cuda_state=off cuda_nvcc="" cuda_home="" cuda_cflags="" cuda_libs="" cuda_gencode="" cuda_versions=""
find_cuda
cutlass_include="" cutlass_why="" cutlass_version=""
find_cutlass
[ $cuda_state = on ] || cutlass_include="" cutlass_why="the build has no CUDA"
[ $cuda_state = on ] || cuda_home="" cuda_cflags="" cuda_libs="" cuda_gencode=""

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

find_library UTF8PROC_HOME utf8proc.h utf8proc libutf8proc-dev utf8proc libutf8proc
utf8proc_cflags=$cflags utf8proc_libs=$libs
utf8proc_version=$(macro UTF8PROC_VERSION_MAJOR.UTF8PROC_VERSION_MINOR.UTF8PROC_VERSION_PATCH utf8proc.h $cflags)

find_library JSON_HOME nlohmann/json.hpp "" nlohmann-json3-dev nlohmann-json nlohmann_json
json_cflags=$cflags
json_version=$(macro NLOHMANN_JSON_VERSION_MAJOR.NLOHMANN_JSON_VERSION_MINOR.NLOHMANN_JSON_VERSION_PATCH nlohmann/json.hpp $cflags)

find_library CLI11_HOME CLI/CLI.hpp "" libcli11-dev cli11 CLI11
cli11_cflags=$cflags
cli11_version=$(macro CLI11_VERSION CLI/Version.hpp $cflags)

# Only the tests need GoogleTest. Without it everything else builds.
gtest_found=$( (find_library GTEST_HOME gtest/gtest.h gtest libgtest-dev googletest gtest && echo "$cflags|$libs") 2>&1)
gtest_libs="" gtest_cflags=""
case $gtest_found in
  error:*)
    [ -z "${GTEST_HOME:-}" ] || { echo "$gtest_found" >&2; exit 1; }
    gtest_line="missing: no tests (Debian: libgtest-dev; or set GTEST_HOME)" ;;
  *)
    gtest_cflags=${gtest_found%%|*} gtest_libs="-lgtest_main ${gtest_found#*|} -lpthread"
    gtest_libs="$(grep -oE -- '-(L|Wl,)[^ ]*' <<< "$gtest_libs" | tr '\n' ' ') $gtest_libs"
    gtest_line="found" ;;
esac

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
UTF8PROC_CFLAGS := $utf8proc_cflags
UTF8PROC_LIBS := $utf8proc_libs
JSON_CFLAGS := $json_cflags
CLI11_CFLAGS := $cli11_cflags
GTEST_CFLAGS := $gtest_cflags
GTEST_LIBS := $gtest_libs
CUDA_STATE := $cuda_state
NVCC := $cuda_nvcc
CUDA_CFLAGS := $cuda_cflags
CUDA_LIBS := $cuda_libs
CUDA_GENCODE := $cuda_gencode
CUDA_VERSIONS := $cuda_versions
CUDA_FOLDER := $cuda_home
CUTLASS_INCLUDE := $cutlass_include
CUTLASS_WHY := $cutlass_why
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
  utf8proc   $utf8proc_version
  JSON       nlohmann $json_version
  CLI11      $cli11_version
  GoogleTest $gtest_line
  CPU        kernels for: $isas (chosen at run time)
  CUDA       $cuda_line
  CUTLASS    ${cutlass_include:+$cutlass_version (make hopper)}${cutlass_why:+none, no library for Hopper: $cutlass_why}
END
