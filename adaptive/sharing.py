"""Sharing: device tensors sent to another process (DataLoader workers, queues, pipes) travel as host copies."""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions


def _arrive(saved: bytes, device: str, requires_grad: bool, parameter: bool) -> torch.Tensor:
    tensor = torch.load(io.BytesIO(saved), weights_only=True).to(device)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce(tensor: torch.Tensor) -> tuple[Any, ...]:
    """How a tensor is sent: as torch does, but for the memory of this device, which processes do not share."""
    if tensor.device.type != "neuron":
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor of an autograd graph cannot be sent to another process: send x.detach()")
    parameter = isinstance(tensor, torch.nn.Parameter)
    saved = io.BytesIO()  # plain bytes: shared memory of a copy would be gone before a spawned process opens it
    torch.save(tensor.detach().cpu(), saved)
    return _arrive, (saved.getvalue(), str(tensor.device), tensor.requires_grad, parameter)


def install() -> None:
    """Registers with the pickler of torch.multiprocessing."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce)
