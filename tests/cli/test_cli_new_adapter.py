"""new-adapter: the skeleton builds at once, is a valid profile and a valid table, and its memory works."""

import ctypes
import shutil
import subprocess
import sys
import zipfile

import pytest

needs_compiler = pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="needs make and cc")


def build(folder, *words):
    return subprocess.run(["make", "-s", *words], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def skeleton(fl, tmp_path):
    assert fl("new-adapter", "acme").code == 0
    return tmp_path / "acme"


def test_files(fl, skeleton):
    names = {"adapter.c", "profile.json", "Makefile", "CMakeLists.txt", "pyproject.toml", "README.md"}
    assert {path.name for path in skeleton.iterdir()} == names
    for path in skeleton.iterdir():
        assert "@NAME@" not in path.read_text() and "acme" in path.read_text()
    answer = fl("new-adapter", "my-chip_2", "--output", "elsewhere/deep", "--json")
    assert answer.code == 0 and answer.json["folder"] == "elsewhere/deep"
    assert "fl_adapter_my_chip_2" in (skeleton.parent / "elsewhere/deep/pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["Acme", "", "2x", "a b", "../x", "cuda", "a" * 65])
def test_names_that_cannot_be(fl, name, tmp_path):
    answer = fl("new-adapter", name)
    assert answer.code in (1, 2) and not list(tmp_path.iterdir())


def test_nothing_is_overwritten(fl, skeleton):
    answer = fl("new-adapter", "acme")
    assert answer.code == 1 and "there already" in answer.err
    (skeleton.parent / "file").write_text("x")
    assert fl("new-adapter", "acme", "--output", "file").code == 1


@needs_compiler
def test_it_builds_without_warnings_and_registers(fl, skeleton):
    built = build(skeleton, "CFLAGS=-O1 -Wall -Wextra -Werror")
    assert built.returncode == 0, built.stderr
    answer = fl("register-device", "--profile", "acme/profile.json", "--json")
    assert answer.code == 0 and answer.json["adapter"] == str(skeleton / "libfl_acme.so")


@needs_compiler
def test_its_table_and_memory_work(skeleton):
    assert build(skeleton).returncode == 0
    # A C program of its own checks the table, so that this test needs no Torch-FL build.
    program = skeleton / "check.c"
    program.write_text(CHECK)
    include = subprocess.run(["make", "-s", "-f", "-", "show"], cwd=skeleton, capture_output=True, text=True,
                             input="include Makefile\nshow:\n\t@echo $(TORCH_FL_INCLUDE)\n").stdout.strip()
    subprocess.run(["cc", "-std=c11", f"-I{include}", "check.c", "-o", "check", "-L.", "-l:libfl_acme.so",
                    "-Wl,-rpath,$ORIGIN"], cwd=skeleton, check=True)
    found = subprocess.run([skeleton / "check"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    exported = ctypes.CDLL(str(skeleton / "libfl_acme.so"))
    assert hasattr(exported, "fl_get_adapter") and not hasattr(exported, "memory_alloc")


CHECK = r"""
#include <torch_fl/adapter.h>
#include <stdio.h>
#include <string.h>
#define MUST(x) do { if (!(x)) { fprintf(stderr, "line %d: %s\n", __LINE__, #x); return 1; } } while (0)
int main(void) {
  const fl_adapter* a = fl_get_adapter();
  MUST(a && a->abi_major == FL_ABI_MAJOR && strcmp(a->name, "acme") == 0);
  int32_t count = 0;
  MUST(a->device_count(&count) == 0 && count == 1);
  fl_device_properties p = {.struct_size = sizeof p};
  MUST(a->device_properties(0, &p) == 0 && a->device_properties(5, &p) == FL_STATUS_INVALID_ARGUMENT);
  MUST(a->last_error()->message != NULL);
  uint64_t free0, total, free1;
  MUST(a->memory_info(0, &free0, &total) == 0 && free0 == total);
  fl_memory m, n;
  MUST(a->memory_alloc(0, 1001, &m) == 0 && (uintptr_t)m.address % p.alignment == 0);
  MUST(a->memory_alloc(0, total, &n) == FL_STATUS_OUT_OF_MEMORY);
  MUST(a->memory_alloc(0, UINT64_MAX, &n) == FL_STATUS_OUT_OF_MEMORY);
  MUST(a->memory_info(0, &free1, &total) == 0 && free1 == free0 - 1001);
  fl_stream s;
  MUST(a->stream_create(0, 0, &s) == 0);
  char in[1001], out[1001];
  memset(in, 7, sizeof in);
  MUST(a->copy_h2d(s, m, in, 1001) == 0 && a->copy_d2h(s, out, m, 1001) == 0 && memcmp(in, out, 1001) == 0);
  MUST(a->fill(s, m, 9, 1001) == 0 && a->copy_d2h(s, out, m, 1001) == 0 && out[1000] == 9);
  fl_kernel k = {.struct_size = sizeof k};
  const fl_dtype f32 = {FL_FLOAT, 32, 1}, i64 = {FL_INT, 64, 1};
  MUST(a->kernel_find(0, "add", i64, i64, &k) == FL_STATUS_UNIMPLEMENTED);
  MUST(a->kernel_find(0, "add", f32, f32, &k) == 0 && k.fn);
  float x[3] = {1, 2, 3}, y[3] = {10, 20, 30}, z[3];
  int64_t sizes[1] = {3}, strides[1] = {1};
  fl_tensor ins[2] = {{.memory = {x}, .sizes = sizes, .strides = strides, .ndim = 1, .dtype = f32},
                      {.memory = {y}, .sizes = sizes, .strides = strides, .ndim = 1, .dtype = f32}};
  fl_tensor outs[1] = {{.memory = {z}, .sizes = sizes, .strides = strides, .ndim = 1, .dtype = f32}};
  fl_scalar alpha = {.tag = FL_SCALAR_INT, .v = {.i = 2}};
  fl_op_call call = {sizeof call, 0, s, k.data, ins, outs, &alpha, 2, 1, 1};
  MUST(k.fn(&call) == 0 && z[0] == 21 && z[2] == 63);
  MUST(a->stream_synchronize(s) == 0 && a->stream_query(s) == 0 && a->stream_destroy(s) == 0);
  MUST(a->memory_free(0, m) == 0 && a->memory_info(0, &free1, &total) == 0 && free1 == free0);
  return 0;
}
"""


@needs_compiler
def test_its_wheel_is_found_without_registering(skeleton, tmp_path, monkeypatch):
    pytest.importorskip("scikit_build_core")
    made = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w",
                           str(tmp_path / "dist"), "."], cwd=skeleton, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith("fl_adapter_acme-0.1.0-py3-none-")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    from torch_fl.profile import adapters

    chip = adapters.find("acme")
    assert chip.origin == "installed" and chip.error is None
    assert chip.library == tmp_path / "site" / "fl_adapter_acme" / "libfl_acme.so"
