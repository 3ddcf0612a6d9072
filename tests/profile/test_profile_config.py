"""config.yaml: what is accepted, faults with their lines, and the environment on top."""

from pathlib import Path

import pytest

from torch_fl._errors import ConfigError
from torch_fl.profile import config

GOOD = """\
# two chips
devices:
  - type: ninguang
    count: 2
    memory_fraction: 0.5
  - {type: acme}
fallback:
  enable_cpu_fallback: false
  enable_generic_kernel: true
logging:
  level: info
  path: /tmp/fl.log
"""


def write(home, text, name="config.yaml"):
    home.mkdir(exist_ok=True)
    (home / name).write_text(text)
    return home / name


def test_without_a_file_everything_is_at_its_default():
    loaded = config.load_config()
    assert loaded == config.Config() and loaded.devices is None and loaded.fallback.enable_cpu_fallback


def test_the_printed_fields(home):
    write(home, GOOD)
    loaded = config.load_config()
    assert [(d.type, d.count, d.memory_fraction) for d in loaded.devices] == [("ninguang", 2, 0.5), ("acme", None, 1.0)]
    assert not loaded.fallback.enable_cpu_fallback and loaded.logging.level == "info"


def test_torch_fl_config_names_another_file(home, tmp_path, monkeypatch):
    write(home, GOOD)
    other = tmp_path / "other.yml"
    other.write_text("logging: {level: error}\n")
    monkeypatch.setenv("TORCH_FL_CONFIG", str(other))
    assert config.load_config().logging.level == "error"
    monkeypatch.setenv("TORCH_FL_CONFIG", str(tmp_path / "none.yaml"))
    with pytest.raises(config.InvalidConfig, match=r"none\.yaml: cannot be read: No such file"):
        config.load_config()


def test_another_suffix_is_yaml(tmp_path, monkeypatch):
    (tmp_path / "fl.conf").write_text("logging:\n  level: off\n")
    monkeypatch.setenv("TORCH_FL_CONFIG", str(tmp_path / "fl.conf"))
    assert config.load_config().logging.level == "off"


@pytest.mark.parametrize("text", ["", "# only comments\n", "devices:\nfallback:\n", "---\n", "memory: null\n"])
def test_files_that_say_nothing(home, text):
    write(home, text)
    assert config.load_config() == config.Config()


FAULTS = [
    ("devices:\n  - type: a\n    cuont: 2\n", 3, "devices[0].cuont = 2", "did you mean count?"),
    ("devices:\n  - count: 2\n", 2, "devices[0].type", "missing"),
    ("devices:\n  - type: a\n    count: two\n", 3, 'devices[0].count = "two"', "a whole number from 0"),
    ("devices:\n  - type: a\n    memory_fraction: 1.5\n", 3, "devices[0].memory_fraction = 1.5", "above 0 up to 1"),
    ("devices:\n  - type: a\n    memory_fraction: 0\n", 3, "devices[0].memory_fraction = 0", "above 0 up to 1"),
    ("devices:\n  - type: a\n  - type: a\n", 3, 'devices[1].type = "a"', "listed twice"),
    ("devices: ninguang\n", 1, 'devices = "ninguang"', "expected a list"),
    ("fallback:\n  enable_cpu_fallback: 'yes'\n", 2, 'fallback.enable_cpu_fallback = "yes"', "true, false"),
    ("logging:\n  level: loud\n", 2, 'logging.level = "loud"', "debug, error, info, off, warning"),
    ("logging:\n  level: info\nlogging:\n  level: error\n", 3, "logging", "appears twice"),
    ("loging:\n  level: info\n", 1, "loging", "did you mean logging?"),
    ("memory: {max_split_bytes: -1}\n", 1, "memory.max_split_bytes = -1", "from 0"),
    ("- 1\n", 1, "", "expected an object"),
]


@pytest.mark.parametrize(("text", "line", "subject", "words"), FAULTS, ids=range(len(FAULTS)))
def test_faults_name_file_line_field_value_and_what_is_allowed(home, text, line, subject, words):
    file = write(home, text)
    with pytest.raises(config.InvalidConfig) as caught:
        config.load_config()
    assert len(caught.value.problems) == 1
    assert f"{file}:{line}: {subject}" in str(caught.value) and words in str(caught.value)
    assert isinstance(caught.value, ConfigError)


MALFORMED = [
    ("devices: [\n", 2), ("a: b: c\n", 1), ("\tdevices: 1\n", 1), ("a: &x [*x]\n", 1), ("? [1, 2]\n: 3\n", 1),
    ("<<: {a: 1}\n", 1), ("a: 1\n--- \nb: 2\n", 2), ("a: !!python/object:os.system x\n", 1), ("a: 2020-99-99\n", 1),
    ("a: 1\nb: \x00\n", 2), ("x: " + "[" * 300, 1),
    ("x: " + "[" * 20000, None), ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{k}: &{k} [{', '.join([f'*{chr(ord(k) - 1)}'] * 10)}]\n" for k in "bcdefghi"), None),
]


@pytest.mark.parametrize(("text", "line"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_yaml_is_told_with_its_line(home, text, line):
    write(home, text)
    with pytest.raises(config.InvalidConfig) as caught:
        config.load_config()
    assert line is None or caught.value.problems[0].line == line, str(caught.value)


def test_the_environment_wins(home, monkeypatch):
    write(home, GOOD + "memory: {max_split_bytes: 100, garbage_collection_threshold: 0.25}\n")
    loaded = config.load_config()
    assert not config.cpu_fallback_enabled(loaded) and config.generic_kernel_enabled(loaded)
    assert config.log_level(loaded) == "info" and config.log_path(loaded) == Path("/tmp/fl.log")
    assert config.max_split_bytes(loaded) == 100 and config.garbage_collection_threshold(loaded) == 0.25
    monkeypatch.setenv("TORCH_FL_CPU_FALLBACK", "1")
    monkeypatch.setenv("TORCH_FL_GENERIC_KERNEL", "0")
    monkeypatch.setenv("FLAGOS_LOG_LEVEL", "debug")
    monkeypatch.setenv("TORCH_FL_LOG_PATH", "/var/log/x")
    monkeypatch.setenv("TORCH_FL_ALLOC_MAX_SPLIT_BYTES", "1k")
    monkeypatch.setenv("TORCH_FL_ALLOC_GC_THRESHOLD", "0")
    assert config.cpu_fallback_enabled(loaded) and not config.generic_kernel_enabled(loaded)
    assert config.log_level(loaded) == "debug" and config.log_path(loaded) == Path("/var/log/x")
    assert config.max_split_bytes(loaded) == 1024 and config.garbage_collection_threshold(loaded) == 0.0
    assert config.expandable_segments(loaded)
    monkeypatch.setenv("TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS", "0")
    assert not config.expandable_segments(loaded)
