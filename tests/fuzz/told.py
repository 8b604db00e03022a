"""New seeds for as long as `FUZZ_SECONDS` says (make fuzz)."""

import os
import time


def check_new_seeds(check):
    """Calls check(seed) with seeds that no run had before, until the time is over."""
    end = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "20"))
    seed = int(time.time()) << 16
    count = 0
    while time.monotonic() < end:
        check(seed + count)
        count += 1
    print(f"{count} seeds")
    assert count
