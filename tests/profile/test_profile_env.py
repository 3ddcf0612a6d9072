"""torch_fl/_env.py: types, aliases, bad values, the docs page."""

import logging

import pytest

from torch_fl import _env
from torch_fl._errors import ConfigError


def test_defaults_when_nothing_is_set(monkeypatch):
    monkeypatch.delenv("TORCH_FL_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(_env.get("TORCH_FL_HOME")) == "/home/somebody/.torch_fl"
    assert _env.get("TORCH_FL_DEVICE_NAME") == "fl"
    assert _env.get("TORCH_FL_VERBOSE") == 0
    assert _env.get("TORCH_FL_CHIPS") is None
    assert _env.get("TORCH_FL_ADAPTER_PATH") == ()
    assert not _env.is_set("TORCH_FL_CHIPS")


@pytest.mark.parametrize(("name", "text", "value"), [
    ("TORCH_FL_SYNC_DEBUG", "1", True), ("TORCH_FL_SYNC_DEBUG", " Off ", False), ("TORCH_FL_VERBOSE", "2", 2),
    ("TORCH_FL_CHIPS", "acme, ninguang,", ("acme", "ninguang")), ("TORCH_FL_CHIPS", "", None),
    ("TORCH_FL_VISIBLE_DEVICES", "", ()), ("TORCH_FL_VISIBLE_DEVICES", "0,acme:1", ("0", "acme:1")),
    ("TORCH_FL_ALLOC_MAX_SPLIT_BYTES", "64m", 64 << 20), ("TORCH_FL_ALLOC_MAX_SPLIT_BYTES", "2 GiB", 2 << 30),
    ("TORCH_FL_ALLOC_MAX_SPLIT_BYTES", "100", 100), ("TORCH_FL_ALLOC_GC_THRESHOLD", "0.5", 0.5),
    ("TORCH_FL_LOG_LEVEL", "WARN", "warning"), ("TORCH_FL_DEVICE_NAME", "flagos", "flagos"),
    ("TORCH_FL_CPU_FALLBACK", "no", False),
])
def test_values(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert _env.get(name) == value


@pytest.mark.parametrize(("alias", "name", "text", "value"), [
    ("FLAGOS_DEVICE_BACKEND", "TORCH_FL_CHIPS", "ninguang", ("ninguang",)),
    ("FLAGOS_LOG_LEVEL", "TORCH_FL_LOG_LEVEL", "DEBUG", "debug"),
])
def test_aliases_are_honoured_and_the_own_name_wins(monkeypatch, alias, name, text, value):
    monkeypatch.setenv(alias, text)
    assert _env.get(name) == value
    assert _env.raw(name) == (alias, text)
    monkeypatch.setenv(name, "error")
    assert _env.raw(name) == (name, "error")


@pytest.mark.parametrize(("name", "text", "allowed"), [
    ("TORCH_FL_CPU_FALLBACK", "maybe", "1/true/yes/on or 0/false/no/off"),
    ("TORCH_FL_ALLOC_MAX_SPLIT_BYTES", "many", "a number of bytes"),
    ("TORCH_FL_ALLOC_GC_THRESHOLD", "1.5", "from 0 to 1"), ("TORCH_FL_ALLOC_GC_THRESHOLD", "nan", "from 0 to 1"),
    ("TORCH_FL_DEVICE_NAME", "Fl:0", "lower-case letters"), ("TORCH_FL_DEVICE_NAME", "cuda", "PyTorch does not use"),
])
def test_a_bad_value_names_variable_value_and_what_is_allowed(monkeypatch, name, text, allowed):
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as caught:
        _env.get(name)
    assert f"{name}={text!r}" in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(("set_name", "name", "text"), [
    ("TORCH_FL_VERBOSE", "TORCH_FL_VERBOSE", "loud"), ("FLAGOS_LOG_LEVEL", "TORCH_FL_LOG_LEVEL", "shouting"),
    ("TORCH_FL_SYNC_DEBUG", "TORCH_FL_SYNC_DEBUG", "perhaps"), ("TORCH_FL_VERBOSE", "TORCH_FL_VERBOSE", "9"),
])
def test_a_harmless_bad_value_is_warned_of_once(monkeypatch, caplog, set_name, name, text):
    monkeypatch.setenv(set_name, text)
    monkeypatch.setattr(_env, "_warned", set())
    with caplog.at_level(logging.WARNING, logger="torch_fl.env"):
        assert _env.get(name) == _env.VARIABLES[name].default
        _env.get(name)
    assert len(caplog.records) == 1
    assert set_name in caplog.text and repr(text) in caplog.text and "allowed" in caplog.text


def test_a_user_without_a_home_has_none(monkeypatch):
    from torch_fl.profile.home import home

    monkeypatch.setenv("TORCH_FL_HOME", "~nobody-of-this-name/x")
    assert str(home()).startswith("/nonexistent")


def test_unknown_variables_are_found_with_a_suggestion(monkeypatch):
    monkeypatch.setenv("TORCH_FL_VISIBLE_DEVICE", "0")
    assert _env.unknown() == {"TORCH_FL_VISIBLE_DEVICE": "TORCH_FL_VISIBLE_DEVICES"}


def test_report_tells_bad_values(monkeypatch):
    monkeypatch.setenv("TORCH_FL_VERBOSE", "loud")
    rows = {row["name"]: row for row in _env.report()}
    assert "allowed" in rows["TORCH_FL_VERBOSE"]["error"]
    assert rows["TORCH_FL_HOME"]["set_by"] == "TORCH_FL_HOME" and rows["TORCH_FL_HOME"]["error"] is None


def test_the_docs_page_is_fresh_and_complete():
    assert _env.main(["--check"]) == 0, "run python -m torch_fl._env --write"
    assert all(f"`{name}`" in _env.render() for name in _env.VARIABLES)


def test_a_stale_docs_page_is_told(tmp_path, capsys):
    page = tmp_path / "environment.md"
    assert _env.main(["--check", "--output", str(page)]) == 1
    assert _env.main(["--write", "--output", str(page)]) == 0
    assert _env.main(["--check", "--output", str(page)]) == 0
    page.write_text(page.read_text() + "x")
    assert _env.main(["--check", "--output", str(page)]) == 1
    assert "--write" in capsys.readouterr().err


def test_no_other_file_of_the_package_reads_the_environment():
    from pathlib import Path

    package = Path(_env.__file__).parent
    # cli/device_commands.py shows the text of unknown variables, which _env names.
    readers = [path.relative_to(package).as_posix() for path in package.rglob("*.py")
               if any(word in path.read_text() for word in ("os.getenv", "os.environ.get"))]
    assert set(readers) <= {"_env.py"}
