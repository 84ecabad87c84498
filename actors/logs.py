"""How log lines look: JSON lines for machines, coloured ones for a terminal. To standard error, always.

Knows nothing of what is logged.
"""

import logging
import sys
from typing import Literal

import structlog


def configure(log_format: Literal["auto", "console", "json"]) -> Literal["console", "json"]:
    """Set up structlog for the process, and say which it is.

    `auto`: console when standard error is a terminal, else JSON lines.
    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if console else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    return "console" if console else "json"
