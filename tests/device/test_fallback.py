"""Ops that the device cannot run: they run on the host, are counted, and are reported once with the user's line."""

import warnings

import pytest
import torch
from device_harness import output_of, run_script

import adaptive_eager as ae

OP = "aten::linalg_qr.out"


def call():
    return torch.linalg.qr(torch.eye(3, device="neuron"))


@pytest.mark.filterwarnings("ignore:.*runs on the host")
def test_fallbacks_are_counted():
    ae.clear_fallback_ops()
    before = ae.stats()["fallback_calls"]
    for _ in range(3):
        call()
    assert ae.get_fallback_ops() == {OP: 3}
    assert ae.stats()["fallback_calls"] - before == 3
    ae.clear_fallback_ops()
    assert ae.get_fallback_ops() == {}


@pytest.mark.filterwarnings("ignore:.*runs on the host")
def test_values_and_order(mode):
    """A fallback sees what was recorded before it, and what is recorded after sees its result."""
    x = torch.eye(3, device="neuron")
    x.mul_(2)
    q, r = torch.linalg.qr(x)
    x.zero_()
    assert (q @ r).abs().mul(3).cpu().equal(torch.eye(3) * 6)
    assert q.device == r.device == torch.device("neuron:0")


@pytest.mark.filterwarnings("ignore:.*runs on the host")
def test_a_fallback_ends_the_window():
    with ae.adaptive():
        ae.flush()
        before = ae.stats()["flush_causes"]
        x = torch.ones(3, 3, device="neuron") + 1
        torch.linalg.qr(x)
        after = ae.stats()["flush_causes"]
    assert sum(after.values()) > sum(before.values())


@pytest.mark.filterwarnings("ignore:.*runs on the host")
def test_in_place_out_and_views():
    x = torch.arange(9.0, device="neuron").view(3, 3)
    values, vectors = torch.empty(0, device="neuron"), torch.empty(0, device="neuron")
    torch.linalg.qr(x, out=(values, vectors))
    torch.testing.assert_close((values @ vectors).cpu(), x.cpu(), atol=1e-5, rtol=1e-5)
    x[1:].masked_scatter_(x[1:] > 6, torch.tensor([70.0, 80.0], device="neuron"))
    assert x.tolist() == [[0, 1, 2], [3, 4, 5], [6, 70, 80]]


WARNING = """
import warnings, torch
import adaptive_eager as ae
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        torch.linalg.qr(torch.eye(3, device="neuron"))
for w in caught:
    print(f"{w.filename}:{w.lineno}", str(w.message).replace(chr(10), " "))
"""


def test_warned_once_with_the_line(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(WARNING)
    out = output_of(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert len(out.splitlines()) == 1, out
    assert "linalg_qr" in out and f"{script}:7" in out
    assert "Triggered internally" not in out


@pytest.mark.slow
def test_policy_quiet():
    assert output_of(WARNING, ADAPTIVE_EAGER_FALLBACK="quiet") == ""
    assert output_of(WARNING + "print(ae.get_fallback_ops())", ADAPTIVE_EAGER_FALLBACK="quiet") == f"{{'{OP}': 3}}"


@pytest.mark.slow
def test_policy_error():
    done = run_script(
        """
        import torch
        x = torch.ones(3, 3, device="neuron") + 1
        try:
            torch.linalg.qr(x)
        except (RuntimeError, NotImplementedError) as error:
            print(str(error).splitlines()[0])
        print(x.sum().item())
        """,
        ADAPTIVE_EAGER_FALLBACK="error",
    )
    assert done.returncode == 0, done.stderr
    error, total = done.stdout.splitlines()
    assert "linalg_qr" in error and total == "18.0"


def test_ops_of_the_table_are_no_fallbacks():
    ae.clear_fallback_ops()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(4, 5, device="neuron")
        i = torch.arange(5, device="neuron")
        y = (x @ x.t()).softmax(1).cumsum(0).topk(2)[0] + x.sort(1)[0][:, :2]
        z = [y.mean(), x[:, i % 3], torch.cat([x, x]).std(0), torch.where(x > 0, x, -x).log(), x.masked_fill(x > 0, 1)]
        z += [
            torch.mm(x, x.t(), out=torch.empty(4, 4, device="neuron")),
            i << 2,
            i >> 1,
            i & 3,
            torch.randperm(4, device="neuron"),
        ]
        x[x > 0] = 1
        torch.neuron.synchronize()
    assert ae.get_fallback_ops() == {}


def test_custom_op_with_a_kernel_for_the_cpu_only():
    """An operator of the user's own that has no device kernel runs on the host as well."""
    library = torch.library.Library("device_tests", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    with pytest.warns(UserWarning, match="device_tests::twice") as caught:
        result = torch.ops.device_tests.twice(torch.ones(2, device="neuron"))
    assert caught[0].filename == __file__
    assert result.tolist() == [2, 2] and result.device.type == "neuron"
    assert ae.get_fallback_ops()["device_tests::twice"] == 1
