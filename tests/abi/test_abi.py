"""The C ABI: its layout is frozen, and adapters that are old, new or broken give an error and never a crash."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import offsets  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "include"
STREAM_DESTROY = "offsetof(fl_adapter, stream_destroy)"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """The core and the small program that drives it; `driver(command, path)` returns the line it prints."""
    build = ROOT / "build" / "core"
    configure = [_tool("cmake"), "-S", ROOT / "csrc" / "core", "-B", build, "-G", "Ninja"]
    if not (build / "build.ninja").exists() and Path(_tool("ninja")).exists():
        configure.append(f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}")
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([_tool("cmake"), "--build", build, "-j2"], check=True, stdout=subprocess.DEVNULL)
    program = tmp_path_factory.mktemp("driver") / "driver"
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-I",
            INCLUDE,
            "-I",
            ROOT / "csrc" / "core",
            HERE / "driver.cpp",
            "-o",
            program,
            "-L",
            build,
            "-ltorch_fl_core",
            f"-Wl,-rpath,{build}",
        ],
        check=True,
    )

    def run(command: str, path) -> str:
        done = subprocess.run([program, command, path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"crashed with {done.returncode}: {done.stderr}"
        return done.stdout.strip()

    return run


@pytest.fixture
def adapter(tmp_path):
    """Compiles adapter.c with the given defines; returns the library's path."""

    def build(*defines: str, name: str = "libtiny.so", more: tuple = ()) -> Path:
        library = tmp_path / name
        flags = [f"-D{define}" for define in defines]
        subprocess.run(
            [
                "gcc",
                "-std=c11",
                "-shared",
                "-fPIC",
                "-Wall",
                "-Wno-unused-function",
                "-Wno-unused-const-variable",
                *flags,
                "-I",
                INCLUDE,
                HERE / "adapter.c",
                "-o",
                library,
                *more,
            ],
            check=True,
        )
        return library

    return build


def assert_refused(line: str, status: str, path, *words: str) -> None:
    assert line.startswith(f"ERROR {status}: "), line
    assert str(path) in line
    for word in words:
        assert word in line, f"{word!r} is not in {line!r}"


# ---------------------------------------------------------------- the header


def test_layout_is_frozen():
    golden = json.loads(offsets.GOLDEN.read_text())
    assert offsets.measure() == golden, "the ABI changed: append only, note it in CHANGELOG.md, renew the golden file"


def test_layout_covers_the_whole_header():
    found = offsets.structs()
    assert found["fl_adapter"][0] == "struct_size"
    assert {"name", "last_error", "copy_peer", "event_elapsed", "kernel_find"} <= set(found["fl_adapter"])
    assert found["fl_memory"] == ["address", "handle", "offset"]
    assert found["fl_scalar"] == ["tag", "reserved", "v"]
    assert found["fl_virtual_memory"][0] == "head" and found["fl_virtual_memory"][-1] == "range_unmap"
    assert "FL_STATUS_DEVICE_LOST" in offsets.constants()
    assert {header.name for header in offsets.HEADERS} == {header.name for header in offsets.INCLUDE.rglob("*.h")}


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"), [("gcc", "c11", ".c"), ("g++", "c++17", ".cpp"), ("g++", "c++20", ".cpp")]
)
def test_header_compiles_alone(tmp_path, compiler, standard, suffix):
    source = tmp_path / f"alone{suffix}"
    source.write_text(
        '#include "torch_fl/adapter.h"\nfl_status alone(const fl_adapter* a);\n'
        "fl_status alone(const fl_adapter* a) { return FL_HAS(a, fill) ? FL_STATUS_OK : 1; }\n"
    )
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(
        [compiler, f"-std={standard}", *flags, "-I", INCLUDE, "-c", source, "-o", tmp_path / "o"], check=True
    )


def test_structs_are_the_same_in_cpp(tmp_path):
    golden = json.loads(offsets.GOLDEN.read_text())
    checks = [
        f'static_assert(sizeof({name}) == {values["sizeof"]}, "");'
        for name, values in golden.items()
        if name != "constants"
    ]
    source = tmp_path / "same.cpp"
    includes = [f'#include "torch_fl/{header.name}"' for header in offsets.HEADERS]
    source.write_text("\n".join(includes + checks))
    subprocess.run(["g++", "-std=c++17", "-I", INCLUDE, "-fsyntax-only", source], check=True)


# ---------------------------------------------------------------- adapters that must work


def test_complete(driver, adapter):
    assert driver("open", adapter()) == "OK tiny 1.0"
    expected = "OK tiny copies=right query=1 kernel=yes memory=67108864 alignment=64"
    assert driver("use", adapter()) == expected


def test_older_short_table(driver, adapter):
    """It ends after stream_create; the byte after it cannot be read."""
    library = adapter("FENCED", f"STRUCT_SIZE={STREAM_DESTROY}")
    assert "copies=right query=1 kernel=no" in driver("use", library)


def test_newer_longer_table(driver, adapter):
    library = adapter("STRUCT_SIZE=sizeof(struct newer_adapter)", "MINOR=7", "NEWER_PROPERTIES", "NEWER_KERNEL")
    assert driver("open", library) == "OK tiny 1.7"
    assert "copies=right query=1 kernel=yes memory=67108864" in driver("use", library)


def test_extension_behind_an_unknown_one(driver, adapter):
    assert driver("page", adapter("RANGES")) == "OK page=2097152"
    assert "copies=right query=1 kernel=yes" in driver("use", adapter("RANGES"))


@pytest.mark.parametrize("defect", [
    "RANGES_SIZE=offsetof(fl_virtual_memory, range_unmap)", "WITHOUT_RANGE_UNMAP", "RANGES_UNAVAILABLE",
    "RANGES_PAGE=3145728", "RANGES_PAGE=0",
])
def test_extension_that_is_not_used(driver, adapter, defect):
    """A short table, a NULL in it, "not on this device", and granularities that are no power of two."""
    library = adapter("RANGES", defect)
    assert driver("page", library) == "OK page=0"
    assert "copies=right" in driver("use", library)


def test_shorter_properties(driver, adapter):
    assert "copies=right" in driver("use", adapter("SHORT_PROPERTIES"))


# ---------------------------------------------------------------- adapters that must be refused


def test_null_in_the_middle(driver, adapter):
    library = adapter("WITHOUT_COPY_D2D")
    assert_refused(
        driver("open", library),
        "INVALID_ARGUMENT",
        library,
        "lacks required functions: copy_d2d (NULL)",
        "adapter.h says which",
    )


def test_table_ends_too_early(driver, adapter):
    library = adapter("FENCED", "STRUCT_SIZE=offsetof(fl_adapter, fill)")
    assert_refused(
        driver("open", library),
        "INVALID_ARGUMENT",
        library,
        "fill (the table ends before it), stream_create (the table ends before it)",
    )


def test_table_without_names(driver, adapter):
    library = adapter("FENCED", "STRUCT_SIZE=16")
    assert_refused(driver("open", library), "INVALID_ARGUMENT", library, "struct_size 16", "sizeof(fl_adapter)")


@pytest.mark.parametrize(("major", "advice"), [(2, "Install a newer Torch-FL"), (0, "Install a newer adapter")])
def test_wrong_major(driver, adapter, major, advice):
    library = adapter(f"MAJOR={major}", "MINOR=3")
    assert_refused(driver("open", library), "FAILED_PRECONDITION", library, f"ABI {major}.3", "ABI 1.0", advice)


def test_wrong_major_of_a_table_with_another_layout(driver, adapter):
    library = adapter("FENCED", "STRUCT_SIZE=8", "MAJOR=2")
    assert_refused(driver("open", library), "FAILED_PRECONDITION", library, "ABI 2.0")


@pytest.mark.parametrize("size", ["0", "4", "0xffffffffu"])
def test_wrong_struct_size(driver, adapter, size):
    library = adapter(f"STRUCT_SIZE={size}")
    assert_refused(
        driver("open", library),
        "INVALID_ARGUMENT",
        library,
        f"struct_size {int(size.rstrip('u'), 0)}",
        "Set .struct_size = sizeof(fl_adapter)",
    )


def test_null_table(driver, adapter):
    library = adapter("NULL_TABLE")
    assert_refused(driver("open", library), "INVALID_ARGUMENT", library, "returned NULL")


def test_missing_symbol(driver, adapter):
    library = adapter("NO_SYMBOL")
    assert_refused(
        driver("open", library), "INVALID_ARGUMENT", library, "does not export the symbol fl_get_adapter", "FL_EXPORT"
    )


@pytest.mark.parametrize("name", ["NULL", '""', '"Tiny Chip"'])
def test_bad_name(driver, adapter, name):
    library = adapter(f"NAME={name}")
    assert_refused(driver("open", library), "INVALID_ARGUMENT", library, "name is", "[a-z0-9_-]")


def test_events_by_half(driver, adapter):
    library = adapter("EVENTS_HALF")
    assert_refused(
        driver("open", library), "INVALID_ARGUMENT", library, "event_destroy (NULL)", "event_synchronize (NULL)"
    )


def test_absent_dependency(driver, adapter, tmp_path):
    other = tmp_path / "libtinysdk.so"
    source = tmp_path / "sdk.c"
    source.write_text("int absent_dependency(void) { return 1; }")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", other], check=True)
    library = adapter("ABSENT_DEPENDENCY", more=("-L", str(tmp_path), "-ltinysdk"))
    other.unlink()
    assert_refused(driver("open", library), "UNAVAILABLE", library, "libtinysdk.so", "LD_LIBRARY_PATH")


def test_undefined_symbol(driver, adapter):
    library = adapter("ABSENT_DEPENDENCY")
    assert_refused(driver("open", library), "UNAVAILABLE", library, "undefined symbol: absent_dependency", "rebuild")


@pytest.mark.parametrize("keep", [0, 3, 40, 200, 0.3, 0.6, 0.99])
def test_truncated(driver, adapter, keep):
    library = adapter()
    size = library.stat().st_size
    os.truncate(library, keep if isinstance(keep, int) else int(size * keep))
    assert_refused(driver("open", library), "INVALID_ARGUMENT", library, "is truncated", "again")


def test_truncated_and_stripped_of_sections(driver, adapter):
    """Without a section table only the program headers tell the file's extent."""
    library = adapter()
    data = bytearray(library.read_bytes())
    struct.pack_into("<Q", data, 40, 0)  # e_shoff
    struct.pack_into("<HH", data, 60, 0, 0)  # e_shnum, e_shstrndx
    library.write_bytes(data)
    assert driver("open", library) == "OK tiny 1.0"
    library.write_bytes(data[: len(data) // 3])
    assert_refused(driver("open", library), "INVALID_ARGUMENT", library, "is truncated")


def test_other_processor(driver, adapter):
    library = adapter()
    data = bytearray(library.read_bytes())
    struct.pack_into("<H", data, 18, 0x1234)
    library.write_bytes(data)
    assert_refused(driver("open", library), "INVALID_ARGUMENT", library, "another processor")


def test_not_a_library(driver, tmp_path):
    text = tmp_path / "libtext.so"
    text.write_text("INPUT(libother.so)\n")
    assert_refused(driver("open", text), "INVALID_ARGUMENT", text, "not an ELF shared library")
    assert_refused(driver("open", tmp_path), "INVALID_ARGUMENT", tmp_path, "not a regular file")
    pipe = tmp_path / "pipe.so"
    os.mkfifo(pipe)
    assert_refused(driver("open", pipe), "INVALID_ARGUMENT", pipe, "not a regular file")
    absent = tmp_path / "libabsent.so"
    assert_refused(driver("open", absent), "NOT_FOUND", absent, "no such file")


def test_executable_is_not_a_library(driver, tmp_path):
    program = tmp_path / "program"
    source = tmp_path / "p.c"
    source.write_text("int main(void) { return 0; }")
    subprocess.run(["gcc", "-no-pie", source, "-o", program], check=True)
    assert_refused(driver("open", program), "INVALID_ARGUMENT", program, "not a shared library")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(driver, adapter):
    library = adapter()
    library.chmod(0)
    assert_refused(driver("open", library), "INVALID_ARGUMENT", library, "Permission denied")


# ---------------------------------------------------------------- failures after opening


def test_no_driver_on_this_machine(driver, adapter):
    line = driver("devices", adapter("UNAVAILABLE"))
    assert line == (
        "ERROR UNAVAILABLE: device_count failed on adapter 'tiny': Unavailable (TINY_NO_DRIVER): "
        "install tiny-driver 2.0"
    )


def test_no_devices(driver, adapter):
    assert "ERROR UNAVAILABLE: adapter 'tiny' found no device" in driver("devices", adapter("NO_DEVICES"))


def test_empty_properties(driver, adapter):
    line = driver("devices", adapter("EMPTY_PROPERTIES"))
    assert "ERROR INVALID_ARGUMENT" in line and "filled struct_size 0" in line


def test_null_memory(driver, adapter):
    assert "succeeded but gave a NULL address" in driver("use", adapter("NULL_MEMORY"))


@pytest.mark.parametrize("define", ["EMPTY_KERNEL", "KERNEL_WITHOUT_FUNCTION"])
def test_broken_kernel(driver, adapter, define):
    line = driver("use", adapter(define))
    assert line.startswith("ERROR INTERNAL: kernel_find(add, float32, float32) on fl:0 (tiny) succeeded but filled")
