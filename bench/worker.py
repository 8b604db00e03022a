"""One contender's process: prepares one case, then measures a round each time it is asked to.

Talks JSON lines: reads round numbers from standard input, answers on standard output. Whatever libraries print goes to
standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any


def main(module_name: str, case: str, contender_name: str, threads: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    start = time.perf_counter()
    try:
        import torch

        from bench.contender import CONTENDERS

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        contender = CONTENDERS[contender_name]
        imported = time.perf_counter()
        measure = importlib.import_module(module_name).prepare(case, contender)
        answer(
            setup_seconds=time.perf_counter() - imported,
            import_seconds=imported - start,
            first_seconds=getattr(measure, "first_seconds", None),
        )
        for line in sys.stdin:
            found = measure(int(line))
            answer(**({"parts": found} if isinstance(found, dict) else {"seconds": found}))
    except Exception as error:  # the table of the others is still worth having
        answer(error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
