"""Fuzzes for as long as FUZZ_SECONDS says (make fuzz): random programs, and random calls of one op.

The programs run in a process of their own, so that a crash or a hang is a fault like any other: it is shrunk by running
candidates as scripts. FUZZ_SEED=n repeats one program; FUZZ_LOG=file gets a line a fault and the totals too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

CALLS = 20  # random calls of one op after each program
HANGS = 120.0  # seconds after which a program is said to hang


def work(seed: int, count: int) -> None:
    """The process that runs programs: one line before each, and the reports of faults."""
    import gc

    import fuzz
    from test_against_cpu import check_seed as check_call

    from adaptive_eager import backend

    gc.collect()
    gc.freeze()  # what is there now is not looked through again after each program
    for n in range(seed, seed + count):
        print(f"seed {n}", flush=True)
        if found := fuzz.check_seed(n):
            print(f"fault\n{found}\nend", flush=True)
        for call in range(n * CALLS, (n + 1) * CALLS) if count > 1 else ():
            print(f"call {call}", flush=True)
            try:
                check_call(call)
            except AssertionError as error:
                print(f"fault\ncall {error}\nend", flush=True)
    print(f"fallbacks {dict(backend._C.fallback_counts())}", flush=True)


def script_fails(script: str) -> str:
    """How a script's process ends, if it does not end by itself: "signal n" or "hangs"."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(script)
        file.flush()
        try:
            done = subprocess.run([sys.executable, file.name], capture_output=True, timeout=30)
        except subprocess.TimeoutExpired:
            return "hangs"
        return f"signal {-done.returncode}" if done.returncode < 0 else ""


def crash(line: str) -> str:
    """The report of what ended its process: "seed n" or "call n", or nothing yet."""
    if not line:
        return "before its first program"
    if line.startswith("call"):
        import calls

        return f"{line}: {calls.Drawer(int(line[5:])).call().describe()}"
    seed = int(line[5:])
    import runs
    import shrink
    import writer
    from program import Program

    torch_runs = (runs.REFERENCE, *runs.runs_of(writer.write(seed), free_count=True))

    def script(program: Program) -> str:
        return program.script("\n".join(f"print({run})" for run in torch_runs))

    program = writer.write(seed)
    kind = script_fails(script(program))
    if kind:
        program = shrink.shrink(program, lambda candidate: script_fails(script(candidate)) == kind, 180)
    return f"seed {seed}: crash: {kind or 'only after other programs'}\n\n{script(program)}"


class Session:
    """Worker after worker, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start = time.monotonic()
        self.programs = 0
        self.faults = 0
        self.log = os.environ.get("FUZZ_LOG")

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.start)

    def fault(self, report: str) -> None:
        self.faults += 1
        self.say(f"---- fault {self.faults} ----\n{report}")

    def say(self, text: str) -> None:
        print(text, flush=True)
        if self.log:
            with open(self.log, "a") as file:
                file.write(text + "\n")

    def run(self, seed: int, count: int) -> int:
        """One worker from `seed` on; the seed to go on with."""
        command = [sys.executable, os.path.dirname(__file__), "work", str(seed), str(count)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            for line in worker.stdout or ():
                lines.put(line.rstrip("\n"))
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        at, last, report = seed, "", None
        while True:
            try:
                line = lines.get(timeout=HANGS)
            except queue.Empty:
                line = None
            if line is None:
                break
            if report is not None:
                if line == "end":
                    self.fault("\n".join(report))
                    report = None
                else:
                    report.append(line)
            elif line == "fault":
                report = []
            elif line.startswith("call "):
                last = line
            elif line.startswith("seed "):
                at, last = int(line[5:]), line
                self.programs += 1
                if self.left() < 0:
                    worker.kill()
                    worker.wait()
                    return at
            elif line.startswith("fallbacks"):
                self.say(line)
        try:
            status = worker.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it hangs
            worker.kill()
            status = worker.wait()
        if status != 0:
            self.fault(f"the process ended with {status}\n{crash(last)}")
        return at + 1


def main() -> int:
    if sys.argv[1:2] == ["work"]:
        work(int(sys.argv[2]), int(sys.argv[3]))
        return 0
    with tempfile.TemporaryDirectory(prefix="adaptive-eager-fuzz-") as cache:
        os.environ.setdefault("ADAPTIVE_EAGER_CACHE_DIR", cache)
        os.environ.setdefault("ADAPTIVE_EAGER_FALLBACK", "quiet")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # other processes need the cores too
        if "FUZZ_SEED" in os.environ:
            session = Session(3600)
            session.run(int(os.environ["FUZZ_SEED"]), 1)
        else:
            session = Session(float(os.environ.get("FUZZ_SECONDS", "1800")))
            seed = int(time.time()) << 8
            session.say(f"from seed {seed}")
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt):  # the totals are told all the same
                while session.left() > 0:
                    seed = session.run(seed, 300)  # a new process now and then: its kernels are never freed
    seconds = time.monotonic() - session.start
    session.say(f"{seconds:.0f} seconds, {session.programs} programs, {session.faults} faults")
    return 1 if session.faults else 0


if __name__ == "__main__":
    sys.exit(main())
