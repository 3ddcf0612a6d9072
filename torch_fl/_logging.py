"""Where log lines of the logger `torch_fl` go: TORCH_FL_LOG_LEVEL, TORCH_FL_LOG_PATH, or `logging:` of config.yaml."""

from __future__ import annotations

import logging

__all__ = ["configure"]

_done = False


def configure() -> None:
    """Set level and file of the logger `torch_fl`, once; never touches the root logger.

    Raises:
        ConfigError: the configuration, or the log file's place, is not usable.
    """
    global _done
    if _done:
        return
    _done = True
    from torch_fl._errors import ConfigError
    from torch_fl.profile import config

    configured = config.load_config()
    logger = logging.getLogger("torch_fl")
    level = config.log_level(configured)
    logger.setLevel(logging.CRITICAL + 1 if level == "off" else level.upper())
    path = config.log_path(configured)
    if path is None:
        return
    try:
        handler = logging.FileHandler(path)
    except OSError as error:
        raise ConfigError(f"log file {path} cannot be opened: {error.strerror}; change TORCH_FL_LOG_PATH or "
                          "logging.path") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
