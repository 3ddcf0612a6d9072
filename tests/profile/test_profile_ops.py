"""Operator names, what a profile makes native, and the generated tables behind both."""

import subprocess
import sys
from pathlib import Path

import pytest

from torch_fl import _uniop_table as table
from torch_fl.profile import loader
from torch_fl.profile.op_name import Precision, UnknownOp, known_names, resolve
from torch_fl.profile.op_plan import aten_pins, plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "uniops"), [
    ("aten::conv2d", {"convolution", "convolution_backward_input", "convolution_backward_weight"}),
    ("aten::matmul", {"mm", "addmm", "bmm", "baddbmm"}), ("aten::linear", {"mm", "addmm"}),
    ("aten::gelu", {"gelu", "gelu_backward"}), ("gelu", {"gelu"}), ("aten::relu", {"relu", "threshold_backward"}),
    ("aten::relu_", {"relu", "threshold_backward"}), ("aten::embedding", {"index_select", "embedding_backward"}),
    ("aten::cross_entropy_loss", {"log_softmax", "nll_loss", "log_softmax_backward", "nll_loss_backward"}),
    ("aten::batch_norm", {"batch_norm", "batch_norm_backward"}), ("aten::dropout", {"dropout"}),
    ("aten::layer_norm", {"layer_norm", "layer_norm_backward"}),
    ("aten::adaptive_avg_pool2d", {"adaptive_avg_pool", "adaptive_avg_pool_backward"}),
    ("aten::add", {"add"}), ("aten::add.Tensor", {"add"}), ("aten::pow", {"pow", "pow_scalar"}),
    ("aten::pow.Tensor_Scalar", {"pow_scalar"}), ("aten::max", {"amax", "max_dim"}), ("aten::max.dim_max", {"max_dim"}),
    ("aten::__lshift__", {"shift_left"}), ("aten::view", set()),
    ("conv2d", {"convolution", "convolution_backward_input", "convolution_backward_weight"}),
    ("aten::softmax", {"softmax", "softmax_backward"}), ("aten::_softmax", {"softmax", "softmax_backward"}),
    ("aten::scaled_dot_product_attention", {"attention", "attention_backward"}),
])
def test_names_resolve(name, uniops):
    assert set(resolve(name)) == uniops


def test_the_wildcard_means_everything():
    assert set(resolve("*")) == {op.name for op in table.UNIOPS}


@pytest.mark.parametrize("name", ["", "aten::", "aten::conv2", "gellu", "torch::add", "aten::add.Nope", "aten::add::x"])
def test_unknown_names_raise(name):
    with pytest.raises(UnknownOp):
        resolve(name)


def test_every_known_name_resolves():
    for name in known_names():
        resolve(name)


def test_precision_order():
    assert resolve("aten::linear")["addmm"] == Precision.COMPOSITE
    assert resolve("aten::addmm")["addmm"] == Precision.FUNCTION
    assert resolve("aten::gelu")["gelu_backward"] == Precision.GRADIENT
    assert resolve("addmm")["addmm"] == Precision.UNIOP


def planned(native_ops, **fields):
    import json

    return plan(loader.loads(json.dumps({"device_name": "a", "native_ops": native_ops, **fields})))


def test_without_native_ops_nothing_is_restricted():
    resolved = plan(loader.loads('{"device_name": "a"}'))
    assert not resolved.only_listed and not resolved.native and not resolved.pinned


def test_the_printed_profile(printed):
    resolved = plan(loader.loads(printed))
    assert resolved.only_listed
    assert resolved.pinned == {"gelu": "decompose", "gelu_backward": "decompose"}
    assert set(resolved.native) == {*resolve("aten::conv2d"), *resolve("aten::matmul"), "copy", "fill"}
    assert all(types == [] for types in resolved.native.values())


def test_the_more_precise_entry_decides():
    resolved = planned([{"op": "aten::linear", "compute": "cpu"}, {"op": "addmm"}, {"op": "aten::gelu"},
                        {"op": "aten::gelu_backward", "compute": "decompose"}, {"op": "*", "compute": "library"}])
    assert resolved.pinned["mm"] == "cpu" and resolved.pinned["gelu_backward"] == "decompose"
    assert resolved.pinned["add"] == "library"
    assert {"addmm", "gelu"} <= set(resolved.native)


def test_the_same_entry_twice_is_harmless():
    assert "add" in planned([{"op": "add"}, {"op": "add"}, {"op": "aten::conv1d"}, {"op": "aten::conv2d"}]).native


def test_types_of_an_operator():
    resolved = planned([{"op": "add", "fp16": False}, {"op": "mul", "dtypes": ["int8", "float32"]}, {"op": "sub"}],
                       dtypes=["float32", "float16", "int8"])
    assert resolved.native["add"] == ["int8", "float32"]
    assert resolved.native["mul"] == ["int8", "float32"]
    assert resolved.native["sub"] == []


def test_data_movement_stays_native_unless_pinned():
    assert {"copy", "fill"} <= set(planned([]).native)
    assert "copy" not in planned([{"op": "copy", "compute": "cpu"}]).native


def test_pins_by_aten_function():
    pins = aten_pins(planned([{"op": "aten::gelu", "compute": "cpu"}, {"op": "pow", "compute": "decompose"}]))
    assert pins["aten::gelu"] == pins["aten::gelu_"] == pins["aten::gelu_backward"] == "cpu"
    assert "aten::pow" not in pins  # pow.Tensor_Scalar stands on another UniOp, which is not pinned


@pytest.mark.parametrize("module", ["codegen.gen_python", "torch_fl.profile.schema"])
def test_generated_files_are_fresh(module):
    assert subprocess.run([sys.executable, "-m", module, "--check"], cwd=ROOT).returncode == 0


def test_the_table_agrees_with_the_list():
    sys.path.insert(0, str(ROOT))
    try:
        from codegen.uniops import load
    finally:
        sys.path.remove(str(ROOT))
    assert [(op.name, op.id) for op in load()] == [(op.name, op.id) for op in table.UNIOPS]
    assert [op.overloads for op in load()] == [op.overloads for op in table.UNIOPS]


BAD_LISTS = [
    ("unary:\n  abs: {id: 1}\n  abs: {id: 2}\n", "listed twice: abs"),
    ("unary:\n  abs: {id: 1}\n  neg: {id: 1}\n", "id 1"),
    ("unary:\n  abs: {id: 0}\n", "positive"), ("unary:\n  abs: {id: 1, x: 2}\n", "unknown field x"),
    ("loss:\n  a: {id: 1, outputs: [out]}\n", "inputs must be given"),
    ("unary:\n  abs: {id: 1, out: int}\n", "out must be"),
    ("unary:\n  abs: {id: 1, aten: ['a b']}\n", "malformed"), ("unary:\n  Abs: {id: 1}\n", "lower case"),
    ("unary:\n  a: {id: 1, aten: [a.out]}\n  b: {id: 2, aten: [a.out]}\n", "generated for both"), ("- 1\n", "mapping"),
    ("a: [", "expected"),
]


@pytest.mark.parametrize(("text", "words"), BAD_LISTS, ids=range(len(BAD_LISTS)))
def test_a_malformed_list_is_refused(tmp_path, text, words):
    sys.path.insert(0, str(ROOT))
    try:
        from codegen.uniops import UniOpsError, load
    finally:
        sys.path.remove(str(ROOT))
    path = tmp_path / "uniops.yaml"
    path.write_text(text)
    with pytest.raises(UniOpsError, match=words):
        load(path)


def test_the_schema_knows_every_field_and_name(printed):
    import json

    from torch_fl.profile.schema import SCHEMA_FILE

    schema = json.loads(SCHEMA_FILE.read_text())
    fields = schema["$defs"]["ChipProfile"]
    assert set(json.loads(printed)) <= set(fields["properties"])
    assert fields["additionalProperties"] is False and fields["required"] == ["device_name"]
    names = schema["$defs"]["NativeOp"]["properties"]["op"]["anyOf"][0]["enum"]
    assert {"aten::conv2d", "gelu", "*"} <= set(names)


def test_the_table_of_the_operator_rooms():
    # By its file: torch_fl.ops itself needs the compiled part.
    import importlib.util

    spec = importlib.util.spec_from_file_location("fl_ops_table", ROOT / "torch_fl" / "ops" / "_uniop_table.py")
    ops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ops)
    assert ops.ATEN_TO_UNIOPS["gelu"] == ("gelu",) and ops.ATEN_TO_UNIOPS["relu_"] == ("relu",)
    assert ops.ATEN_TO_UNIOPS["pow.Tensor_Scalar"] == ("pow_scalar",)
    assert set(ops.ATEN_TO_UNIOPS["convolution_backward"]) == {"convolution_backward_input",
                                                               "convolution_backward_weight"}
    assert "add" in list(ops.UNIOPS) and ops.UNIOPS["add"].id == 100
