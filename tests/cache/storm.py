"""A storm over one kernel cache: programs compile and load while they are killed and their cache is ruined.

    python tests/cache/storm.py --seconds 600

Six workers run small programs on the device, each in a short life of its own (a fork of this process, which uses no
device itself), and compare every bit with what the same programs gave without a cache. Meanwhile this process injects
faults at random. It ends with exit code 1 if a result was wrong, a program met an exception or warned too often, a life
hung, or the cache could not be used afterwards. Prints how often each fault was injected, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import psutil

WORKERS = 6
#: Programs there are, and most of them in one life.
PROGRAMS, LIFE = 24, 10
#: Faults a second.
FAULTS = 2.5
#: A life hangs that has used so many seconds of a processor, or has waited so long without using any. (Alone it takes
#: about a second; on a busy machine it may not get one for minutes.)
SPIN_SECONDS, HANG_SECONDS = 60.0, 60.0
#: Faults a compared program, at most: where little is computed, little is to be broken.
MOST_FAULTS = 4
#: Seconds that a fault which keeps all from using the cache lasts.
SHORT = 0.3
#: Warnings that one life may give: of damage, of an entry, of a kernel, of a cache that is not used.
MOST_WARNINGS = 4

_UNARY = ("tanh", "exp", "neg", "abs", "sigmoid", "sqrt", "relu", "sin", "floor", "square")
_BINARY = ("add", "mul", "sub", "maximum", "minimum")
_DTYPES = ("float32", "float64", "bfloat16", "float16")


def program(number: int, device: str) -> bytes:
    """The bits that program `number` gives."""
    import torch

    choose = random.Random(number)
    generator = torch.Generator().manual_seed(number)
    dtype = getattr(torch, choose.choice(_DTYPES))
    x, y = ((torch.rand(33, 17, generator=generator) + 0.5).to(dtype).to(device) for _ in range(2))
    if choose.random() < 0.3:
        x, y = x.t().contiguous().t(), y
    for _ in range(choose.randint(2, 5)):
        x = getattr(torch, choose.choice(_UNARY))(x.abs() + 0.1)
        x = getattr(torch, choose.choice(_BINARY))(x, y * choose.random())
    x = x.clamp(-100, 100)
    total = x.float().sum(choose.choice((0, 1)))
    return x.float().cpu().numpy().tobytes() + total.cpu().numpy().tobytes()


class Life:
    """A forked process that runs `work(say)`; what it says is read through a pipe."""

    def __init__(self, work) -> None:
        self.killed = False
        self._watched = (0.0, time.monotonic())  # seconds used, and since when it has not used more
        self.text = b""
        self.stopped_until: float | None = None
        self._pipe, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 3
            try:
                os.close(self._pipe)
                code = work(lambda text: os.write(writing, (text + "\n").encode()))
            except BaseException:
                os.write(writing, f"exception {json.dumps(traceback.format_exc())}\n".encode())
            finally:
                os._exit(code)
        os.close(writing)
        os.set_blocking(self._pipe, False)

    def ended(self) -> int | None:
        """Its exit status, once it has ended."""
        self._read()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self._read()
        os.close(self._pipe)
        return status

    def hangs(self) -> bool:
        """Whether it spins, or waits for what does not come."""
        used, since = self._watched
        now = time.monotonic()
        try:
            family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
            seconds = sum(sum(one.cpu_times()[:2]) for one in family)
            waits = all(one.status() != psutil.STATUS_RUNNING for one in family)
        except psutil.NoSuchProcess:
            return False
        if seconds != used or not waits:
            self._watched = seconds, now
            return seconds > SPIN_SECONDS
        return now - since > HANG_SECONDS

    def _read(self) -> None:
        while select.select([self._pipe], [], [], 0)[0]:
            piece = os.read(self._pipe, 65536)
            if not piece:
                return
            self.text += piece

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def use_cache(directory: Path, mode: str = "on", size: str = "512M") -> None:
    """The environment of a life."""
    from adaptive_eager import params

    os.environ.update(
        ADAPTIVE_EAGER_CACHE_DIR=str(directory), ADAPTIVE_EAGER_CACHE=mode, ADAPTIVE_EAGER_CACHE_SIZE=size,
        ADAPTIVE_EAGER_CACHE_WAIT="5", ADAPTIVE_EAGER_BACKGROUND="off",
    )  # fmt: skip
    params.reload()


def live(seed: int, directory: Path, expected: list[bytes]):
    """What one life does. Exit code 4: a wrong result; 5: too many warnings."""

    def work(say) -> int:
        import adaptive_eager as ae

        choose = random.Random(seed)
        warnings = _Warnings()
        logging.getLogger("adaptive_eager").addHandler(warnings)
        logging.getLogger("adaptive_eager").propagate = False
        use_cache(directory, choose.choice(("on", "on", "on", "on", "read-only")), choose.choice(("300K", "512M")))
        if seed % 3 == 0:  # as on a full disk
            limit = choose.randrange(4096, 400_000)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            say("fault disk full for one process")
        forks = seed % 3
        for _ in range(choose.randint(2, LIFE)):
            number = choose.randrange(PROGRAMS)
            for _ in range(2):
                if program(number, "neuron") != expected[number]:
                    say(f"wrong program {number}")
                    return 4
            say("program")
            if forks:
                forks -= 1
                say("fault fork")
                child = os.fork()
                if child == 0:
                    number = choose.randrange(PROGRAMS)
                    os._exit(0 if program(number, "neuron") == expected[number] else 4)
                status = os.waitpid(child, 0)[1]
                if status:
                    say(f"wrong in a forked child: {status}")
                    return 4
        stats = ae.stats()
        say(f"kernels {stats['kernels_compiled']} {stats['kernels_from_disk']}")
        if len(warnings.messages) > MOST_WARNINGS:
            say(f"warned {json.dumps(warnings.messages)}")
            return 5
        from adaptive_eager.cache import store

        store._at_exit()
        return 0

    return work


class Storm:
    def __init__(self, directory: Path, seconds: float, seed: int) -> None:
        self.directory = directory
        self.seconds = seconds
        self.choose = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.lives: list[Life] = []
        self._later: list[tuple[float, object]] = []
        self._snapshot: bytes | None = None
        self._deck: list = []
        self._seeds = iter(range(seed * 1_000_000, seed * 1_000_000 + 1_000_000))

    def run(self) -> bool:
        expected = self._expected()
        end = time.monotonic() + self.seconds
        next_fault = 0.0
        while time.monotonic() < end or self.lives:
            storming = time.monotonic() < end and not self.failures
            while storming and len(self.lives) < WORKERS:
                self.lives.append(Life(live(next(self._seeds), self.directory, expected)))
                self.counts["lives"] += 1
            for life in list(self.lives):
                self._look_after(life)
            for due, undo in list(self._later):
                if due <= time.monotonic():
                    self._later.remove((due, undo))
                    undo()
            if storming and next_fault <= time.monotonic() and self._progressed():
                self._fault()
                next_fault = time.monotonic() + self.choose.expovariate(FAULTS)
            time.sleep(0.01)
        for _, undo in self._later:
            undo()
        self._check_afterwards(expected)
        return not self.failures

    def _progressed(self) -> bool:
        compared = self.counts["programs compared"] + sum(life.text.count(b"program\n") for life in self.lives)
        return sum(self.faults.values()) <= 20 + MOST_FAULTS * compared

    def _expected(self) -> list[bytes]:
        """The bits without a cache."""
        folder = Path(tempfile.mkdtemp(prefix="adaptive-eager-storm-"))

        def work(say) -> int:
            use_cache(folder, "off")
            (folder / "bits").write_bytes(
                b"".join(len(b).to_bytes(4, "little") + b for b in map(_run, range(PROGRAMS)))
            )
            return 0

        life = Life(work)
        assert os.waitpid(life.pid, 0)[1] == 0, "the programs do not run at all"
        data, bits = (folder / "bits").read_bytes(), []
        while data:
            length = int.from_bytes(data[:4], "little")
            bits.append(data[4 : 4 + length])
            data = data[4 + length :]
        shutil.rmtree(folder)
        return bits

    def _look_after(self, life: Life) -> None:
        now = time.monotonic()
        if life.stopped_until is not None and life.stopped_until <= now:
            life.signal(signal.SIGCONT)
            life.stopped_until = None
        status = life.ended()
        if status is None:
            if not life.killed and life.hangs():
                self.failures.append(f"a life hung: {_where(life.pid)}")
                life.signal(signal.SIGCONT)
                life.signal(signal.SIGKILL)
                life.killed = True
            return
        self.lives.remove(life)
        for line in life.text.decode(errors="replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "fault":
                self.faults[rest] += 1
            elif word == "program":
                self.counts["programs compared"] += 1
            elif word == "kernels":
                compiled, loaded = map(int, rest.split())
                self.counts["kernels compiled"] += compiled
                self.counts["kernels loaded"] += loaded
                self.counts["lives that ended by themselves"] += 1
            elif word in ("exception", "wrong", "warned"):
                self.failures.append(line)
        if status and not life.killed:
            self.failures.append(f"a life ended with status {status}")

    # -- faults ---------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if not self._deck:  # all kinds come, in any order
            self._deck = [self.kill] * 5 + [self.truncate, self.flip] * 2
            self._deck += [self.delete, self.permissions, self.fill, self.stop, self.go_back, self.owner, self.link]
            self.choose.shuffle(self._deck)
        fault = self._deck.pop()
        with contextlib.suppress(OSError):  # what it was meant for is not there now, or the disk is full
            if fault():
                self.faults[fault.__doc__] += 1

    def kill(self) -> bool:
        """kill -9"""
        if not self.lives:
            return False
        life = self.choose.choice(self.lives)
        life.killed = True
        life.signal(signal.SIGCONT)
        life.signal(signal.SIGKILL)
        return True

    def stop(self) -> bool:
        """stop a process for a while"""
        if not self.lives:
            return False
        life = self.choose.choice(self.lives)
        life.signal(signal.SIGSTOP)
        life.stopped_until = time.monotonic() + SHORT
        return True

    def truncate(self) -> bool:
        """truncate a file"""
        path = self._file()
        if path is None:
            return False
        os.truncate(path, self.choose.randrange(os.path.getsize(path) + 1))
        return True

    def flip(self) -> bool:
        """flip bits of a file"""
        path = self._file()
        size = os.path.getsize(path) if path is not None else 0
        if path is None or not size:
            return False
        with open(path, "r+b") as file:
            for _ in range(self.choose.choice((1, 3, 100))):
                position = self.choose.randrange(size)
                file.seek(position)
                byte = file.read(1)
                if byte:
                    file.seek(position)
                    file.write(bytes([byte[0] ^ 1 << self.choose.randrange(8)]))
        return True

    def delete(self) -> bool:
        """delete the directory, or a part of it"""
        at = self.choose.choice((self.directory, self.directory / "v2", self.directory / "v2" / "cache.db"))
        if not at.exists():
            return False
        if at.is_dir():
            shutil.rmtree(at, ignore_errors=True)
        else:
            at.unlink()
        return True

    def permissions(self) -> bool:
        """change permissions"""
        paths = [self.directory, self.directory / "v2", self.directory / "v2" / "cache.db"]
        path = self.choose.choice(paths)
        mode = path.stat().st_mode & 0o777
        path.chmod(self.choose.choice((0o000, 0o400, 0o500, 0o777, 0o755)))
        self._undo(lambda: path.chmod(mode))
        return True

    def owner(self) -> bool:
        """give the directory to another user"""
        if os.geteuid() != 0:
            return False
        os.chown(self.directory, 65534, 65534)
        self._undo(lambda: os.chown(self.directory, 0, 0))
        return True

    def link(self) -> bool:
        """put a symbolic link in its place"""
        aside = self.directory.with_name(f"aside{time.monotonic_ns()}")
        if self.directory.is_symlink():
            return False
        self.directory.rename(aside)
        self.directory.symlink_to(aside)

        def undo() -> None:
            if self.directory.is_symlink():
                self.directory.unlink()
                aside.rename(self.directory)
            else:
                shutil.rmtree(aside)

        self._undo(undo)
        return True

    def fill(self) -> bool:
        """fill the disk"""
        if not os.path.ismount(self.directory.parent):
            return False
        filler = self.directory.parent / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self._undo(filler.unlink)
        return True

    def go_back(self) -> bool:
        """put an old copy of the database in its place"""
        path = self.directory / "v2" / "cache.db"
        if self._snapshot is None:
            self._snapshot = path.read_bytes()
            return False
        with contextlib.suppress(OSError):  # the disk may be full
            path.write_bytes(self._snapshot)
        self._snapshot = None
        return True

    def _file(self) -> Path | None:
        files = [path for path in self.directory.rglob("*") if path.is_file() and not path.is_symlink()]
        weights = [5 if path.name.startswith("cache.db") else 1 for path in files]
        return self.choose.choices(files, weights)[0] if files else None

    def _undo(self, action) -> None:
        def safely() -> None:
            with contextlib.suppress(OSError):
                action()

        self._later.append((time.monotonic() + SHORT, safely))

    # -- afterwards -----------------------------------------------------------------------------------------------

    def _check_afterwards(self, expected: list[bytes]) -> None:
        """Once nothing disturbs it: no lock blocks, the cache is used, and a second process compiles nothing."""
        from adaptive_eager.cache.layer import Layer
        from adaptive_eager.cache.locks import lock_files

        if self.directory.exists():
            self.directory.chmod(0o700)
            held = [file for file in lock_files(Layer(self.directory, False, 0)) if file.held]
            self.failures += [f"a lock is left: {file}" for file in held]

        def work(say) -> int:
            import adaptive_eager as ae
            from adaptive_eager import backend

            use_cache(self.directory)
            start = time.monotonic()
            right = all(_run(number) == expected[number] for number in range(PROGRAMS))
            stats, store = ae.stats(), backend.planner().store
            took = time.monotonic() - start
            say(f"after {int(right)} {stats['kernels_compiled']} {store.trouble or 'on'}, {took:.1f} s")
            return 0 if right else 4

        for number in range(2):
            life = Life(work)
            while (status := life.ended()) is None and not life.hangs():
                time.sleep(0.05)
            if status is None:
                life.signal(signal.SIGKILL)
            _, right, compiled, *rest = life.text.decode().split(maxsplit=3) if life.text else ("", "0", "-1")
            state = " ".join(rest)
            print(f"process {number + 1} afterwards: {compiled} kernels compiled, cache {state}")
            if status != 0 or right != "1" or not state.startswith("on,") or (number and compiled != "0"):
                self.failures.append(f"afterwards: status {status}, {life.text!r}")


def _run(number: int) -> bytes:
    program(number, "neuron")
    return program(number, "neuron")


def _where(pid: int) -> str:
    """Where a process is, as far as the kernel tells."""
    with contextlib.suppress(OSError):
        return f"{Path(f'/proc/{pid}/wchan').read_text()} {Path(f'/proc/{pid}/status').read_text()[:60]!r}"
    return "gone"


@contextlib.contextmanager
def place(small: bool):
    """A folder for the cache: on a small disk of its own where this process may make one."""
    with tempfile.TemporaryDirectory(prefix="adaptive-eager-storm-") as folder:
        mounted = (
            small
            and not subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
            ).returncode
        )
        try:
            yield Path(folder) / "cache"
        finally:
            if mounted:
                subprocess.run(["umount", folder], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    import torch

    import adaptive_eager  # noqa: F401

    torch.set_num_threads(1)
    small = bool(shutil.which("mount")) and os.geteuid() == 0
    with place(small) as directory:
        storm = Storm(directory, given.seconds, given.seed)
        good = storm.run()
    print(json.dumps({"faults": storm.faults, "counts": storm.counts, "failures": storm.failures}, indent=1))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
