"""Where log lines of the logger `torch_fl` go: TORCH_FL_LOG_LEVEL, TORCH_FL_LOG_PATH, or `logging:` of config.yaml.

TORCH_FL_VERBOSE=2 adds the allocator's lines (logger `torch_fl.memory`), whatever the level, unless the log is off.
"""

from __future__ import annotations

import logging

__all__ = ["configure"]

_done = False
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _StandardError(logging.StreamHandler):
    """Standard error, for lines that nobody else shows: logging's own last resort shows warnings only."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def configure() -> None:
    """Set level and file of the logger `torch_fl`, once; never touches the root logger.

    Raises:
        ConfigError: the configuration, or the log file's place, is not usable.
    """
    global _done
    if _done:
        return
    _done = True
    from torch_fl import _env
    from torch_fl._errors import ConfigError
    from torch_fl.profile import config

    configured = config.load_config()
    logger = logging.getLogger("torch_fl")
    level = config.log_level(configured)
    logger.setLevel(logging.CRITICAL + 1 if level == "off" else level.upper())
    if _env.get("TORCH_FL_VERBOSE") >= 2 and level != "off":
        logging.getLogger("torch_fl.memory").setLevel(logging.INFO)
    path = config.log_path(configured)
    handler: logging.Handler
    try:
        handler = _StandardError() if path is None else logging.FileHandler(path)
    except OSError as error:
        raise ConfigError(f"log file {path} cannot be opened: {error.strerror}; change TORCH_FL_LOG_PATH or "
                          "logging.path") from error
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
