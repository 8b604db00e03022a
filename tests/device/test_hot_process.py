"""A process that finds its kernels and plans on disk loads no compiler, and computes the same bits."""

import json

import pytest
from device_harness import output_of

PROGRAM = """
import hashlib, json, sys
import torch
import adaptive_eager as ae

def chain(x, w, i):
    y = torch.softmax(torch.sin(x) * 1.5 + i, -1)
    z = torch.tanh(y * 3 - x).sum(1)
    return [z, (torch.lgamma(x + 1) * torch.erf(x) - torch.relu(x).exp()).mean(), (x @ w).argmax(0)]

def train(x, w):
    w.grad = None
    loss = torch.nn.functional.layer_norm(x @ w, (16,)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w.sub_(w.grad * 0.1)
    return [loss.detach(), w.detach().clone()]

x = (torch.arange(40 * 300, dtype=torch.float32) / 777).reshape(40, 300).to("neuron")
w = (torch.arange(300 * 16, dtype=torch.float32) / 999).reshape(300, 16).to("neuron").requires_grad_()
bits = hashlib.sha256()
for i in range(5):
    for result in (*chain(x, w.detach(), i), *train(x, w)):
        bits.update(result.cpu().numpy().tobytes())
stats = ae.stats()
maps = open("/proc/self/maps").read()
print(json.dumps({
    "bits": bits.hexdigest(),
    "compiled": stats["kernels_compiled"],
    "fused": stats["fused_ops"],
    "name": torch.neuron.get_device_properties(0).target,
    "loaded": [name for name in ("llvmlite", "adaptive_eager.compiler.codegen", "adaptive_eager.design") if name in sys.modules],
    "mapped": [name for name in ("libllvmlite", "libLLVM") if name in maps],
}))
"""  # noqa: E501


@pytest.mark.slow
def test_a_hot_process_loads_no_compiler(tmp_path):
    first, second, per_op = (
        json.loads(output_of(PROGRAM, ADAPTIVE_EAGER_CACHE_DIR=str(tmp_path / "cache"), ADAPTIVE_EAGER_MODE=mode))
        for mode in ("adaptive", "adaptive", "per_op")
    )
    assert first["compiled"] > 10 and "llvmlite" in first["loaded"]
    assert second["fused"] >= first["fused"] > 0
    assert (second["compiled"], second["loaded"], second["mapped"]) == (0, [], [])
    assert first["bits"] == second["bits"] == per_op["bits"]
    assert first["name"] == second["name"]


@pytest.mark.slow
def test_a_kernel_that_is_missing_is_compiled(tmp_path):
    """Only then is the compiler loaded."""
    options = {"ADAPTIVE_EAGER_CACHE_DIR": str(tmp_path / "cache")}
    first = json.loads(output_of(PROGRAM, **options))
    more = PROGRAM.replace("bits = ", "(x / 3 + torch.cos(x)).sum().item(); bits = ", 1)
    second = json.loads(output_of(more, **options))
    assert 0 < second["compiled"] <= 4 and "llvmlite" in second["loaded"]
    assert second["bits"] == first["bits"]
