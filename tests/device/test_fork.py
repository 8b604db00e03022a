"""A forked child starts with what was recorded already run, and uses the device by itself."""

import pytest
from device_harness import output_of

pytestmark = pytest.mark.filterwarnings("ignore")

FORK = """
import os, sys, threading, torch
import adaptive_eager as ae

def child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            function()
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print("child failed:", error, flush=True)
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    print("status", os.waitstatus_to_exitcode(status))
"""


def test_pending_work_is_seen_by_parent_and_child():
    out = output_of(
        FORK
        + """
x = torch.arange(4.0, device="neuron") * 2
child(lambda: print("child", (x + 1).tolist()))
print("parent", (x + 2).tolist())
"""
    )
    assert out.splitlines() == ["child [1.0, 3.0, 5.0, 7.0]", "status 0", "parent [2.0, 4.0, 6.0, 8.0]"]


@pytest.mark.slow
def test_the_child_compiles_and_runs_kernels_of_its_own():
    out = output_of(
        FORK
        + """
(torch.randn(100, device="neuron") * 2).cpu()
def train():
    model = torch.nn.Linear(8, 4).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        model(torch.ones(300, 8, device="neuron")).tanh().sum().backward()
        optimizer.step()
    big = torch.ones(1 << 20, device="neuron").mul(2).sin().sum().item()
    print("finite", torch.isfinite(next(model.parameters())).all().item(), round(big / (1 << 20), 4))
child(train)
child(train)
train()
""",
        timeout=90,
    )
    assert out.splitlines() == [
        "finite True 0.9093",
        "status 0",
        "finite True 0.9093",
        "status 0",
        "finite True 0.9093",
    ]


@pytest.mark.slow
def test_writes_of_the_child_do_not_reach_the_parent():
    out = output_of(
        FORK
        + """
x = torch.zeros(3, device="neuron")
x += 1
def write():
    x.add_(5)
    print("child", x.tolist())
child(write)
print("parent", x.tolist())
"""
    )
    assert out.splitlines() == ["child [6.0, 6.0, 6.0]", "status 0", "parent [1.0, 1.0, 1.0]"]


def test_fork_while_another_thread_records():
    """Locks held by other threads at the fork do not hang the child."""
    out = output_of(
        FORK
        + """
stop = False
def loop():
    x = torch.ones(500, device="neuron")
    while not stop:
        x = (x * 0.5 + 1).sin()
        x.sum().item()
thread = threading.Thread(target=loop)
thread.start()
for i in range(8):
    child(lambda: print((torch.ones(3, device="neuron") * 3).tolist()))
stop = True
thread.join()
""",
        timeout=60,
    )
    assert out.splitlines() == ["[3.0, 3.0, 3.0]", "status 0"] * 8


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        return torch.tensor(float(i)) ** 2

if __name__ == "__main__":
    x = torch.ones(4, device="neuron") * 2  # the device is in use when the workers start
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="START_METHOD")
    print(sum((batch.to("neuron") * x).sum().item() for batch in loader))
"""


ON_THE_DEVICE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.arange(4.0, device="neuron"), torch.ones(4, 2, device="neuron").bfloat16())
    for x, y in DataLoader(data, 2, num_workers=1, multiprocessing_context="START_METHOD"):
        print(x.device, x.tolist(), y.dtype, y.sum().item())
"""


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_workers_send_device_tensors(start_method, tmp_path):
    script = tmp_path / "loader.py"
    script.write_text(ON_THE_DEVICE.replace("START_METHOD", start_method))
    out = output_of(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", timeout=60)
    assert out.splitlines() == ["neuron:0 [0.0, 1.0] torch.bfloat16 4.0", "neuron:0 [2.0, 3.0] torch.bfloat16 4.0"]


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_workers(start_method, tmp_path):
    script = tmp_path / "loader.py"
    script.write_text(LOADER.replace("START_METHOD", start_method))
    assert output_of(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", timeout=60) == "2480.0"
