"""chip_profile.json: what is accepted, and that every problem names file, line, field, value and what is allowed."""

import json

import pytest

from torch_fl._errors import FlError, ProfileError
from torch_fl.profile import loader
from torch_fl.profile.chip_profile import DTYPES


def problems(text):
    with pytest.raises(loader.InvalidProfile) as caught:
        loader.loads(text, "p.json")
    return str(caught.value), caught.value.problems


def test_the_printed_form_is_accepted(printed):
    profile = loader.loads(printed)
    assert profile.device_name == "ninguang" and profile.arch == "tgpu-v2"
    assert profile.memory_pool.prealloc_mb == 8192 and profile.memory_pool.alignment == 64
    assert [entry.op for entry in profile.native_ops] == ["aten::conv2d", "aten::matmul", "aten::gelu"]
    assert [entry.compute for entry in profile.native_ops] == ["native", "native", "decompose"]
    assert "bfloat16" not in profile.effective_dtypes() and "float16" in profile.effective_dtypes()


def test_all_fields_are_accepted():
    text = json.dumps({
        "$schema": "chip_profile.schema.json", "device_name": "acme", "arch": "a1", "adapter": "libfl_acme.so",
        "memory_pool": {"prealloc_mb": 1, "min_block_bytes": 4096, "alignment": 256, "total_mb": 64},
        "dtypes": ["float32", "float16", "int64"], "fp16_supported": True, "bf16_supported": False,
        "unified_memory": True,
        "native_ops": [{"op": "add", "compute": "native", "fp16": False, "constraints": {"max_ndim": 4}},
                       {"op": "mul", "dtypes": ["float32"]}, {"op": "*", "compute": "cpu"}],
        "constraints": {"contiguous": True, "no_broadcast": True, "no_immediate": True, "max_ndim": 8,
                        "max_numel": 2147483647, "alignment": 16},
        "fusion": {"enable": True, "patterns": [{"name": "conv_bn_relu",
                                                 "ops": ["aten::conv2d", "aten::batch_norm", "aten::relu"]}]},
        "kernel_cache": {"enable": True, "path": "/tmp/k", "max_mb": 100}, "sparse": {"layouts": ["csr"]},
        "comm_backend": "nccl", "sync_primitive": "stream",
    })
    assert loader.loads(text).constraints.max_numel == 2147483647


def test_the_smallest_profile():
    profile = loader.loads('{"device_name": "a"}')
    assert profile.effective_dtypes() == DTYPES and profile.native_ops is None


def test_a_byte_order_mark_is_no_problem(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(b'\xef\xbb\xbf{"device_name": "a"}')
    assert loader.load(path).device_name == "a"


# One fault per case: the field's path, its line, its value as shown, and a word of the explanation.
FAULTS = [
    ('{\n"device_name": "Acme"\n}', "device_name", 2, '"Acme"', "allowed: a text matching"),
    ('{\n"device_name": "cuda"\n}', "device_name", 2, '"cuda"', "taken"),
    ('{\n"device_name": "a\\u000a"\n}', "device_name", 2, '"a\\n"', "newline"),
    ('{\n"arch": "x"\n}', "device_name", 1, "", "required field is missing"),
    ('{"device_name": "a",\n"arhc": "x"}', "arhc", 2, '"x"', "did you mean arch?"),
    ('{"device_name": "a",\n"memory_pool": {\n"alignment": "64"}}', "memory_pool.alignment", 3, '"64"',
     "expected a whole number, got a text"),
    ('{"device_name": "a",\n"memory_pool": {\n"alignment": 63}}', "memory_pool.alignment", 3, "63", "power of two"),
    ('{"device_name": "a",\n"memory_pool": {\n"alignment": 0}}', "memory_pool.alignment", 3, "0", "from 1"),
    ('{"device_name": "a",\n"memory_pool": {\n"alignment": true}}', "memory_pool.alignment", 3, "true", "whole number"),
    ('{"device_name": "a",\n"memory_pool": {\n"prealloc_mb": -1}}', "memory_pool.prealloc_mb", 3, "-1", "from 0"),
    ('{"device_name": "a",\n"memory_pool": {\n"prealloc_mb": 1.5}}', "memory_pool.prealloc_mb", 3, "1.5",
     "expected a whole number"),
    ('{"device_name": "a",\n"memory_pool": {\n"prealloc_mb": 99999999999999999999}}', "memory_pool.prealloc_mb", 3,
     "99999999999999999999", "up to"),
    ('{"device_name": "a",\n"memory_pool": {"total_mb": 5,\n"prealloc_mb": 6}}', "memory_pool.prealloc_mb", 3, "6",
     "larger than the memory"),
    ('{"device_name": "a",\n"memory_pool": {"alignment": 256,\n"min_block_bytes": 300}}',
     "memory_pool.min_block_bytes", 3, "300", "multiples of 256"),
    ('{"device_name": "a",\n"memory_pool": null}', "memory_pool", 2, "null", "expected an object"),
    ('{"device_name": "a",\n"fp16_supported": "yes"}', "fp16_supported", 2, '"yes"', "true, false"),
    ('{"device_name": "a", "dtypes": ["float32"],\n"fp16_supported": true}', "fp16_supported", 2, "true",
     "lacks float16"),
    ('{"device_name": "a", "dtypes": ["bfloat16"],\n"bf16_supported": false}', "bf16_supported", 2, "false",
     "lists bfloat16"),
    ('{"device_name": "a", "dtypes": [\n"float32",\n"float23"]}', "dtypes[1]", 3, '"float23"', "did you mean"),
    ('{"device_name": "a", "dtypes": [\n"float32",\n"float32"]}', "dtypes[1]", 3, '"float32"', "twice"),
    ('{"device_name": "a", "dtypes": \n[]}', "dtypes", 1, "[]", "at least 1 of"),
    ('{"device_name": "a", "sync_primitive":\n"barrier"}', "sync_primitive", 1, '"barrier"', "device, event, stream"),
    ('{"device_name": "a", "native_ops": {\n}}', "native_ops", 1, "{}", "expected a list"),
    ('{"device_name": "a", "native_ops": [\n5]}', "native_ops[0]", 2, "5", "expected an object"),
    ('{"device_name": "a", "native_ops": [\n{"compute": "cpu"}]}', "native_ops[0].op", 2, "", "missing"),
    ('{"device_name": "a", "native_ops": [{"op": "add",\n"compute": "gpu"}]}', "native_ops[0].compute", 2, '"gpu"',
     "cpu, decompose, library, native"),
    ('{"device_name": "a", "native_ops": [\n{"op": "aten::con2d"}]}', "native_ops[0].op", 2, '"aten::con2d"',
     "did you mean aten::conv2d"),
    ('{"device_name": "a", "native_ops": [\n{"op": "prim::add"}]}', "native_ops[0].op", 2, '"prim::add"', "namespace"),
    ('{"device_name": "a", "native_ops": [\n{"op": "aten::add.Tensr"}]}', "native_ops[0].op", 2, '"aten::add.Tensr"',
     "unknown overload"),
    ('{"device_name": "a", "fp16_supported": false, "native_ops": [{"op": "add",\n"fp16": true}]}',
     "native_ops[0].fp16", 2, "true", "fp16_supported is false"),
    ('{"device_name": "a", "dtypes": ["float32"], "native_ops": [{"op": "add",\n"bf16": true}]}',
     "native_ops[0].bf16", 2, "true", "dtypes lacks bfloat16"),
    ('{"device_name": "a", "dtypes": ["float32"], "native_ops": [{"op": "add", "dtypes": [\n"int8"]}]}',
     "native_ops[0].dtypes[0]", 2, '"int8"', "does not have int8"),
    ('{"device_name": "a", "native_ops": [{"op": "add", "dtypes": ["float32"],\n"fp16": true}]}',
     "native_ops[0].fp16", 2, "true", "contradicts dtypes of the same operator"),
    ('{"device_name": "a", "native_ops": [{"op": "gelu"},\n{"op": "gelu", "compute": "decompose"}]}',
     "native_ops[1].op", 2, '"gelu"', "listed twice"),
    ('{"device_name": "a", "native_ops": [{"op": "aten::matmul"},\n{"op": "aten::linear", "compute": "cpu"}]}',
     "native_ops[1].op", 2, '"aten::linear"', "as aten::matmul on line 1 does"),
    ('{"device_name": "a", "native_ops": [{"op": "aten::conv1d"},\n{"op": "aten::conv2d", "fp16": true}]}',
     "native_ops[1].op", 2, '"aten::conv2d"', "other types"),
    ('{"device_name": "a", "constraints": {\n"alignment": 3}}', "constraints.alignment", 2, "3", "power of two"),
    ('{"device_name": "a", "fusion": {"patterns": [{"name": "f", "ops": ["add",\n"nonsense_op"]}]}}',
     "fusion.patterns[0].ops[1]", 2, '"nonsense_op"', "unknown operator"),
    ('{"device_name": "a", "sparse": {"layouts": [\n"coo2"]}}', "sparse.layouts[0]", 2, '"coo2"', "did you mean coo"),
    ('{"device_name": "a",\n"device_name": "b"}', "device_name", 2, "", "appears twice; first on line 1"),
]


@pytest.mark.parametrize(("text", "field", "line", "value", "words"), FAULTS, ids=[case[1] for case in FAULTS])
def test_a_fault_is_told_with_file_line_field_value_and_what_is_allowed(text, field, line, value, words):
    message, found = problems(text)
    assert len(found) == 1, message
    shown = f"{field} = {value}" if value else field
    assert f"p.json:{line}: {shown}" in message
    assert words in message


def test_all_problems_are_told_at_once():
    message, found = problems('{"device_name": 1,\n"arch": 2,\n"memory_pool": {"alignment": "x"},\n"nope": 1}')
    assert [problem.line for problem in found] == [1, 2, 3, 4]
    assert message.startswith("4 problems in chip profile p.json")


MALFORMED = [
    ("", 1, "is empty"), ("   \n\n", 3, "is empty"), ("{", 1, "end of the file"),
    ('{\n"device_name": "a",\n}', 3, "comma before"), ('{"device_name"\n"a"}', 2, 'expected ":"'),
    ('{"device_name": "a"\n"arch": "b"}', 2, 'expected "," or "}"'), ("{\n'device_name': 1}", 2, "double quotes"),
    ('{"a": tru}', 1, "expected a value"), ('{"a": NaN}', 1, "NaN is not JSON"), ('{"a": -Infinity}', 1, "not JSON"),
    ('{"a": "x\n"}', 1, "Invalid control character"), ('{"a": "\\q"}', 1, "escape"), ('{"a": "x', 1, "string"),
    ("[1, 2", 1, "never closed"), ("[1,]", 1, "comma before"), ("{} {}", 1, "after the end"), ("[" * 500, 1, "deeper"),
    ('{"a": ' * 500, 1, "deeper"), ("// hello\n{}", 1, "expected a value"), ('{"a": 01}', 1, 'expected "," or "}"'),
    ('{"a": ' + "9" * 5000 + "}", 1, "digit"), ("\x00", 1, "expected a value"),
]


@pytest.mark.parametrize(("text", "line", "words"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_json_is_told_with_its_line(text, line, words):
    message, found = problems(text)
    assert found[0].line == line
    assert words in message


@pytest.mark.parametrize("text", ["null", "[]", "3", '"x"', "true"])
def test_json_that_is_no_object(text):
    message, _ = problems(text)
    assert "expected an object with fields" in message


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"{\n\xff\xfe}")
    (tmp_path / "big.json").write_bytes(b" " * (9 << 20))
    for path, words in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory"),
                        (tmp_path / "binary.json", ":2: is not UTF-8"), (tmp_path / "big.json", "larger than"),
                        ("/dev/zero", "larger than")):
        with pytest.raises(loader.InvalidProfile, match=words):
            loader.load(path)


def test_errors_are_profile_errors():
    assert issubclass(loader.InvalidProfile, ProfileError) and issubclass(ProfileError, FlError)
    assert issubclass(FlError, RuntimeError)


def test_random_damage_is_always_an_error_or_a_profile(printed):
    import random

    randomness = random.Random(0)
    for _ in range(1500):
        text = list(printed)
        for _ in range(randomness.randint(1, 4)):
            place = randomness.randrange(len(text))
            text[place:place + randomness.randint(0, 3)] = randomness.choices('{}[]",:0123 tfn\\\n\u00e9', k=2)
        try:
            loader.loads("".join(text))
        except loader.InvalidProfile as error:
            assert all(problem.text("f") for problem in error.problems)
