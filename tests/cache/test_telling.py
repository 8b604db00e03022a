"""Telling: one warning about each thing."""

from __future__ import annotations

import logging

from adaptive_eager.cache.telling import Warned


def test_one_warning_about_each_thing(caplog):
    caplog.set_level(logging.DEBUG, logger="adaptive_eager.cache")
    warned = Warned(logging.getLogger("adaptive_eager.cache"), "%s is wrong", later=logging.INFO)
    for about in ("one", "one", "other", "one"):
        warned(about, about=about)
    told = [(record.levelname, record.message) for record in caplog.records]
    assert told == [
        ("WARNING", "one is wrong"), ("INFO", "one is wrong"), ("WARNING", "other is wrong"), ("INFO", "one is wrong"),
    ]  # fmt: skip
