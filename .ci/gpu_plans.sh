#!/bin/bash
# Builds cuDNN's plans for the checks of tests/gpu, on this machine, which needs no GPU: .ci/gpu_plans.sh [FOLDER]
# The plans are for ResNet-50 on an H100 and an H200, and for the cuDNN that PyTorch 2.11 brings. FOLDER (build/gpu-plans)
# then holds a folder for each of the two GPUs, in the form of machine.plan_cache. Plans that are there are kept.
set -euo pipefail
cd "$(dirname "$0")/.."
cudnn=9.19.0 # of PyTorch 2.11 for CUDA 13.0
wheel=nvidia-cudnn-cu13==9.19.0.56
sha256=d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf
folder=${1:-build/gpu-plans}

# If the build has another cuDNN, PyTorch's is unpacked beside it.
if ! grep -q "cuDNN $cudnn" build/cuda.mk; then
  own=build/cudnn-$cudnn
  if [ ! -e "$own/lib/libcudnn.so.9" ]; then
    . .ci/pypi.sh
    python=$(python_with_pip)
    scratch=$(mktemp -d build/cudnn.XXXXXX)
    trap 'rm -rf "$scratch"' EXIT
    download_wheels "$scratch" --platform manylinux_2_27_x86_64 <<< "$wheel --hash=sha256:$sha256"
    "$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$scratch"/*.whl "$scratch/unpacked"
    rm -rf "$own"
    mv "$scratch/unpacked/nvidia/cudnn" "$own"
  fi
  export RINGTRAIN_CUDA_LIBRARIES=$PWD/$own/lib${RINGTRAIN_CUDA_LIBRARIES:+:$RINGTRAIN_CUDA_LIBRARIES}
fi

# The batch is the one with which tests/gpu measures speed. The data set need not be there for a plan.
for gpu in h100 h200; do
  for precision in bf16 fp16; do
    bin/ringtrain plan configs/imagenet_resnet50_256.yaml --ranks 1 --device $gpu --save-plans "$folder" "precision=$precision" \
      batch.global=256 batch.worker=256 batch.micro=256 data.validation= 2> /dev/null | sed -n "s/^cuDNN's plans/$gpu $precision/p"
  done
done
