"""Forks: a process is forked only while none of its threads is inside the database.

SQLite keeps locks of its own: a child forked while another thread holds one would wait for it for ever. This module
imports nothing of the store, so that its hooks can be registered early: those before a fork run last registered first,
and what stops the compiler's thread must run before its locks are taken here.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

#: Longest wait for a thread that is inside, in seconds. A read takes microseconds, so it waits for another process.
_SECONDS = 1.0


class Forking(Protocol):
    def hold(self, wait: float) -> bool:
        """Keeps other threads out until `let_go`; False if `wait` seconds were not enough."""

    def let_go(self) -> None:
        """The end of a successful `hold`."""

    def renew_in_child(self, held: bool) -> None:
        """In the child, in place of `let_go`."""


_members: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[tuple[Any, bool]] = []


def join(member: Forking) -> None:
    """From now on `member` is told of forks."""
    _members.add(member)


def _before() -> None:
    _held[:] = [(member, member.hold(_SECONDS)) for member in list(_members)]


def _after_in_parent() -> None:
    for member, held in _held:
        if held:
            member.let_go()
    _held.clear()


def _after_in_child() -> None:
    for member, held in _held:
        member.renew_in_child(held)
    _held.clear()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
