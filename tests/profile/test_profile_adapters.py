"""Finding adapters and turning configuration, profiles and installed packages into specs for the core."""

import sys

import pytest

from torch_fl._errors import AdapterError, ConfigError
from torch_fl.profile import adapters, registry
from torch_fl.profile.visible import visible

# The fields of struct AdapterSpec in csrc/core/device.h.
FIELDS = {"path", "device_name", "profile_path", "max_devices", "only_listed", "native", "not_native", "dtypes", "pins",
          "memory_limit_bytes", "memory_fraction", "prealloc_bytes", "min_block_bytes", "alignment", "max_split_bytes",
          "garbage_collection_threshold", "expandable_segments", "cache_dir", "cache_max_mb", "match", "options",
          "constraints", "op_constraints", "sync_primitive"}


@pytest.fixture
def bundled(tmp_path, monkeypatch, profile_file):
    """A package whose only bundled chip is "ref"; what is really installed is out of sight."""
    package = tmp_path / "package" / "torch_fl"
    profile_file("ref", folder=package / "chips" / "ref")
    monkeypatch.setattr(adapters, "_PACKAGE", package)
    monkeypatch.setattr(adapters, "_package_folders", lambda: [package])
    return package


@pytest.fixture
def installed(tmp_path, monkeypatch, profile_file):
    """A pip-installed adapter package "wheel", found by its entry point."""
    site = tmp_path / "site"
    profile_file("wheel", folder=site / "fl_adapter_wheel")
    info = site / "fl_adapter_wheel-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fl-adapter-wheel\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[torch_fl.adapters]\nwheel = fl_adapter_wheel\ngone = fl_adapter_gone\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site / "fl_adapter_wheel"


def names():
    return [spec["device_name"] for spec in adapters.discover()]


def test_the_reference_chip_alone_when_nothing_else_is_there(bundled):
    (spec,) = adapters.discover()
    assert spec["device_name"] == "ref" and spec["path"] == str(bundled / "chips" / "ref" / "libfl_ref.so")
    assert spec["max_devices"] == -1 and spec["memory_fraction"] == 1.0
    assert set(spec) == FIELDS and adapters.failures() == []


def test_registered_chips_in_the_order_of_their_names_replace_it(bundled, profile_file):
    for name in ("chip10", "chip9", "acme"):
        registry.register(profile_file(name))
    assert names() == ["acme", "chip9", "chip10"]
    assert [chip.name for chip in adapters.chips()] == ["acme", "chip9", "chip10", "ref"]


def test_spec_of_a_profile(bundled, profile_file):
    registry.register(profile_file(
        "acme", memory_pool={"prealloc_mb": 2, "min_block_bytes": 1024, "alignment": 128, "total_mb": 100},
        bf16_supported=False, dtypes=["float32", "float16", "int64"],
        native_ops=[{"op": "add", "fp16": False}, {"op": "mul"}, {"op": "gelu", "compute": "decompose"}]))
    (spec,) = adapters.discover()
    assert spec["only_listed"] and spec["native"] == {"add": ["int64", "float32"], "mul": [], "copy": [], "fill": []}
    assert spec["pins"] == {"aten::gelu": "decompose", "aten::gelu_": "decompose"}
    assert spec["not_native"] == ["gelu"] and spec["dtypes"] == ["int64", "float16", "float32"]
    assert spec["prealloc_bytes"] == 2 << 20 and spec["memory_limit_bytes"] == 100 << 20
    assert spec["min_block_bytes"] == 1024 and spec["alignment"] == 128
    assert set(spec) == FIELDS


def test_installed_packages_are_found_without_importing_them(bundled, installed):
    assert names() == ["wheel"]
    assert "fl_adapter_wheel" not in sys.modules
    (failure,) = adapters.failures()
    assert "gone" in failure["reason"] and "reinstall" in failure["reason"]


def test_the_adapter_path(bundled, profile_file, monkeypatch, tmp_path):
    folder = profile_file("acme").parent
    bare = tmp_path / "libfl_bare.so"
    bare.write_bytes(b"")
    monkeypatch.setenv("TORCH_FL_ADAPTER_PATH", f"{folder}:{bare}:{tmp_path / 'none'}")
    specs = adapters.discover()
    assert [spec["path"] for spec in specs] == [str(folder / "libfl_acme.so"), str(bare)]
    assert specs[1]["device_name"] == ""  # the adapter's own name
    assert "does not exist" in adapters.failures()[0]["reason"]


def test_precedence_of_one_name(bundled, installed, profile_file, monkeypatch, tmp_path):
    assert adapters.find("wheel").origin == "installed"
    monkeypatch.setenv("TORCH_FL_ADAPTER_PATH", str(profile_file("wheel").parent))
    assert adapters.find("wheel").origin == "adapter path"
    registry.register(profile_file("wheel", folder=tmp_path / "other"))
    assert adapters.find("wheel").origin == "registered"


@pytest.mark.parametrize("adapter", ["wheel", "libfl_wheel.so", "ref"])
def test_a_profile_may_name_another_chips_adapter(bundled, installed, profile_file, adapter):
    registry.register(profile_file("emulated", library=False, adapter=adapter))
    spec = adapters.spec_for("emulated")
    assert spec["device_name"] == "emulated"
    assert spec["path"].endswith("libfl_ref.so" if adapter == "ref" else "libfl_wheel.so")


def test_an_adapter_of_the_adapter_path_serves_bundled_profiles_too(bundled, tmp_path, monkeypatch):
    profiles = bundled / "chips" / "ref" / "profiles"
    profiles.mkdir()
    (profiles / "more.json").write_text('{"device_name": "more", "adapter": "libfl_ref.so"}')
    assert adapters.spec_for("more")["path"] == str(bundled / "chips" / "ref" / "libfl_ref.so")
    newer = tmp_path / "build"
    newer.mkdir()
    (newer / "libfl_ref.so").write_bytes(b"")
    monkeypatch.setenv("TORCH_FL_ADAPTER_PATH", str(newer))
    assert adapters.spec_for("more")["path"] == str(newer / "libfl_ref.so")
    assert adapters.spec_for("ref")["path"] == str(newer / "libfl_ref.so")  # the library alone, by the same name


def test_adapters_that_are_nowhere(bundled, profile_file, tmp_path):
    registry.register(profile_file("lost", library=False))
    registry.register(profile_file("gone", library=False, adapter="/nowhere/libfl_gone.so"))
    assert adapters.discover() == []  # not the reference chip: something else is registered
    reasons = " ".join(failure["reason"] for failure in adapters.failures())
    assert "libfl_lost.so" in reasons and "looked in" in reasons and "emulate" in reasons
    assert "/nowhere/libfl_gone.so" in reasons
    with pytest.raises(AdapterError, match="lost"):
        adapters.spec_for("lost")


def test_one_broken_profile_does_not_take_the_others_with_it(bundled, home, profile_file):
    registry.register(profile_file("acme"))
    (home / "profiles" / "bad.json").write_text("{")
    assert names() == ["acme"]
    assert "bad.json:1" in adapters.failures()[0]["reason"]


def test_a_registry_that_cannot_be_read_is_told(bundled, home):
    home.write_text("")
    assert names() == ["ref"]
    assert "Not a directory" in adapters.failures()[0]["reason"]


def test_the_configuration_chooses_and_orders(bundled, home, profile_file):
    for name in ("acme", "bolt"):
        registry.register(profile_file(name))
    (home / "config.yaml").write_text(
        "devices:\n  - {type: ref, count: 2, memory_fraction: 0.5}\n  - type: acme\nmemory: {max_split_bytes: 7}\n")
    first, second = adapters.discover()
    assert (first["device_name"], first["max_devices"], first["memory_fraction"]) == ("ref", 2, 0.5)
    assert second["device_name"] == "acme" and second["max_split_bytes"] == 7
    assert adapters.spec_for("ref")["max_devices"] == 2


def test_a_configured_chip_that_is_not_known(bundled, home):
    home.mkdir()
    (home / "config.yaml").write_text("devices:\n  - type: ref\n  - type: reff\n")
    with pytest.raises(ConfigError, match=r"config\.yaml:3: devices\[1\]\.type: no chip \"reff\".*did you mean ref"):
        adapters.discover()


@pytest.mark.parametrize("variable", ["TORCH_FL_CHIPS", "FLAGOS_DEVICE_BACKEND"])
def test_the_environment_chooses(bundled, home, profile_file, monkeypatch, variable):
    registry.register(profile_file("acme"))
    monkeypatch.setenv(variable, "ref,acme")
    assert names() == ["ref", "acme"]
    monkeypatch.setenv(variable, "nothing")
    with pytest.raises(ConfigError, match=f"environment variable {variable}: no chip"):
        adapters.discover()


def test_spec_for_files(bundled, profile_file, tmp_path):
    path = profile_file("acme")
    assert adapters.spec_for(str(path))["device_name"] == "acme"
    assert adapters.spec_for(str(path.parent / "libfl_acme.so"))["path"] == str(path.parent / "libfl_acme.so")
    with pytest.raises(AdapterError, match="does not exist"):
        adapters.spec_for("/nowhere/libfl_x.so")
    with pytest.raises(AdapterError, match="known: ref"):
        adapters.spec_for("acme")


def test_the_header_is_found():
    assert (adapters.include_dir() / "torch_fl" / "adapter.h").is_file()


def test_the_spec_has_the_fields_of_the_core():
    import re
    from pathlib import Path

    header = Path(__file__).resolve().parents[2] / "csrc" / "core" / "device.h"
    text = header.read_text() + header.with_name("emulation.h").read_text()
    body = "".join(re.findall(r"struct (?:AdapterSpec|Declared) \{(.*?)\n\};", text, re.S))
    fields = set(re.findall(r"(\w+)(?: = [^;]+)?;", re.sub(r"//.*", "", body)))
    assert fields >= FIELDS


# ---------------------------------------------------------------- TORCH_FL_VISIBLE_DEVICES


def spec(name, max_devices=-1):
    return {"device_name": name, "max_devices": max_devices}


A, B = spec("a"), spec("b")


@pytest.mark.parametrize(("specs", "selectors", "expected"), [
    ([A, B], None, [A, B]), ([A, B], (), []), ([A, B], ("a",), [A]), ([A, B], ("a:0", "a:1"), [spec("a", 2)]),
    ([A], ("0",), [spec("a", 1)]), ([A], ("1", "0"), [spec("a", 2)]), ([spec("a", 1)], ("0", "1"), [spec("a", 1)]),
    ([A], ("1",), [{**A, "visible": ["1"]}]), ([A, B], ("b:1",), [{**B, "visible": ["b:1"]}]),
    ([A, B], ("0",), [{**A, "visible": ["0"]}, {**B, "visible": ["0"]}]),
    ([A, B], ("GPU-77aa",), [{**A, "visible": ["GPU-77aa"]}, {**B, "visible": ["GPU-77aa"]}]),
    ([A, B], ("b", "1"), [{**A, "visible": ["b", "1"]}, B]),
    ([spec("")], ("0",), [{**spec(""), "visible": ["0"]}]),
])
def test_visible_devices(specs, selectors, expected):
    assert visible(specs, selectors) == expected


def test_visible_devices_through_the_environment(bundled, monkeypatch):
    monkeypatch.setenv("TORCH_FL_VISIBLE_DEVICES", "0")
    assert adapters.discover()[0]["max_devices"] == 1
    monkeypatch.setenv("TORCH_FL_VISIBLE_DEVICES", "")
    assert adapters.discover() == []
    monkeypatch.setenv("TORCH_FL_VISIBLE_DEVICES", "0;1")
    with pytest.raises(ConfigError, match="'0;1' is not valid; allowed"):
        adapters.discover()
