"""The OpenCL adapter through its C table, with the runtimes that this machine has: memory modes, copies, streams,
events, the cache of programs, faulty drivers and loaders, and the drivers that Python environments bring along.

The scenarios are C++ (chips/opencl/adapter/tests), compiled once per session. OCL_ICD_VENDORS chooses the runtimes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CHIP = Path(__file__).parents[1]
SOURCES = CHIP / "adapter" / "tests"
LIMIT = 300  # seconds; a busy machine builds kernels slowly


def find_adapter() -> Path:
    """The built libfl_opencl.so: of TORCH_FL_ADAPTER_PATH, else the newest of the build folders."""
    places = [Path(p) for p in os.environ.get("TORCH_FL_ADAPTER_PATH", "").split(os.pathsep) if p]
    named = [p / "libfl_opencl.so" if p.is_dir() else p for p in places]
    found = [p for p in named if p.name == "libfl_opencl.so" and p.exists()]
    if not found:
        root = CHIP.parents[1]
        found = [*root.glob("build/**/libfl_opencl.so"), *root.glob("torch_fl/**/libfl_opencl.so")]
        found += Path(sys.prefix).glob("lib/python*/site-packages/torch_fl/**/libfl_opencl.so")
    if not found:
        pytest.fail("libfl_opencl.so is not built: cmake -S chips/opencl -B build/opencl && cmake --build build/opencl")
    return max(found, key=lambda p: p.stat().st_mtime)


def compile_native(output: Path, *arguments: str | Path, cxx: bool = False) -> Path:
    compiler = os.environ.get("CXX", "c++") if cxx else os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O1", "-o", output, *arguments], check=True)
    return output


class Adapter:
    """Runs scenarios in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.library = find_adapter()
        include = CHIP.parents[1] / "include"
        sources = sorted(SOURCES.glob("*.cpp"))
        self.driver = compile_native(
            folder / "test_adapter", "-std=c++17", f"-I{include}", *sources, "-ldl", "-pthread", cxx=True
        )
        self.faulty = folder / "libfaulty.so"
        loader = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
        paths = [line.split("=> ")[1] for line in loader.splitlines() if "libOpenCL.so.1 " in line]
        if paths:
            source = SOURCES / "fault_loader.c"
            compile_native(self.faulty, "-shared", "-fPIC", source, "-Wl,--no-as-needed", paths[0], "-ldl")

    def run(self, scenario: str, *, check: bool = True, env: dict[str, str] | None = None, **options: object):
        command = [self.driver, self.library, scenario, *(f"{key}={value}" for key, value in options.items())]
        done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=LIMIT)
        if check:
            assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def devices(self, **arguments) -> list[list[str]]:
        return [line.split("\t") for line in self.run("devices", **arguments).stdout.splitlines()]

    def faulty_run(self, scenario: str, fault: str = "", *, env: dict[str, str] | None = None, **options: object):
        return self.run(scenario, env={"OPENCL_FAULT": fault, **(env or {})}, library=self.faulty, **options)


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    made = Adapter(tmp_path_factory.mktemp("opencl"))
    found = made.run("devices", check=False)
    if found.returncode != 0 and "Install" in found.stderr:
        pytest.skip(f"no OpenCL runtime on this machine: {found.stderr}")
    return made


# ---------------------------------------------------------------- devices and options


def test_devices_are_listed_once_with_lasting_ids(adapter: Adapter) -> None:
    devices = adapter.devices()
    uuids = [device[2] for device in devices]
    assert devices and len(set(uuids)) == len(uuids)
    assert devices == adapter.devices()
    assert all(device[1].endswith(("-cpu", "-gpu")) for device in devices)


def test_options(adapter: Adapter) -> None:
    adapter.run("options")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_both_variants_of_kernels_run(adapter: Adapter, kind: str) -> None:
    adapter.run("add", device_type=kind)


def test_two_devices_of_one_platform_reach_each_other(adapter: Adapter) -> None:
    if not any(device[1] == "pocl-cpu" for device in adapter.devices()):
        pytest.skip("only PoCL gives two devices on one processor")
    env = {"POCL_DEVICES": "pthread pthread"}
    pocl = [device for device in adapter.devices(env=env) if device[1] == "pocl-cpu"]
    assert len(pocl) == 2 and pocl[0][2] != pocl[1][2]
    for mode in ("svm", "buffer"):
        lines = adapter.run("peers", env=env, memory=mode).stdout.splitlines()
        assert f"{pocl[0][0]} {pocl[1][0]} 0" in lines and f"{pocl[1][0]} {pocl[0][0]} 0" in lines
        adapter.run("streams", env=env, memory=mode)


# ---------------------------------------------------------------- memory, streams, kernels in all modes


@pytest.mark.parametrize("scenario", ["memory", "peers", "streams", "add", "late_errors"])
@pytest.mark.parametrize("mode", ["auto", "usm", "svm", "buffer"])
def test_memory_mode(adapter: Adapter, mode: str, scenario: str) -> None:
    opened = adapter.run("devices", check=False, memory=mode)
    if opened.returncode == 0:
        adapter.run(scenario, memory=mode)
    else:  # no device here has it
        assert mode in ("usm", "svm") and "set option `memory` to auto" in opened.stderr


@pytest.mark.parametrize("scenario", ["memory", "streams", "add", "late_errors"])
@pytest.mark.parametrize("fault", ["coarse", "card", "no_svm"])
def test_memory_of_other_kinds_of_device(adapter: Adapter, fault: str, scenario: str) -> None:
    """As a device with coarse-grained SVM, as a card with memory of its own, and as one without shared memory."""
    adapter.faulty_run(scenario, fault)
    capabilities = {int(device[4]) for device in adapter.devices(env={"OPENCL_FAULT": fault}, library=adapter.faulty)}
    assert capabilities == {2 if fault == "no_svm" else 3}  # in place, pointers; never host-visible


def test_a_small_device_says_when_it_is_full(adapter: Adapter) -> None:
    adapter.faulty_run("memory", "small")


# ---------------------------------------------------------------- faults

FAULTS = {
    "build_fails": ("13", "CL_BUILD_PROGRAM_FAILURE"),
    "launch_fails": ("10", "CL_OUT_OF_RESOURCES: launch of add"),
    "work_fails": ("15", "queued work"),
    "device_lost": ("15", "CL_DEVICE_NOT_AVAILABLE"),
    "out_of_resources": ("10", "CL_OUT_OF_RESOURCES"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told(adapter: Adapter, fault: str) -> None:
    status, text = adapter.faulty_run("faults", fault).stdout.strip().split("\t")
    assert status == FAULTS[fault][0] and FAULTS[fault][1] in text


def test_no_platform(adapter: Adapter) -> None:
    assert "pocl-opencl-icd" in adapter.faulty_run("absent", "no_platform").stdout


def test_no_compiler(adapter: Adapter) -> None:
    assert "no device that is available and has a compiler" in adapter.faulty_run("absent", "no_compiler").stdout


def test_no_loader(adapter: Adapter) -> None:
    text = adapter.run("absent", library="/nowhere/libOpenCL.so.1").stdout
    assert "option `library`" in text and "/nowhere/libOpenCL.so.1" in text
    text = adapter.run("absent", library=adapter.library).stdout  # a library, but no loader
    assert "lacks cl" in text


# ---------------------------------------------------------------- the child process that tries a platform


def stranger(**more: str) -> dict[str, str]:
    """A platform of another name than those known to be good."""
    return {"OPENCL_STRANGER": "1", **more}


def test_an_unknown_platform_is_tried_once(adapter: Adapter, tmp_path: Path) -> None:
    count = tmp_path / "count"
    env = stranger(OPENCL_COUNT=str(count))
    adapter.faulty_run("devices", env=env, cache_dir=tmp_path / "cache")
    tried = count.stat().st_size
    assert tried >= 5
    adapter.faulty_run("devices", env=env, cache_dir=tmp_path / "cache")
    assert count.stat().st_size == tried


def test_a_compiler_that_ends_the_process(adapter: Adapter, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    text = adapter.faulty_run("absent", "build_aborts", env=stranger(), cache_dir=cache).stdout
    assert "Abort" in text and "COMPILER ERROR: cannot do it" in text and "probe=never" in text
    assert adapter.faulty_run("absent", env=stranger(), cache_dir=cache).stdout.count("Abort")  # remembered
    kept = list((cache / "probe").iterdir())
    assert kept and all(str(answer) in text for answer in kept)
    for answer in kept:
        answer.unlink()
    adapter.faulty_run("devices", env=stranger(), cache_dir=cache)
    adapter.faulty_run("devices", "build_aborts", env=stranger(), probe="never")
    assert "Abort" in adapter.faulty_run("absent", "build_aborts", probe="always").stdout


def test_a_compiler_that_hangs(adapter: Adapter) -> None:
    assert "did not finish" in adapter.faulty_run("absent", "build_hangs", env=stranger()).stdout


def test_a_compiler_that_refuses(adapter: Adapter) -> None:
    text = adapter.faulty_run("absent", "build_fails", env=stranger()).stdout
    assert "half storage: clBuildProgram fails with CL_BUILD_PROGRAM_FAILURE" in text


# ---------------------------------------------------------------- programs on disk


class Cache:
    def __init__(self, adapter: Adapter, folder: Path) -> None:
        self.adapter, self.folder, self.count = adapter, folder / "cache", folder / "count"

    def builds(self, **options: object) -> int:
        """Programs made from source by a process that runs one kernel on each device."""
        self.count.unlink(missing_ok=True)
        options = {"cache_dir": self.folder, **options}
        self.adapter.faulty_run("add", env={"OPENCL_COUNT": str(self.count)}, **options)
        return self.count.stat().st_size if self.count.exists() else 0

    def entries(self) -> list[Path]:
        return sorted((self.folder / "programs").iterdir())


@pytest.fixture
def cache(adapter: Adapter, tmp_path: Path) -> Cache:
    return Cache(adapter, tmp_path)


def test_programs_are_built_once(cache: Cache) -> None:
    built = cache.builds()
    assert built >= 1 and len(cache.entries()) == built
    assert cache.builds() == 0


def flip_a_bit(entry: Path) -> None:
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 16
    entry.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda entry: os.truncate(entry, entry.stat().st_size - 1),
    "header cut": lambda entry: os.truncate(entry, 20),
    "empty": lambda entry: os.truncate(entry, 0),
    "longer": lambda entry: entry.write_bytes(entry.read_bytes() + b"x"),
    "a bit": flip_a_bit,
    "of another program": lambda entry: entry.write_bytes(entry.read_bytes()[:8] + bytes(16) + entry.read_bytes()[24:]),
    "something else": lambda entry: entry.write_bytes(os.urandom(5000)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_again(cache: Cache, damage: str) -> None:
    built = cache.builds()
    for entry in cache.entries():
        DAMAGES[damage](entry)
    assert cache.builds() == built
    assert cache.builds() == 0


def test_many_processes_share_the_cache(cache: Cache) -> None:
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(cache.adapter.run, "add", cache_dir=cache.folder) for _ in range(6)]:
            done.result()
    assert all(entry.suffix == ".bin" for entry in cache.entries())
    assert cache.builds() == 0


def test_a_folder_that_cannot_be_written_is_no_error(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert cache.builds(cache_dir=tmp_path / "file" / "cache") >= 1
    assert cache.builds(cache_dir="") >= 1


def test_the_cache_has_a_limit(cache: Cache) -> None:
    programs = cache.folder / "programs"
    programs.mkdir(parents=True)
    for i in range(3):
        (programs / f"old{i}.bin").write_bytes(bytes(1 << 20))
        os.utime(programs / f"old{i}.bin", (i, i))
    assert cache.builds(cache_max_mb=2) >= 1
    assert sum(entry.stat().st_size for entry in cache.entries()) <= 2 << 20
    assert cache.builds(cache_max_mb=2) == 0  # the newest stay
    shutil.rmtree(cache.folder)
    cache.builds(cache_max_mb=0)
    assert not cache.folder.exists() or not cache.entries()


# ---------------------------------------------------------------- drivers in a Python environment

PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3/lib/libintelocl.so\n"


def fake_environment(folder: Path, source: str, *arguments: str | Path) -> Path:
    """A prefix as Intel's wheel leaves it: a driver, and .icd files with a placeholder for a path."""
    prefix = folder / "prefix"
    (prefix / "etc/OpenCL/vendors").mkdir(parents=True)
    (prefix / "etc/OpenCL/vendors/intel-cpu.icd").write_text(PLACEHOLDER)
    (prefix / "lib/python3.11/site-packages/intel_opencl_rt-2026.2.0.dist-info").mkdir(parents=True)
    code = folder / "driver.c"
    code.write_text(source)
    compile_native(prefix / "lib/libintelocl.so", "-shared", "-fPIC", code, "-Wl,--no-as-needed", *arguments)
    return prefix


@pytest.fixture
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)


TOUCH = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) {
  FILE* file = fopen(getenv("DRIVER_LOADED"), "w");
  if (file) { fputs(getenv("OCL_ICD_VENDORS"), file); fclose(file); }
}
"""


@pytest.mark.usefixtures("no_choice")
def test_a_driver_in_an_environment_is_found(adapter: Adapter, tmp_path: Path) -> None:
    mark = tmp_path / "loaded"
    prefix = fake_environment(tmp_path, TOUCH)
    usual = adapter.run("devices", check=False).stdout
    env = {"VIRTUAL_ENV": str(prefix), "DRIVER_LOADED": str(mark)}
    found = adapter.run("devices", check=False, env=env)
    assert mark.exists(), "the driver was not loaded"
    assert not Path(mark.read_text()).exists()  # the folder made for the loader is gone
    assert usual in found.stdout  # the system's drivers are there too
    mark.unlink()
    adapter.run("devices", check=False, env={**env, "OCL_ICD_VENDORS": "/etc/OpenCL/vendors"})
    assert not mark.exists()  # the user's own choice stands


@pytest.mark.usefixtures("no_choice")
def test_a_driver_that_lacks_its_libraries_is_explained(adapter: Adapter, tmp_path: Path) -> None:
    needed = compile_native(tmp_path / "libimf.so", "-shared", "-fPIC", "-Wl,-soname,libimf.so", "-x", "c", "/dev/null")
    prefix = fake_environment(tmp_path, "", needed)
    needed.unlink()
    found = adapter.run("devices", check=False, env={"VIRTUAL_ENV": str(prefix)})
    assert "libimf.so" in found.stderr and "pip install intel-cmplr-lib-rt==2026.2.0" in found.stderr


def test_a_wrong_icd_file_is_explained(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / "intel.icd").write_text(PLACEHOLDER)
    text = adapter.run("absent", env={"OCL_ICD_VENDORS": str(tmp_path)}).stdout
    assert "libintelocl.so" in text and "unset OCL_ICD_VENDORS" in text


def test_one_driver_named_twice_is_used_once(adapter: Adapter, tmp_path: Path) -> None:
    vendors = Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors"))
    files = list(vendors.glob("*.icd"))
    if not files:
        pytest.skip(f"no .icd files in {vendors}")
    for file in files:
        for copy in "ab":
            shutil.copy(file, tmp_path / f"{file.stem}-{copy}.icd")
    once = adapter.devices(env={"OCL_ICD_VENDORS": str(vendors)})
    assert adapter.devices(env={"OCL_ICD_VENDORS": str(tmp_path)}) == once
