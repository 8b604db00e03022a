"""Tensors that the device does not have: one line that says so and what to do instead, and the device goes on."""

import pytest
import torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(Sparse|beta state|deprecated|prototype|runs on the host)"),
]

COO = (torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 2.0]), (4, 4))


def dense():
    return torch.ones(4, 4, device="neuron")


def quantized():
    return torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.quint8)


SPARSE = {
    "coo": lambda: torch.sparse_coo_tensor(*COO, device="neuron"),
    "coo_of_device_tensors": lambda: torch.sparse_coo_tensor(COO[0].to("neuron"), COO[1].to("neuron")),
    "to_sparse": lambda: dense().to_sparse(),
    "to_sparse_dims": lambda: dense().to_sparse(1),
    "to_sparse_csr": lambda: dense().to_sparse_csr(),
    "to_sparse_csc": lambda: dense().to_sparse_csc(),
    "to_sparse_bsr": lambda: dense().to_sparse_bsr((2, 2)),
    "to": lambda: torch.ones(4, 4).to_sparse().to("neuron"),
    "csr_to": lambda: torch.ones(4, 4).to_sparse_csr().to("neuron") @ dense(),
    "csr": lambda: (
        torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), COO[1], device="neuron") + dense()
    ),
    "empty": lambda: torch.empty(3, 3, layout=torch.sparse_coo, device="neuron"),
    "zeros": lambda: torch.zeros(3, 3, layout=torch.sparse_coo, device="neuron"),
    "zeros_csr": lambda: torch.zeros(3, 3, layout=torch.sparse_csr, device="neuron"),
    "sparse_mm": lambda: torch.sparse.mm(torch.ones(4, 4).to_sparse(), dense()),
    "matmul": lambda: torch.ones(4, 4).to_sparse() @ dense(),
    "add": lambda: dense() + torch.ones(4, 4).to_sparse(),
    "copy": lambda: dense().copy_(torch.ones(4, 4).to_sparse()),
    "sparse_gradient": lambda: (
        torch.nn.functional.embedding(torch.tensor([1]).to("neuron"), dense().requires_grad_(), sparse=True)
        .sum()
        .backward()
    ),
}
QUANTIZED = {
    "quantize_per_tensor": lambda: torch.quantize_per_tensor(dense(), 0.1, 0, torch.quint8),
    "quantize_per_channel": lambda: torch.quantize_per_channel(
        dense(), torch.ones(4), torch.zeros(4, dtype=torch.long), 0, torch.quint8
    ),
    "quantize_dynamic": lambda: torch.quantize_per_tensor_dynamic(dense(), torch.qint8, False),
    "to": lambda: quantized().to("neuron"),
    "empty": lambda: torch.empty(3, dtype=torch.quint8, device="neuron"),
    "copy_from": lambda: dense().copy_(quantized()),
    "copy_to": lambda: quantized().copy_(dense()),
}
NOWHERE = {  # ops that the CPU has for sparse or quantized tensors only
    "int_repr": lambda: dense().int_repr(),
    "sparse_softmax": lambda: torch.sparse.softmax(dense(), 0),
}


@pytest.mark.parametrize("name", [f"sparse-{n}" for n in SPARSE] + [f"quantized-{n}" for n in QUANTIZED])
def test_one_line_that_says_what_to_do(name):
    kind, _, key = name.partition("-")
    with pytest.raises(NotImplementedError) as caught:
        (SPARSE if kind == "sparse" else QUANTIZED)[key]()
    message = str(caught.value)
    assert f"no {kind} tensors" in message and "keep this one on cpu" in message
    assert len(message.splitlines()) == 1 and len(message) < 200
    assert (dense() + 1).sum().item() == 32


@pytest.mark.parametrize("name", NOWHERE)
def test_an_op_that_no_backend_has_for_dense_tensors(name):
    with pytest.raises(NotImplementedError) as caught:
        NOWHERE[name]()
    assert str(caught.value).startswith("Could not run 'aten::")
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 200


def test_what_the_message_says_works():
    sparse = torch.ones(4, 4).to_sparse()
    assert torch.equal(sparse.to_dense().to("neuron").cpu(), torch.ones(4, 4))
    torch.testing.assert_close(quantized().dequantize().to("neuron").cpu(), torch.ones(4, 4), rtol=0, atol=0.05)
