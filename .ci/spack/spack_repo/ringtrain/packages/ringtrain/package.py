"""Recipe for Spack 1.0 or newer. From a checkout:

    spack repo add .ci/spack/spack_repo/ringtrain
    spack install ringtrain              the last commit of this checkout's branch main
    spack dev-build ringtrain@main       the files as they are

or in an environment: spack develop --path . ringtrain@main && spack add ringtrain@main

With +cuda, the build downloads cuDNN's front end (headers only), which Spack does not have.
Without a network, set CUDNN_FRONTEND_HOME to a copy of NVIDIA's cudnn-frontend.
"""

from pathlib import Path

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Ringtrain(MakefilePackage, CudaPackage):
    """Large-batch training of CNNs and LSTMs over MPI, from HDF5 data sets."""

    # The sources are those of the checkout in which this recipe lies.
    git = Path(__file__).resolve().parents[6].as_uri()
    homepage = git

    version("main", branch="main")

    variant("tests", default=False, description="Build the unit and MPI tests, too")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("git", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10.6:~mpi")
    depends_on("yaml-cpp")
    depends_on("onednn")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("zlib-api")
    depends_on("utf8proc")
    depends_on("nlohmann-json")
    depends_on("cli11")
    depends_on("googletest", when="+tests")
    depends_on("cudnn@9", when="+cuda")
    depends_on("nccl", when="+cuda")

    # Only the scripts in results/ need these packages.
    with default_args(type="run"):
        depends_on("python@3.9:")
        depends_on("py-numpy")
        depends_on("py-scipy")
        depends_on("py-matplotlib")
        depends_on("py-h5py~mpi")
        depends_on("py-pyyaml")

    conflicts("%gcc@:10", msg="C++20's <source_location> needs GCC 11 or newer")
    conflicts("%clang@:15", msg="C++20's <source_location> needs Clang 16 or newer")

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        libraries = {
            "HDF5_HOME": "hdf5",
            "YAML_CPP_HOME": "yaml-cpp",
            "DNNL_HOME": "onednn",
            "JPEG_HOME": "libjpeg-turbo",
            "PNG_HOME": "libpng",
            "ZLIB_HOME": "zlib-api",
            "UTF8PROC_HOME": "utf8proc",
            "JSON_HOME": "nlohmann-json",
            "CLI11_HOME": "cli11",
            "MPI_HOME": "mpi",
        }
        if self.spec.satisfies("+tests"):
            libraries["GTEST_HOME"] = "googletest"
        if self.spec.satisfies("+cuda"):
            libraries.update(CUDA_HOME="cuda", CUDNN_HOME="cudnn", NCCL_HOME="nccl")
            architectures = [a for a in self.spec.variants["cuda_arch"].value if a != "none"]
            if architectures:
                env.set("CUDA_ARCHITECTURES", " ".join(architectures))
        for variable, package in libraries.items():
            env.set(variable, self.spec[package].prefix)
        env.set("CUDA", "1" if self.spec.satisfies("+cuda") else "0")
        # A newer compiler may warn of more. That is no reason not to install the program.
        env.set("WARNINGS", "-Wall")

    @property
    def build_targets(self):
        return ["all", "tests"] if self.spec.satisfies("+tests") else ["all"]

    @property
    def install_targets(self):
        return ["install", f"PREFIX={self.prefix}"]

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        env.set("RINGTRAIN_SHARE", self.prefix.share.ringtrain)
