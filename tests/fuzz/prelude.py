"""What a fuzzed program needs to run: its tensors' values, its threads, and how two runs are compared.

A printed script carries the source of these functions, so they use nothing but torch and the standard library.
"""

import threading

import torch

import adaptive_eager as ae


def fill(seed, shape, dtype=torch.float32, wild=False):
    """Values for a tensor on the host: small numbers, and with `wild` also edges of the dtype."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    if wild:
        inf, nan = float("inf"), float("nan")
        edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 255.0, 88.0, 1e-41, 3e38, -65504.0, inf, -inf, nan])
        pick = torch.randint(0, 3 * len(edges), values.shape, generator=generator)
        values = torch.where(pick < len(edges), edges[pick % len(edges)].double(), values)
    if dtype == torch.bool:
        return values > 0
    if not dtype.is_floating_point:  # torch does not say what a float out of range becomes
        values = values.nan_to_num(3, 100, -100).round()
        values = values.abs().clamp(0, 255) if dtype == torch.uint8 else values.clamp(-100, 100)
    return values.to(dtype)


def index(seed, shape, high):
    """Indices below `high` on the host."""
    return torch.randint(0, max(high, 1), shape, generator=torch.Generator().manual_seed(seed))


def run(threads, mode, num_threads=1, together=True):
    """What the functions `threads` return on the device, each in its own thread if there are several.

    `together`: at the same time; else one after another. Raises what one of them raises.
    """
    torch.manual_seed(0)
    results, errors = [None] * len(threads), []

    def call(i):
        torch.set_num_threads(num_threads)
        try:
            results[i] = threads[i]("neuron")
        except Exception as error:
            errors.append(error)

    with getattr(ae, mode)():
        if len(threads) == 1:
            call(0)
        else:
            workers = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(threads))]
            for worker in workers:
                worker.start()
                if not together:
                    worker.join()
            for worker in workers:
                worker.join()
        if errors:
            raise errors[0]
        return [told(result) for result in results]


def told(result):
    """{name: what can be seen of it} of a thread's values: everything read, and every tensor left with its grad."""
    reads, kept, left = result
    seen = {f"reads[{i}]": value for i, value in enumerate(reads)}
    seen.update({f"kept[{i}]": value for i, value in enumerate(kept)})
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            seen[name] = value
            if value.is_leaf and value.grad is not None:
                seen[f"{name}.grad"] = value.grad
        elif isinstance(value, torch.optim.Optimizer):
            for i, state in value.state_dict()["state"].items():
                seen.update({f"{name}.state[{i}][{key}]": v for key, v in state.items()})
    return {name: look(value) for name, value in seen.items()}


def look(value):
    """A value as something that compares by `==`: of a tensor its metadata and bits, where any NaN equals any NaN."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    host = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
    if host.is_floating_point():
        host[host.isnan()] = float("nan")
    bits = host.view(-1).view(torch.uint8).numpy().tobytes()
    return (value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad), bits, host


def difference(actual, expected):
    """The names that differ between two runs, in words; "" if there are none."""
    lines = []
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a.keys() != e.keys():
            lines.append(f"thread {i}: {sorted(a.keys() ^ e.keys())} exist in one run only")
        for name in [n for n in e if n in a and a[n][:2] != e[n][:2]]:
            if isinstance(e[name], str) or a[name][0] != e[name][0]:
                lines.append(f"thread {i}: {name} is {a[name][: len(e[name]) - 2 or None]}, not {e[name][0]}")
                continue
            at = (look_bits(a[name][2]) != look_bits(e[name][2])).nonzero()[:, 0]
            got, want = a[name][2].reshape(-1)[at[0]], e[name][2].reshape(-1)[at[0]]
            lines.append(
                f"thread {i}: {name} {e[name][0]}: {len(at)} elements differ, the first at {int(at[0])}: "
                f"{got.item()!r}, not {want.item()!r}"
            )
    return "\n".join(lines)


def look_bits(host):
    """The elements' bits as integers, flat."""
    if host.dtype == torch.bool:
        return host.reshape(-1)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[host.element_size()]
    return host.reshape(-1).view(integer)
