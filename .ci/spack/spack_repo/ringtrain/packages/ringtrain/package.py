"""Recipe for Spack 1.0 or newer. From a checkout:

    spack repo add .ci/spack/spack_repo/ringtrain
    spack dev-build ringtrain@main

or in an environment: spack develop --path . ringtrain@main && spack add ringtrain@main && spack install
"""
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Ringtrain(MakefilePackage, CudaPackage):
    """Large-batch training over MPI: data-parallel training of CNNs and LSTMs from HDF5 data sets."""

    version("main")

    variant("tests", default=False, description="Build the unit and MPI tests, too")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("git", type="build")
    depends_on("python@3.9:", type="run")
    depends_on("py-numpy", type="run")
    depends_on("py-scipy", type="run")
    depends_on("py-matplotlib", type="run")
    depends_on("py-h5py", type="run")
    depends_on("py-pyyaml", type="run")

    depends_on("mpi")
    depends_on("hdf5~mpi+hl")
    depends_on("yaml-cpp")
    depends_on("onednn")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("nlohmann-json")
    depends_on("cli11")
    depends_on("googletest", when="+tests")
    depends_on("cudnn@9", when="+cuda")
    depends_on("nccl", when="+cuda")

    conflicts("%gcc@:10", msg="C++20's <source_location> needs GCC 11 or newer")
    conflicts("%clang@:15", msg="C++20's <source_location> needs Clang 16 or newer")

    def setup_build_environment(self, env):
        libraries = {
            "HDF5_HOME": "hdf5",
            "YAML_CPP_HOME": "yaml-cpp",
            "DNNL_HOME": "onednn",
            "JPEG_HOME": "libjpeg-turbo",
            "PNG_HOME": "libpng",
            "JSON_HOME": "nlohmann-json",
            "CLI11_HOME": "cli11",
            "MPI_HOME": "mpi",
        }
        if self.spec.satisfies("+tests"):
            libraries["GTEST_HOME"] = "googletest"
        if self.spec.satisfies("+cuda"):
            libraries.update(CUDA_HOME="cuda", CUDNN_HOME="cudnn", NCCL_HOME="nccl")
        for variable, package in libraries.items():
            env.set(variable, self.spec[package].prefix)
        env.set("CUDA", "1" if self.spec.satisfies("+cuda") else "0")
        architectures = self.spec.variants["cuda_arch"].value if self.spec.satisfies("+cuda") else ()
        if architectures and architectures != ("none",):
            env.set("CUDA_ARCHITECTURES", " ".join(architectures))

    @property
    def build_targets(self):
        return ["all", "tests"] if self.spec.satisfies("+tests") else ["all"]

    @property
    def install_targets(self):
        return ["install", f"PREFIX={self.prefix}"]

    def setup_run_environment(self, env):
        env.set("RINGTRAIN_SHARE", self.prefix.share.ringtrain)
