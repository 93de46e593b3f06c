# SPDX-License-Identifier: Apache-2.0
"""What a listener cannot hear on every Kokkos: fences of all devices, launches without an instance, versions asked about
outside the one header."""
import os
import re
import subprocess
import unittest

SOURCE = os.environ["LOCKSTEP_SOURCE"]
COMPAT = os.path.join("kernels", "kokkos_compat.hpp")
FOLDERS = ("kernels", "comm", "miniapp", "verify")


def sources():
    for folder in FOLDERS:
        for where, _, names in os.walk(os.path.join(SOURCE, folder)):
            for name in names:
                if name.endswith((".cpp", ".hpp")):
                    path = os.path.join(where, name)
                    with open(path) as file:
                        text = re.sub(r"//[^\n]*", "", file.read())
                    yield os.path.relpath(path, SOURCE), text


class Sources(unittest.TestCase):
    def setUp(self):
        self.texts = dict(sources())
        self.assertGreater(len(self.texts), 40)

    def none_has(self, pattern, *allowed):
        found = [f"{path}: {match.group(0)}" for path, text in self.texts.items() if path not in allowed for match in re.finditer(pattern, text)]
        self.assertEqual(found, [])

    def test_no_fence_of_all_devices(self):
        self.none_has(r"Kokkos::fence\s*\(")

    def test_policies_name_an_instance(self):
        self.none_has(r"(?:Kokkos::parallel_(?:for|reduce|scan)|\blaunch)\(\s*(?:\"[^\"]*\"|\w+)\s*,\s*[\w.]+\s*,", COMPAT)
        self.none_has(r"(?:RangePolicy|TeamPolicy|MDRangePolicy)<[^;{}]*?>\s*\w*\s*[({]\s*(?:0|\w+\.size\(\))\s*,")

    def test_copies_name_an_instance(self):
        self.none_has(r"Kokkos::deep_copy\(\s*\w+\s*,\s*[^,()]+\)\s*;")

    def test_kokkos_versions_stay_in_one_header(self):
        self.none_has(r"KOKKOS_VERSION\s*(?:[<>=!]=?)|LOCKSTEP_KOKKOS_AT_LEAST|KOKKOS_VERSION_(?:LESS|GREATER|EQUAL)", COMPAT)
        self.none_has(r"Kokkos::Impl::|KOKKOS_IMPL_|using namespace Kokkos\b")

    def test_every_file_names_its_licence(self):
        listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "*.cpp", "*.hpp", "*.py", "*.cmake", "*CMakeLists.txt", "scripts/*", ".ci/*"],
                                capture_output=True, text=True)
        if listed.returncode:
            self.skipTest("no git checkout")
        for path in listed.stdout.split():
            if path.endswith(".supp"):
                continue
            with open(os.path.join(SOURCE, path), errors="replace") as file:
                self.assertIn("SPDX-License-Identifier: Apache-2.0", file.read(300), path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
