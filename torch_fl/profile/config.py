"""The user's configuration: ~/.torch_fl/config.yaml, or the file that TORCH_FL_CONFIG names.

Environment variables that say the same thing win; the accessors at the end of this file combine the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from torch_fl import _env
from torch_fl._errors import ConfigError
from torch_fl.profile.home import home
from torch_fl.profile.located import Document, Problem, Unreadable, read
from torch_fl.profile.validation import convert

__all__ = ["Config", "ConfiguredDevice", "Fallback", "InvalidConfig", "Logging", "Memory", "config_file", "load_config"]


class ConfiguredDevice(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Devices of one chip to open."""

    type: Annotated[str, Meta(min_length=1, description="a registered profile, an installed adapter or a bundled chip")]
    count: Annotated[int, Meta(ge=0, le=4096, description="how many; without it, all")] | None = None
    memory_fraction: Annotated[float, Meta(gt=0, le=1, description="share of each device's memory to use")] = 1.0


class Fallback(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Tiers that may be used."""

    enable_cpu_fallback: bool = True
    enable_generic_kernel: Annotated[bool, Meta(description="kernel libraries")] = True
    enable_decompose: Annotated[bool, Meta(description="decompositions")] = True
    enable_native: Annotated[bool, Meta(description="the chip's own kernels")] = True


class Logging(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where log lines go, and which."""

    level: Literal["debug", "info", "warning", "error", "off"] = "warning"
    path: Annotated[str, Meta(min_length=1)] | None = None


class Memory(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The caching allocator of every device."""

    max_split_bytes: Annotated[int, Meta(ge=0, le=1 << 62, description="0 is no limit")] = 0
    garbage_collection_threshold: Annotated[float, Meta(ge=0, le=1, description="0 is off")] = 0.0
    expandable_segments: Annotated[bool, Meta(description="where the adapter can map memory")] = True


class Config(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The whole file."""

    devices: list[ConfiguredDevice] | None = None
    fallback: Fallback = field(default_factory=Fallback)
    logging: Logging = field(default_factory=Logging)
    memory: Memory = field(default_factory=Memory)


class InvalidConfig(ConfigError):
    """The configuration file has problems.

    Attributes:
        file: the configuration file.
        problems: all that was found, in the order of the file.
    """

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        count = f"{len(problems)} problems in configuration {file}:\n  " if len(problems) > 1 else "configuration "
        super().__init__(count + "\n  ".join(problem.text(file) for problem in problems))


def config_file() -> Path | None:
    """Return the configuration file, or None if there is none."""
    chosen = _env.get("TORCH_FL_CONFIG")
    if chosen is not None:
        return chosen
    default = home() / "config.yaml"
    try:
        return default if default.exists() else None
    except PermissionError:  # a home that is not this user's, as in containers: there is nothing of ours in it
        return None


def load_config() -> Config:
    """Read the configuration; without a file, everything is at its default.

    Raises:
        InvalidConfig: the file cannot be read, is not well-formed, or says something that cannot be.
    """
    return load_document()[0]


def load_document() -> tuple[Config, Document]:
    """Read the configuration together with the lines of its parts, for messages about them."""
    file = config_file()
    if file is None:
        return Config(), Document("<no configuration file>", {}, {(): 1})
    try:
        document = read(file, other="yaml")
    except Unreadable as error:
        raise InvalidConfig(str(file), [error.problem]) from None
    if document.data is None:  # an empty file, or one that is all comments
        document.data = {}
    if isinstance(document.data, dict):
        # A section whose entries are all commented out is null, and `level: off` is YAML's word for false.
        document.data = {name: value for name, value in document.data.items() if value is not None}
        section = document.data.get("logging")
        if isinstance(section, dict) and section.get("level") is False:
            section["level"] = "off"
    config, problems = convert(document, Config)
    if config is not None:
        problems = _contradictions(config, document)
    if config is None or problems:
        raise InvalidConfig(str(file), problems)
    return config, document


def _contradictions(config: Config, document: Document) -> list[Problem]:
    problems = []
    types = [device.type for device in config.devices or ()]
    for position, name in enumerate(types):
        if name in types[:position]:
            problems.append(document.problem(("devices", position, "type"), "listed twice; one entry per type"))
    return problems


# ------------------------------------------------- file and environment together


def cpu_fallback_enabled(config: Config) -> bool:
    """Tell whether the CPU tier may be used."""
    return _either("TORCH_FL_CPU_FALLBACK", config.fallback.enable_cpu_fallback)


def generic_kernel_enabled(config: Config) -> bool:
    """Tell whether kernel libraries may be used."""
    return _either("TORCH_FL_GENERIC_KERNEL", config.fallback.enable_generic_kernel)


def log_level(config: Config) -> str:
    """Return debug, info, warning, error or off."""
    return _either("TORCH_FL_LOG_LEVEL", config.logging.level)


def log_path(config: Config) -> Path | None:
    """Return the file that log lines go to, or None for standard error."""
    configured = Path(config.logging.path).expanduser() if config.logging.path else None
    return _either("TORCH_FL_LOG_PATH", configured)


def max_split_bytes(config: Config) -> int:
    """Return the allocator's split limit; 0 is none."""
    return _either("TORCH_FL_ALLOC_MAX_SPLIT_BYTES", config.memory.max_split_bytes)


def garbage_collection_threshold(config: Config) -> float:
    """Return the allocator's collection threshold; 0 is off."""
    return _either("TORCH_FL_ALLOC_GC_THRESHOLD", config.memory.garbage_collection_threshold)


def expandable_segments(config: Config) -> bool:
    """Tell whether the allocator's segments may grow and shrink, on chips that can."""
    return _either("TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS", config.memory.expandable_segments)


def _either(variable: str, configured: object) -> object:
    value = _env.get(variable)
    return configured if value is None else value
