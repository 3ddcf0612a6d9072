"""TORCH_FL_VISIBLE_DEVICES: which of the discovered devices a process shows.

A selector is a flat index (`0`), a chip (`acme`), `chip:index`, or a uuid. Uuids, and flat indices over several
adapters, mean something only once the adapters are open: those travel to the core in the spec's field `visible`.
"""

from __future__ import annotations

import re
from typing import Any

from torch_fl._errors import ConfigError

__all__ = ["visible"]

_ALL = -1


def visible(specs: list[dict[str, Any]], selectors: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """Leave out the specs that no selector can mean, and narrow the others.

    Args:
        specs: as `adapters.spec` makes them.
        selectors: the variable's value; None: not set.

    Raises:
        ConfigError: a selector is malformed.
    """
    if selectors is None:
        return specs
    by_chip: dict[str, set[int]] = {spec["device_name"]: set() for spec in specs if spec["device_name"]}
    undecided = False
    for selector in selectors:
        if not re.fullmatch(r"[A-Za-z0-9_.:/ ()@+-]+", selector):
            raise ConfigError(f"environment variable TORCH_FL_VISIBLE_DEVICES: {selector!r} is not valid; allowed: a "
                              "flat index (0), a chip (acme), chip:index (acme:1) or a uuid, separated by commas")
        chip, colon, index = selector.rpartition(":")
        if selector.isdigit() and len(specs) == 1 and by_chip:
            next(iter(by_chip.values())).add(int(selector))
        elif selector in by_chip:
            by_chip[selector].add(_ALL)
        elif colon and chip in by_chip and index.isdigit():
            by_chip[chip].add(int(index))
        else:
            undecided = True
    kept = []
    for spec in specs:
        indices = by_chip.get(spec["device_name"], set())
        first = set(range(len(indices)))
        if _ALL in indices:
            kept.append(spec)
        elif selectors and (undecided or not spec["device_name"] or indices - first):
            kept.append({**spec, "visible": list(selectors)})
        elif indices:
            limit = len(indices) if spec["max_devices"] < 0 else min(len(indices), spec["max_devices"])
            kept.append({**spec, "max_devices": limit})
    return kept
