"""conformance.yaml beside a chip's profile: what the chip does not support, and what is known to fail.

    unsupported:                      # the case is not run
      "memory.peer_copy": "the link is not in this product"
    xfail:                            # the case is run and must fail; if it passes, the entry must go
      "kernel.lgamma.*": "poles, ticket 4711"

A key is the name of a case or a pattern (* ?); a reason is required.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from torch_fl._errors import ConfigError

__all__ = ["FILE", "Expectations", "load"]

FILE = "conformance.yaml"
KINDS = ("unsupported", "xfail")


@dataclass
class Expectations:
    """Patterns with reasons, by kind."""

    unsupported: dict[str, str] = field(default_factory=dict)
    xfail: dict[str, str] = field(default_factory=dict)

    def reason(self, kind: str, name: str) -> str | None:
        """Return the reason of the first pattern of `kind` that means the case, or None."""
        patterns: dict[str, str] = getattr(self, kind)
        return next((reason for pattern, reason in patterns.items() if fnmatchcase(name, pattern)), None)


def load(path: Path) -> Expectations:
    """Read the file; without one, nothing is excused.

    Raises:
        ConfigError: the file is not valid; the text names it and the field.
    """
    if not path.is_file():
        return Expectations()
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(document, dict) or set(document) - set(KINDS):
        wrong = ", ".join(sorted(map(str, set(document) - set(KINDS)))) if isinstance(document, dict) else "a list"
        raise ConfigError(f"{path}: {wrong}: allowed are {' and '.join(KINDS)}")
    found = Expectations()
    for kind in KINDS:
        entries = document.get(kind) or {}
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {kind}: expected names of cases with reasons")
        for pattern, reason in entries.items():
            if not isinstance(pattern, str) or not isinstance(reason, str) or not reason.strip():
                raise ConfigError(f"{path}: {kind}: {pattern}: a reason is needed, as text")
            getattr(found, kind)[pattern] = reason
    return found
