# SPDX-License-Identifier: Apache-2.0
"""The Spack recipe and CMakeLists.txt agree. The recipe runs against a small stand-in for Spack's classes, which records
its directives; with a real Spack on the PATH that one reads, audits and concretizes it too."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

SOURCE = os.environ["LOCKSTEP_SOURCE"]
REPOSITORY = os.path.join(SOURCE, "spack", "spack_repo", "lockstep")
RECIPE = os.path.join(REPOSITORY, "packages", "lockstep", "package.py")
GIVEN_BY_OTHERS = {"Kokkos_ROOT", "KokkosKernels_ROOT", "CMAKE_CXX_COMPILER"}


class StandIn:
    """What a recipe needs of spack.package: directives that record, and a package that answers for a set of variants."""

    def __init__(self):
        self.variants, self.versions, self.calls, self.whens = {}, {}, [], []

    def directive(self, name):
        def record(*arguments, when=None, **options):
            condition = " ".join([*self.whens, when] if when else self.whens)
            self.calls.append((name, arguments, condition, options))
            if name == "variant":
                self.variants[arguments[0]] = options["default"]
            if name == "version":
                self.versions[arguments[0]] = options
        return record

    def when(self, condition):
        outer = self

        class Scope:
            def __enter__(self):
                outer.whens.append(condition)

            def __exit__(self, *_):
                outer.whens.pop()
        return Scope()

    def load(self):
        package = types.ModuleType("spack.package")
        for name in ("version", "variant", "depends_on", "conflicts", "requires", "license"):
            setattr(package, name, self.directive(name))
        package.when = self.when
        package.join_path = os.path.join
        package.run_after = lambda _: lambda function: function
        modules = {"spack": types.ModuleType("spack"), "spack.package": package}
        base = type("CMakePackage", (), {"define": staticmethod(self.define), "define_from_variant": self.define_from_variant})
        for name, classes in (("cmake", {"CMakePackage": base}),
                              ("cuda", {"CudaPackage": type("CudaPackage", (), {"cuda_arch_values": ("80", "90")})}),
                              ("rocm", {"ROCmPackage": type("ROCmPackage", (), {"amdgpu_targets": ("gfx90a",)})})):
            path = "spack_repo.builtin.build_systems." + name
            modules[path] = types.ModuleType(path)
            for class_name, value in classes.items():
                setattr(modules[path], class_name, value)
        for path in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
            modules[path] = types.ModuleType(path)
        saved = {name: sys.modules.get(name) for name in modules}
        sys.modules.update(modules)
        self.variants.update(cuda=False, rocm=False)  # the mix-ins' own
        try:
            specification = importlib.util.spec_from_file_location("recipe", RECIPE)
            module = importlib.util.module_from_spec(specification)
            specification.loader.exec_module(module)
        finally:
            for name, old in saved.items():
                if old is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = old
        return module.Lockstep

    @staticmethod
    def define(name, value):
        return f"-D{name}:BOOL={'ON' if value else 'OFF'}" if isinstance(value, bool) else f"-D{name}:STRING={value}"

    @staticmethod
    def define_from_variant(package, option, variant):
        if variant not in package.chosen:
            raise KeyError(f"{variant} is not a variant")
        return StandIn.define(option, package.chosen[variant])


class Spec(dict):
    def __init__(self, chosen):
        super().__init__()
        self.chosen = chosen

    def satisfies(self, text):
        return not text.startswith("%") and self.chosen[text[1:]] is (text[0] == "+")

    def __missing__(self, name):
        return types.SimpleNamespace(prefix=f"/prefix/{name}", hipcc="hipcc")


class Recipe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stand_in = StandIn()
        cls.recipe = cls.stand_in.load()
        with open(os.path.join(SOURCE, "CMakeLists.txt")) as file:
            text = file.read()
        cls.cmake_options = set(re.findall(r"^option\((\w+)", text, re.M)) | {
            "LOCKSTEP_ENABLE_" + name for name in re.findall(r"^lockstep_backend_option\((\w+)\)", text, re.M)} | set(
                re.findall(r"^set\((\w+) .* CACHE STRING \"\w+ flags", text, re.M))

    def options(self, **choices):
        package = self.recipe()
        package.chosen = {**self.stand_in.variants, **choices}
        package.spec = Spec(package.chosen)
        package.run_tests = False
        compiler = types.SimpleNamespace(kokkos_cxx="c++")
        type(package).__getitem__ = lambda _, name: compiler
        return dict(re.fullmatch(r"-D(\w+):\w+=(.*)", argument).groups() for argument in package.cmake_args())

    def test_every_option_passed_exists(self):
        self.assertTrue(self.cmake_options)
        self.assertLessEqual(set(self.options()) - GIVEN_BY_OTHERS, self.cmake_options)

    def test_every_option_is_reached_by_a_variant(self):
        moved = set()
        for name, value in self.stand_in.variants.items():
            before, after = self.options(), self.options(**{name: not value})
            moved |= {option for option in before if before[option] != after[option]}
        wanted = {option for option in self.cmake_options if option.startswith("LOCKSTEP_ENABLE_")}
        self.assertTrue(wanted)
        self.assertEqual(wanted - moved, set())

    def test_every_variant_moves_something(self):
        conditions = " ".join(condition for _, _, condition, _ in self.stand_in.calls)
        for name, value in self.stand_in.variants.items():
            moves = self.options() != self.options(**{name: not value})
            self.assertTrue(moves or f"+{name}" in conditions, f"variant {name} does nothing")

    def test_versions(self):
        """The branch; and a release once CHANGELOG.md has it, which its tag then names."""
        with open(os.path.join(SOURCE, "CHANGELOG.md")) as file:
            released = set(re.findall(r"^## ([\d.]+)", file.read(), re.M))
        self.assertEqual(set(self.stand_in.versions), {"main"} | released)
        for version in released:
            self.assertEqual(self.stand_in.versions[version]["tag"], "v" + version)

    def test_architectures_reach_kokkos(self):
        dependencies = {(arguments[0], condition) for name, arguments, condition, _ in self.stand_in.calls if name == "depends_on"}
        for propagated in ("+cuda cuda_arch=80", "+cuda cuda_arch=90", "+rocm amdgpu_target=gfx90a"):
            self.assertIn((f"kokkos {propagated}", propagated), dependencies)

    def test_both_kokkos_have_one_range(self):
        with open(os.path.join(SOURCE, "CMakeLists.txt")) as file:
            highest = int(re.search(r"Kokkos_VERSION VERSION_GREATER_EQUAL (\d+)", file.read()).group(1)) - 1
        ranges = {arguments[0].split()[0].partition("@")[::2] for name, arguments, _, _ in self.stand_in.calls
                  if name == "depends_on" and re.match(r"kokkos(-kernels)?@", arguments[0])}
        self.assertEqual({name for name, _ in ranges}, {"kokkos", "kokkos-kernels"})
        self.assertEqual({version for _, version in ranges}, {f"3.7.02:{highest}"})

    def test_stand_alone_tests_have_a_title(self):
        tests = [getattr(self.recipe, name) for name in dir(self.recipe) if name.startswith("test_") and name != "test_requires_compiler"]
        self.assertGreaterEqual(len(tests), 2)
        for test in tests:
            self.assertTrue(test.__doc__, test.__name__)

    def test_source_is_this_repository(self):
        self.assertEqual(os.path.realpath(self.recipe.git[len("file://"):]), os.path.realpath(SOURCE))

    def test_example_is_where_the_recipe_looks(self):
        self.assertTrue(os.path.exists(os.path.join(SOURCE, self.recipe.example_source, "CMakeLists.txt")))
        self.assertTrue(re.compile(self.recipe.example_says))  # what it does say, .ci/install compares

    @unittest.skipUnless(os.environ.get("LOCKSTEP_CMAKE"), "not run by ctest")
    def test_configure_lines(self):
        """Those that this machine's Kokkos allows; the others must be refused by name."""
        cmake, prefix = os.environ["LOCKSTEP_CMAKE"], os.environ["LOCKSTEP_PREFIX_PATH"].replace(":", ";")
        openmp = os.environ["LOCKSTEP_OPENMP"] == "ON"
        for choices, refused in (({"mpi": bool(os.environ.get("LOCKSTEP_MPIEXEC")), "openmp": openmp}, None),
                                 ({"mpi": False, "openmp": openmp, "werror": True, "sanitizers": True}, None),
                                 ({"openmp": openmp, "mpi": False, "rocm": True}, "LOCKSTEP_ENABLE_HIP=ON"),
                                 ({"openmp": not openmp, "mpi": False}, "LOCKSTEP_ENABLE_OPENMP=")):
            if refused and "HIP" in refused and os.environ["LOCKSTEP_HIP"] == "ON":
                continue
            with self.subTest(**choices), tempfile.TemporaryDirectory() as build:
                options = self.options(**choices)
                lines = [f"-D{name}={value}" for name, value in options.items() if name not in GIVEN_BY_OTHERS]
                done = subprocess.run([cmake, "-S", SOURCE, "-B", build, "-G", os.environ["LOCKSTEP_GENERATOR"], f"-DCMAKE_PREFIX_PATH={prefix}",
                                       f"-DCMAKE_CXX_COMPILER={os.environ['LOCKSTEP_CXX']}", *lines],
                                      capture_output=True, text=True, timeout=120)
                if refused:
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(refused, done.stderr)
                else:
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertNotIn("not used by the project", done.stderr)


class Files(unittest.TestCase):
    def test_repository(self):
        with open(os.path.join(REPOSITORY, "repo.yaml")) as file:
            self.assertRegex(file.read(), r"(?m)^repo:\n  namespace: lockstep\n  api: v2\.\d+$")
        with open(os.path.join(SOURCE, "spack-repo-index.yaml")) as file:
            path = re.search(r"(?m)^  - (.+)$", file.read()).group(1)
        self.assertTrue(os.path.samefile(os.path.join(SOURCE, path), REPOSITORY))

    def test_environments_name_variants_that_exist(self):
        stand_in = StandIn()
        stand_in.load()
        folder = os.path.join(SOURCE, "spack", "environments")
        self.assertEqual(sorted(os.listdir(folder)), ["cpu", "cuda", "rocm"])
        kept = subprocess.run(["git", "-C", SOURCE, "ls-files", "spack"], capture_output=True, text=True).stdout.split()
        self.assertLessEqual(len(kept), 12, "files that Spack made are not for the repository")
        for name in os.listdir(folder):
            path = os.path.join(folder, name, "spack.yaml")
            with open(path) as file:
                text = file.read()
            self.assertTrue(os.path.samefile(os.path.join(folder, name, re.search(r"lockstep: (\S+)", text).group(1)), REPOSITORY))
            specs = re.findall(r"(?m)^  - (lockstep .*)$", text)
            self.assertEqual(len(specs), 1, path)
            for variant in re.findall(r"[+~](\w+)", specs[0]):
                self.assertIn(variant, stand_in.variants)


@unittest.skipUnless(shutil.which("spack"), "no Spack on the PATH")
class RealSpack(unittest.TestCase):
    def spack(self, *arguments):
        with tempfile.TemporaryDirectory() as scope:
            with open(os.path.join(scope, "repos.yaml"), "w") as file:
                file.write(f"repos:\n  lockstep: {REPOSITORY}\n")
            return subprocess.run(["spack", "-C", scope, *arguments], capture_output=True, text=True, timeout=900)

    def test_reads_and_audits(self):
        done = self.spack("audit", "packages", "lockstep")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_concretizes(self):
        for spec, kokkos in (("lockstep ~mpi", "+openmp"), ("lockstep +cuda cuda_arch=90 +nccl", "cuda_arch:=90"),
                             ("lockstep +rocm amdgpu_target=gfx90a", "amdgpu_target:=gfx90a")):
            with self.subTest(spec=spec):
                done = self.spack("spec", "--fresh", *spec.split())
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(kokkos, next(line for line in done.stdout.splitlines() if "^kokkos@" in line))

    def test_refuses(self):
        for spec in ("lockstep +cuda", "lockstep ^kokkos cxxstd=14"):
            self.assertNotEqual(self.spack("spec", "--fresh", *spec.split()).returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
