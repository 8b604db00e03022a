"""Telling: warnings that are given once. Where one thing of a cache is wrong, others are likely to be so too, for the
same reason."""

from __future__ import annotations

import logging
from collections.abc import Hashable


class Warned:
    """Gives one warning about each thing, and from then on a line at the level `later`, for who looks closer."""

    def __init__(self, log: logging.Logger, message: str, later: int = logging.DEBUG) -> None:
        self._log = log
        self._message = message
        self._later = later
        self._about: set[Hashable] = set()

    def __call__(self, *arguments: object, about: Hashable = None) -> None:
        """Logs the message with its arguments."""
        self._log.log(self._later if about in self._about else logging.WARNING, self._message, *arguments)
        self._about.add(about)
