# SPDX-License-Identifier: Apache-2.0
import os

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.rocm import ROCmPackage

from spack.package import *


class Lockstep(CMakePackage, CudaPackage, ROCmPackage):
    """Kokkos miniapp that trains a small convolutional network data-parallel on k devices, with allreduce algorithms
    of its own, and proves that k devices computed what one device computes."""

    # The recipe lies in the repository that it builds.
    git = "file://" + os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 5))

    tags = ["proxy-app"]
    test_requires_compiler = True
    license("Apache-2.0", checked_by="lockstep")

    version("main", branch="main")

    variant("mpi", default=True, description="Ranks over MPI")
    variant("openmp", default=True, description="OpenMP as Kokkos' host back end (else Serial)")
    variant("nccl", default=False, when="+cuda", description="NCCL transport between CUDA devices")
    variant("tests", default=False, description="Build the tests")
    variant("plots", default=False, description="Figures from JSON records (scripts/plot)")
    variant("werror", default=False, description="Treat warnings in Lockstep's own code as errors")
    variant("sanitizers", default=False, description="AddressSanitizer and UndefinedBehaviorSanitizer")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("git", type="build")
    depends_on("boost@1.71: +program_options")
    depends_on("nlohmann-json@3.9:")
    depends_on("openssl@1.1.1:")
    depends_on("zlib-api")
    depends_on("mpi", when="+mpi")
    depends_on("nccl@2.7: +cuda", when="+nccl")
    with when("+tests"):
        depends_on("googletest@1.10: +gmock")
        depends_on("python@3.9:", type=("build", "run"))
    depends_on("googletest@1.10: +gmock", type="test")
    depends_on("python@3.9:", type="test")
    with when("+plots"):
        depends_on("python@3.9:", type="run")
        depends_on("py-matplotlib@3.6:", type="run")

    # Kokkos Kernels' recipe asks for the Kokkos of its own version.
    depends_on("kokkos@3.7.02:5")
    depends_on("kokkos-kernels@3.7.02:5 scalars=float,double layouts=right")
    # Lockstep is C++17, and C++20 where Kokkos 5 asks for it; both ways follow Kokkos.
    conflicts("^kokkos cxxstd=14", msg="Lockstep needs a Kokkos built as C++17 or later")
    for state in ("+openmp", "~openmp"):
        depends_on(f"kokkos {state}", when=state)
    depends_on("kokkos +serial", when="~openmp")

    conflicts("+cuda", when="+rocm", msg="Kokkos has one device back end: +cuda or +rocm")
    for backend, device, architectures in (
        ("cuda", "cuda_arch", CudaPackage.cuda_arch_values),
        ("rocm", "amdgpu_target", ROCmPackage.amdgpu_targets),
    ):
        conflicts(f"{device}=none", when=f"+{backend}", msg=f"+{backend} needs {device}=...")
        depends_on(f"kokkos ~{backend}", when=f"~{backend}")
        for architecture in architectures:
            propagated = f"+{backend} {device}={architecture}"
            depends_on(f"kokkos {propagated}", when=propagated)
    with when("+cuda"):
        requires("^kokkos +wrapper")
        requires("^kokkos +cuda_lambda", when="^kokkos@:4")
        depends_on("kokkos-kernels +cuda")
    for architecture in CudaPackage.cuda_arch_values:
        depends_on(f"kokkos-kernels cuda_arch={architecture}", when=f"+cuda cuda_arch={architecture}")
        depends_on(f"nccl cuda_arch={architecture}", when=f"+nccl cuda_arch={architecture}")

    sanity_check_is_file = [join_path("bin", "lockstep")]
    sanity_check_is_dir = [join_path("include", "lockstep")]

    def cmake_args(self):
        args = [
            self.define_from_variant("LOCKSTEP_ENABLE_MPI", "mpi"),
            self.define_from_variant("LOCKSTEP_ENABLE_CUDA", "cuda"),
            self.define_from_variant("LOCKSTEP_ENABLE_HIP", "rocm"),
            self.define_from_variant("LOCKSTEP_ENABLE_OPENMP", "openmp"),
            self.define_from_variant("LOCKSTEP_ENABLE_NCCL", "nccl"),
            self.define("LOCKSTEP_ENABLE_TESTS", self.run_tests or self.spec.satisfies("+tests")),
            self.define_from_variant("LOCKSTEP_ENABLE_WERROR", "werror"),
            self.define_from_variant("LOCKSTEP_ENABLE_SANITIZERS", "sanitizers"),
            # Spack's compiler wrapper gives the target's flags.
            self.define("LOCKSTEP_ARCH_FLAGS", ""),
            self.define("Kokkos_ROOT", self.spec["kokkos"].prefix),
            self.define("KokkosKernels_ROOT", self.spec["kokkos-kernels"].prefix),
        ]
        if self.spec.satisfies("+rocm") and not (
            self.spec.satisfies("%cxx=clang") or self.spec.satisfies("%cxx=rocmcc")
        ):
            args.append(self.define("CMAKE_CXX_COMPILER", self.spec["hip"].hipcc))
        else:
            args.append(self.define("CMAKE_CXX_COMPILER", self["kokkos"].kokkos_cxx))
        return args

    def check(self):
        """The whole test suite (spack install --test=root)"""
        with working_dir(self.builder.build_directory):
            ctest = Executable(join_path(self.spec["cmake"].prefix.bin, "ctest"))
            ctest("--output-on-failure", "--no-tests=error")

    example_source = join_path("tests", "install")
    example_says = r"Lockstep [0-9.]+: 0 wrong sums"

    @run_after("install")
    def keep_the_example(self):
        cache_extra_test_sources(self, [self.example_source])

    def run_installed(self, arguments, expected):
        program = which(join_path(self.prefix.bin, "lockstep"), required=True)
        check_outputs(expected, program(*arguments, output=str.split, error=str.split))

    small = ["--data", "synthetic", "--train-images", "700", "--test-images", "203", "--epochs", "1"]

    def test_train(self):
        """train on one device: figure of merit and verdict"""
        self.run_installed(
            ["train", *self.small], [r"FOM: [0-9.]+ images/s", r"VERIFICATION: PASSED", r"devices : 1 \("]
        )

    def test_three_devices(self):
        """train on three devices of one process"""
        self.run_installed(
            ["train", *self.small, "--devices", "3"],
            [r"FOM: [0-9.]+ images/s", r"VERIFICATION: PASSED", r"devices : 3 \("],
        )

    def test_example(self):
        """build the example against the installed package and run it"""
        source = join_path(self.test_suite.current_test_cache_dir, self.example_source)
        with working_dir(join_path(source, "build"), create=True):
            cmake = Executable(join_path(self.spec["cmake"].prefix.bin, "cmake"))
            prefixes = [self.prefix] + [dependency.prefix for dependency in self.spec.dependencies(deptype="link")]
            compiler = self["kokkos"].kokkos_cxx
            cmake(source, self.define("CMAKE_PREFIX_PATH", prefixes), self.define("CMAKE_CXX_COMPILER", compiler))
            cmake("--build", ".")
            check_outputs([self.example_says], Executable("./example")(output=str.split, error=str.split))
