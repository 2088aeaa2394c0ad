#!/bin/bash
# Finds nvcc, CUDA, cuDNN and NCCL for bin/libringtrain-cuda.so, and writes build/cuda.mk, which the Makefile includes. It
# runs when one of their variables has changed. With CUDA=1, it is an error if one is missing. Without, that is no error,
# even if its X_HOME is set: the build is then for CPUs only.
set -u
output=${1:?usage: .ci/configure_cuda.sh OUTPUT}
. "$(dirname "$0")/probes.sh"

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

# Prints the compute capabilities of this machine's GPUs, such as "80 90"; nothing where there is no GPU.
gpus_of_this_machine() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d '. ' | grep -E '^[0-9]+$' | sort -un | paste -sd' '
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
      no_cuda "cuDNN's front end could not be fetched: $(why_not_fetched "$scratch/frontend")" "Fetch it where there is a network (make setup), or set CUDNN_FRONTEND_HOME to a copy of NVIDIA's cudnn-frontend." || return
  fi
  local frontend
  frontend=$(sed -n 's/#define CUDNN_FRONTEND_M[AI][JN]OR_VERSION *//p' "$found/cudnn_frontend_version.h" | paste -sd.)
  cuda_cflags+=" -isystem $found -DNV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING" # cuDNN is opened at run time (libraries.h)

  # Compiles one object for each kind of GPU, and the portable code of the last one for newer GPUs.
  local known architecture architectures=${CUDA_ARCHITECTURES:-$(gpus_of_this_machine)} last=""
  [ "$architectures" != all ] || architectures="80 90 100"
  known=$("$nvcc" --list-gpu-arch)
  cuda_gencode=""
  for architecture in ${architectures:-90}; do
    if ! grep -qx "compute_${architecture%[af]}" <<< "$known"; then
      [ "${CUDA_ARCHITECTURES:-all}" = all ] || no_cuda "$nvcc does not know CUDA_ARCHITECTURES=$architecture" "It knows: $(sed 's/compute_//' <<< "$known" | paste -sd' ')." || return
      continue
    fi
    cuda_gencode+=" -gencode arch=compute_$architecture,code=sm_$architecture" last=$architecture
  done
  [ -n "$last" ] || no_cuda "$nvcc knows none of the architectures ${architectures:-90}" "Set CUDA_ARCHITECTURES." || return
  cuda_gencode+=" -gencode arch=compute_$last,code=compute_$last"
  case $(command -v "$CXX") in */ccache/*) nvcc="ccache $nvcc" ;; esac # nvcc is cached if the compiler is
  cuda_nvcc=$nvcc cuda_state=on
  cuda_versions="CUDA $((cuda / 1000)).$((cuda % 1000 / 10)), cuDNN $cudnn (front end $frontend), NCCL $nccl,$(grep -oE 'code=sm_[0-9af]+' <<< "$cuda_gencode" | sed 's/code=/ /' | tr -d '\n')"
  cuda_line="on ($cuda_versions; $cuda_home)"
}

cuda_state=off cuda_nvcc="" cuda_home="" cuda_cflags="" cuda_libs="" cuda_gencode="" cuda_versions=""
find_cuda
[ $cuda_state = on ] || cuda_home="" cuda_cflags="" cuda_libs="" cuda_gencode=""

cat > "$output" << END || exit 1
# Written by .ci/configure_cuda.sh.
CUDA_STATE := $cuda_state
NVCC := $cuda_nvcc
CUDA_CFLAGS := $cuda_cflags
CUDA_LIBS := $cuda_libs
CUDA_GENCODE := $cuda_gencode
CUDA_VERSIONS := $cuda_versions
CUDA_FOLDER := $cuda_home
END
echo "  CUDA       $cuda_line"
