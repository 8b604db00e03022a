"""Builds the two native parts: the software NeuronCore (plain C++, no torch) and the torch extension `_C`."""

import os
import subprocess
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, library_paths

HERE = Path(__file__).parent


class Build(BuildExtension):
    """Also compiles libneuroncore.so, which is not a Python module, beside the extension."""

    def run(self):
        self.build_neuroncore()
        super().run()

    def build_neuroncore(self):
        target = HERE / "native" / "libneuroncore.so"
        sources = sorted((HERE / "native" / "nrt").glob("*.cpp"))
        headers = sorted((HERE / "native" / "nrt").glob("*.h"))
        newest = max(p.stat().st_mtime for p in [*sources, *headers])
        if not target.exists() or target.stat().st_mtime < newest:
            compiler = os.environ.get("CXX", "g++")
            flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
            subprocess.check_call([compiler, *flags, *map(str, sources), "-o", str(target)])
        if not self.inplace and not self.editable_mode:
            destination = Path(self.build_lib) / "adaptive_eager" / "native"
            destination.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(target), str(destination / target.name))


setup(
    ext_modules=[
        CppExtension(
            "adaptive_eager.native._C",
            sorted(str(p.relative_to(HERE)) for p in (HERE / "native" / "torch").glob("*.cpp")),
            extra_compile_args=["-O2", "-g0", "-std=c++20", "-fopenmp", "-fvisibility=hidden", "-fno-plt"],
            extra_link_args=["-fopenmp", "-Wl,-z,now", *(f"-Wl,-rpath,{p}" for p in library_paths())],
        )
    ],
    cmdclass={"build_ext": Build},
)
