"""Background: one thread of low priority that compiles what can wait. Made at its first job."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

#: Added to the thread's nice value: it takes what the program leaves.
_NICE = 10


class Job:
    """Work in parts. A fork, or the end of the process, waits for one part at most."""

    def __init__(self, parts: Sequence[Callable[[], object]]) -> None:
        self.parts = parts
        self.done = False
        #: What a part raised; the parts after it have not run.
        self.error: BaseException | None = None


class Background:
    """Runs jobs in their order."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._renew()

    def _renew(self) -> None:
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._working = threading.Lock()  # held over each part
        self._changed = threading.Condition()  # never taken while `_working` is held, but by `pause`

    def submit(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._start()
            self._changed.notify_all()

    def wait(self) -> None:
        """Until all jobs are done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or self._stopping)

    def pause(self) -> None:
        """Waits until no part is running, and lets none begin until `resume`."""
        self._working.acquire()
        self._changed.acquire()

    def resume(self) -> None:
        self._changed.release()
        self._working.release()

    def renew_in_child(self) -> None:
        """In place of `resume` in a forked child, which has no other thread: a new one begins what is left."""
        self._renew()
        if self._jobs:
            with self._changed:
                self._start()

    def stop(self) -> None:
        """Ends the thread after the part it is at: machine code is not made while the interpreter goes away."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name="adaptive-eager compiler", daemon=True)
            atexit.unregister(self.stop)
            atexit.register(self.stop)
            self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # on Linux a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopping)
                if self._stopping:
                    return
                job = self._jobs[0]  # stays there until it is done: a forked child does it again
            self._work(job)
            with self._changed:
                job.done = True
                self._jobs.popleft()
                self._changed.notify_all()

    def _work(self, job: Job) -> None:
        for part in job.parts:
            with self._working:
                if self._stopping:
                    return
                try:
                    part()
                except BaseException as error:
                    job.error = error
                    return
