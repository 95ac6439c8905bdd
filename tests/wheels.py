"""Checks the files of a release: the second part of `make wheels`.

In:  a folder with wheels and a source distribution.
Out: a line for each: its size, and how it was tried; the exit code is the number of those that failed.

A wheel for this machine is installed into an empty environment, where README's first example and the tutorial run. A
wheel for another machine is only read: its processor, what it needs from the system, that it uses Python's stable
interface alone, and that it exports the function that Python calls. The source distribution is built into a wheel,
which is tried.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

ROOT = Path(__file__).resolve().parents[1]
BYTES_MAX = 12 << 20
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
GLIBC_MAX = (2, 17)
"""Of manylinux2014. Every Linux with Python 3.11 has a newer one."""
STABLE = {
    "_Py_NoneStruct",
    "_Py_TrueStruct",
    "_Py_FalseStruct",
    "_Py_EllipsisObject",
    "_Py_NotImplementedStruct",
    "_Py_Dealloc",
    "_Py_IncRef",
    "_Py_DecRef",
}
"""Names with an underscore that the stable interface has."""
LIBRARIES = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|c\.musl-\w+)\.so(\.\d+)?|ld-[\w-]+\.so\.\d+")


def module_of(wheel: Path) -> ELFFile:
    """The compiled module inside a wheel."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".so")]
        return ELFFile(io.BytesIO(files.read(name)))


def faults_of(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel, as far as its bytes tell."""
    size = wheel.stat().st_size
    if size > BYTES_MAX:
        yield f"it has {size / (1 << 20):.1f} MiB, more than {BYTES_MAX >> 20}"
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    for wanted in ("txstore/py.typed", ".dist-info/sboms/", ".dist-info/licenses/LICENSE"):
        if not any(wanted in name for name in names):
            yield f"it lacks {wanted}"
    module = module_of(wheel)
    (machine,) = [MACHINES[name] for name in MACHINES if wheel.stem.endswith(name)]
    if module["e_machine"] != machine:
        yield f"its module is for {module['e_machine']}"
    yield from faults_of_symbols(module)
    dynamic = module.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    for tag in dynamic.iter_tags("DT_NEEDED"):
        name = str(getattr(tag, "needed", ""))  # Which tags have it is known only when they are read.
        if not LIBRARIES.fullmatch(name):
            yield f"it needs {name}"


def faults_of_symbols(module: ELFFile) -> Iterator[str]:
    """What is wrong with the names that a module exports and uses."""
    table = module.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    symbols = [(symbol.name, symbol["st_shndx"] == "SHN_UNDEF") for symbol in table.iter_symbols()]
    if ("PyInit__native", False) not in symbols:
        yield "its module has no PyInit__native"
    used = {name for name, is_used in symbols if is_used}
    if private := sorted(name for name in used - STABLE if name.startswith("_Py")):
        yield f"it uses {private[0]}, which is not of Python's stable interface"
    for needed in needed_glibc(module):
        if needed > GLIBC_MAX:
            yield f"it needs glibc {needed[0]}.{needed[1]}"


def needed_glibc(module: ELFFile) -> set[tuple[int, int]]:
    """The versions of glibc's symbols that a module uses."""
    section = module.get_section_by_name(".gnu.version_r")
    if not isinstance(section, GNUVerNeedSection):
        return set()
    names = [auxiliary.name for _, auxiliaries in section.iter_versions() for auxiliary in auxiliaries]
    found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in names]
    return {(int(match[1]), int(match[2])) for match in found if match}


def runs_here(wheel: Path) -> bool:
    """Whether this interpreter can load the module."""
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    return libc in wheel.name and wheel.stem.endswith(platform.machine())


def is_usable(wheel: Path) -> bool:
    """Whether the wheel works in an empty environment."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_wheel.py"]
    return (
        subprocess.run(command, cwd=ROOT, env=os.environ | {"TXSTORE_WHEEL": str(wheel)}, check=False).returncode == 0
    )


def built(source: Path, folder: Path) -> Path:
    """The wheel that pip builds from a source distribution, with what it needs from the package index."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def passes(file: Path) -> bool:
    """Tries one file, and says what came out."""
    with tempfile.TemporaryDirectory() as folder:
        is_source = file.suffix == ".gz"
        wheel = built(file, Path(folder)) if is_source else file
        faults = [] if is_source else list(faults_of(wheel))
        how = "read only, for another machine"
        if is_source or runs_here(wheel):
            how = "README's example and the tutorial run"
            faults += [] if is_usable(wheel) else ["it does not work in an empty environment"]
    verdict = "; ".join(faults) if faults else f"ok ({how})"
    print(f"{file.name}: {file.stat().st_size / (1 << 20):.1f} MiB, {verdict}", flush=True)
    return not faults


def main(arguments: Sequence[str] | None = None, tried: Callable[[Path], bool] = passes) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wheels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args(arguments)
    files = sorted([*asked.folder.glob("*.whl"), *asked.folder.glob("*.tar.gz")])
    if not files:
        parser.error(f"{asked.folder} has no wheel; make wheels builds them")
    failed = [file.name for file in files if not tried(file)]
    print(
        f"{len(files) - len(failed)} of {len(files)} files passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
