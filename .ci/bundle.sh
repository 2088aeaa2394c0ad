#!/bin/bash
# Packs a folder that runs on any Linux of this processor, without installation. It holds programs and all libraries that
# they need. The C library and its loader are included, CUDA's libraries are not. In the folder, start.sh is called
# `ringtrain`.
#   .ci/bundle.sh bundle    (make bundle)   build/ringtrain-bundle-MACHINE.tar.gz: everything that is built, and its tests
#   .ci/bundle.sh gpu-kit   (make gpu-kit)  build/ringtrain-gpu-kit.tar.xz: what tests/gpu/check.sh needs, and nothing else
# The programs must be built before.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-bundle}
programs="bin/ringtrain bin/ringtrain-data build/tests/gpu_tests build/bench/cuda_commands"
case $kind in
  bundle) archive=build/ringtrain-bundle-$(uname -m).tar.gz programs+=" build/tests/unit_tests" ;;
  gpu-kit) archive=build/ringtrain-gpu-kit.tar.xz ;;
  *) echo "error: .ci/bundle.sh knows bundle and gpu-kit, not $kind" >&2; exit 2 ;;
esac
name=ringtrain-$kind
folder=build/$kind/$name

# The kit is small because it leaves out other GPUs' kernels, and it is of use only if nothing is missing.
if [ "$kind" = gpu-kit ]; then
  of_build() { sed -n "s/^$1 := //p" build/cuda.mk; }
  complain() { echo "error: no kit was made: $1. $2" >&2; exit 1; }
  [ "$(of_build CUDA_STATE)" = on ] || complain "CUDA is left out of this build" "Use: make gpu-kit CUDA=1"
  [[ $(of_build CUDA_VERSIONS) =~ ,\ sm_90$ ]] || complain "this build has kernels for other GPUs" "Use: make gpu-kit"
  for file in $programs bin/libringtrain-cuda.so bin/libcuda-stand-in.so; do
    [ -e "$file" ] || complain "$file is not built" "Use: make gpu-kit"
  done
  [ -e bin/libringtrain-hopper.so ] || complain "the library for Hopper is not built" "make hopper says why"
  [ -n "$(find build/gpu-plans -name '*.plan' -print -quit 2> /dev/null)" ] || complain "build/gpu-plans holds no plans" "Use: make gpu-plans"
fi
rm -rf "build/$kind" "$archive"
mkdir -p $folder/{bin,lib,programs,build/tests,build/bench,mpi/{plugins,pmix,share,lib,etc}}

of_cuda='libcuda|libcudart|libcudnn|libnccl|libcublas|libnvrtc|libnvidia'
needed_by() { # files; prints the paths of the libraries that they need
  ldd "$@" | sed -nE 's/.*=> (\/[^ ]+) .*/\1/p' | grep -vE "/($of_cuda)" | sort -u
}

# ---- Programs: stripped, started through links to the start script --------------------------------------------------
for program in $programs; do
  [ -e "$program" ] || continue
  strip -o "$folder/programs/${program##*/}" "$program"
  up=$(dirname "$program" | sed 's/[^/][^/]*/../g')
  ln -s "$up/ringtrain" "$folder/$program"
done
[ -e bin/libcuda-stand-in.so ] && cp bin/libcuda-stand-in.so $folder/bin/
for library in bin/libringtrain-*.so; do
  [ -e "$library" ] && strip --strip-unneeded -o "$folder/$library" "$library"
done
cp .ci/start.sh $folder/ringtrain

# ---- MPI: Open MPI opens its plug-ins by name; plug-ins that need a network's libraries are left out -----------------
mpirun=$(sed -n 's/^MPIRUN := //p' build/config.mk)
mpirun=$(readlink -f "$(command -v "${mpirun:-mpirun}")")
if grep -qE "Open MPI|OpenRTE" <<< "$("$mpirun" --version 2> /dev/null)"; then
  info="$(dirname "$mpirun")/ompi_info --parsable --path"
  path_of() { $info "$1" | sed "s/^path:$1://"; }
  cp "$mpirun" $folder/programs/mpirun
  ln -s ../ringtrain $folder/bin/mpirun
  plugins=$(path_of pkglibdir)
  pmix=$(ldd "$plugins"/mca_pmix_*.so | sed -nE 's/.*=> (\/[^ ]*libpmix[^ ]*) .*/\1/p' | sort -u | head -1)
  known=$(needed_by $folder/programs/* ${pmix:+"$pmix"}; echo "$pmix")
  for plugin in "$plugins"/mca_*.so; do
    more=$(comm -23 <(needed_by "$plugin") <(sort -u <<< "$known") | grep -vE '/lib(mca_common|oshmem)[^/]*$' || true)
    [ -z "$more" ] && cp "$plugin" $folder/mpi/plugins/
  done
  [ -z "$pmix" ] || cp "$(dirname "$(readlink -f "$pmix")")"/pmix/*.so $folder/mpi/pmix/ 2> /dev/null || true
  cp -rL "$(path_of pkgdatadir)" $folder/mpi/share/openmpi
  cp "$(path_of sysconfdir)"/openmpi-mca-params.conf $folder/mpi/etc/ 2> /dev/null || true
fi

# ---- Libraries -------------------------------------------------------------------------------------------------------
for library in $(needed_by $folder/programs/* $folder/mpi/plugins/*.so $folder/mpi/pmix/*.so 2> /dev/null); do
  cp -L "$library" "$folder/lib/"
done
libc=$(dirname "$(ldd bin/ringtrain | sed -nE 's/.*libc\.so\.6 => (\/[^ ]+) .*/\1/p')")
# CUDA's libraries and the C library open these libraries at run time, so ldd may not list them. Those of the C library
# must have its version.
for library in libdl.so.2 librt.so.1 libpthread.so.0 libutil.so.1 libresolv.so.2 libnss_files.so.2 libnss_dns.so.2 libz.so.1; do
  [ -e "$libc/$library" ] && cp -L "$libc/$library" $folder/lib/
done
cp -L "$(readelf -p .interp bin/ringtrain | sed -nE 's/.* (\/[^ ]+ld-[^ ]+)$/\1/p')" $folder/lib/
chmod -R u+w $folder
strip --strip-unneeded $folder/mpi/plugins/*.so $folder/mpi/pmix/*.so 2> /dev/null || true

# ---- Files that the programs read, and the scripts that run them -----------------------------------------------------
cp -r configs $folder/
mkdir -p $folder/tests $folder/results
cp -r tests/{gpu,bench,mpirun.sh} $folder/tests/
mkdir -p $folder/src/backend/cuda/device && cp -r src/backend/cuda/device/{descriptions,recorded} $folder/src/backend/cuda/device/
if [ "$kind" = bundle ]; then
  cp -r tests/{golden,run_tests} $folder/tests/
  cp -r results/bench $folder/results/
else
  cp -r build/gpu-plans $folder/plans
fi
find $folder/tests \( -name '*.cpp' -o -name '*.h' -o -name '*.pyc' \) -delete
sed "s/COMMIT/$(cat COMMIT 2> /dev/null || git describe --always --dirty 2> /dev/null || echo unknown)/" > $folder/README <<'TEXT'
ringtrain COMMIT, with everything but CUDA's libraries. No installation: unpack it anywhere, on any Linux of this processor.

  ./ringtrain --version                 or train, plan, ... : as the README of ringtrain says
  tests/mpirun.sh 4 ./ringtrain train configs/names.yaml
                                        4 ranks on this machine
  tests/gpu/check.sh                    all checks that need a GPU

CUDA's driver, cuDNN and NCCL are the machine's; when they are not found, name their folders in RINGTRAIN_CUDA_LIBRARIES.
TEXT

pack() { tar --sort=name --owner=0 --group=0 --numeric-owner -C "build/$kind" -cf - $name; }
if [ "$kind" = gpu-kit ]; then
  # One stream, in which xz finds the code again that every program has. The filter makes calls of x86 code shorter.
  [ "$(uname -m)" = x86_64 ] && filter=--x86
  pack | xz ${filter:-} --lzma2=preset=9e > "$archive"
  exec .ci/kit_sizes.sh
fi
pack | gzip -9 > "$archive"
echo "$archive: $(($(stat -c %s "$archive") / 1048576)) MiB packed, $(du -sm "$folder" | cut -f1) MiB unpacked"
