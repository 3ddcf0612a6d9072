"""What a profile says of its adapter: match, options, cache folder; and bundled chips that wait to be asked for."""

import json

import pytest

from torch_fl._errors import ConfigError, ProfileError
from torch_fl.profile import adapters, registry
from torch_fl.profile.loader import load


@pytest.fixture
def bundled(tmp_path, monkeypatch, profile_file):
    """A package with the bundled chips "ref", and "many" whose profiles/ add "few"; both of these wait."""
    package = tmp_path / "package" / "torch_fl"
    profile_file("ref", folder=package / "chips" / "ref")
    many = profile_file("many", folder=package / "chips" / "many", on_request=True).parent
    profile_file("few", folder=many / "profiles", library=False, adapter="libfl_many.so", on_request=True,
                 match={"arch": "few-*"}).rename(many / "profiles" / "few.json")
    monkeypatch.setattr(adapters, "_PACKAGE", package)
    monkeypatch.setattr(adapters, "_package_folders", lambda: [package])
    return package


def names():
    return [spec["device_name"] for spec in adapters.discover()]


def test_chips_that_wait_are_known_and_not_opened(bundled):
    assert [chip.name for chip in adapters.chips()] == ["few", "many", "ref"]
    assert names() == ["ref"]
    spec = adapters.spec_for("few")
    assert spec["path"].endswith("chips/many/libfl_many.so") and spec["match"] == {"arch": "few-*"}


def test_chips_that_wait_are_opened_when_named(bundled, home, monkeypatch):
    monkeypatch.setenv("TORCH_FL_CHIPS", "few,ref")
    assert names() == ["few", "ref"]
    monkeypatch.delenv("TORCH_FL_CHIPS")
    home.mkdir()
    (home / "config.yaml").write_text("devices: [{type: many}]\n")
    assert names() == ["many"]


def test_chips_that_wait_are_opened_when_registered(bundled):
    registry.register(bundled / "chips" / "many" / "profile.json")
    registry.register(bundled / "chips" / "many" / "profiles" / "few.json")
    assert names() == ["few", "many"]  # of one library, first the one that chooses


def test_the_chooser_comes_first_only_within_its_library(bundled, profile_file):
    registry.register(bundled / "chips" / "many" / "profile.json")
    registry.register(profile_file("aaa"))
    registry.register(profile_file("zzz", library=False, adapter="libfl_many.so", match={"name": "z*"}))
    assert names() == ["aaa", "zzz", "many"]


def test_a_configured_chip_that_is_not_known_names_those_that_wait(bundled, monkeypatch):
    monkeypatch.setenv("TORCH_FL_CHIPS", "man")
    with pytest.raises(ConfigError, match="did you mean many"):
        adapters.discover()


def test_options_travel_as_text(bundled, profile_file):
    registry.register(profile_file("acme", options={"memory": "usm", "queues": 2, "fast": True, "scale": 0.5}))
    (spec,) = adapters.discover()
    assert spec["options"] == {"memory": "usm", "queues": "2", "fast": "true", "scale": "0.5"}


def test_a_registered_profile_keeps_its_options_and_match(profile_file):
    fields = {"options": {"memory": "svm", "probe": False}, "match": {"arch": "x-*", "uuid": "7"}, "on_request": True}
    entry = registry.register(profile_file("acme", **fields))
    assert json.loads(entry.path.read_text()).items() >= fields.items()
    assert registry.register(profile_file("acme", **fields)) == entry


@pytest.mark.parametrize(("fields", "message"), [
    ({"options": {"memory": ["usm"]}}, 'options.memory = ["usm"]: expected true or false, or a number, or a text, got '
     "a list"),
    ({"options": {"memory": None}}, "expected true or false, or a number, or a text, got null"),
    ({"options": "usm"}, 'options = "usm": expected an object with fields, got a text'),
    ({"options": {"cache_dir": "/x"}}, "kernel_cache.path says it"),
    ({"options": {"Memory": "usm"}}, "malformed name of an option"),
    ({"match": {"color": "red"}}, "unknown field"),
    ({"match": {"arch": ""}}, "malformed"),
    ({"match": "few-*"}, "expected an object with fields, got a text; allowed: name, arch, uuid"),
])
def test_what_is_wrong_is_told(profile_file, fields, message):
    with pytest.raises(ProfileError) as caught:
        load(profile_file("acme", **fields))
    assert message in str(caught.value)


def test_the_cache_folder(bundled, home, profile_file, monkeypatch, tmp_path):
    def folder():
        return adapters.spec_for("acme")["cache_dir"], adapters.spec_for("acme")["cache_max_mb"]

    path = profile_file("acme")
    registry.register(path)
    assert folder() == (str(home / "cache"), 0)
    monkeypatch.setenv("TORCH_FL_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert folder() == (str(tmp_path / "elsewhere"), 0)
    registry.register(profile_file("acme", kernel_cache={"max_mb": 7, "path": str(tmp_path / "mine")}), force=True)
    assert folder() == (str(tmp_path / "mine"), 7)
    registry.register(profile_file("acme", kernel_cache={"enable": False}), force=True)
    assert folder() == ("", 0)


def test_the_cache_folder_of_a_bare_library(home, tmp_path):
    library = tmp_path / "libfl_bare.so"
    library.write_bytes(b"")
    assert adapters.spec_for(str(library))["cache_dir"] == str(home / "cache")
