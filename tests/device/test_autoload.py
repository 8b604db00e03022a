"""The device registers itself with `import torch`, once, and never keeps torch from being imported."""

import pytest
from device_harness import output_of, run_script


@pytest.mark.slow
def test_import_torch_is_enough():
    assert output_of("import torch; print(torch.ones(2, device='neuron').add(1).tolist())") == "[2.0, 2.0]"


@pytest.mark.slow
def test_import_of_the_package_first():
    script = "import adaptive_eager as ae, torch; print(torch.ones(2, device='neuron').sum().item(), ae.mode())"
    assert output_of(script) == "2.0 adaptive"


def test_autoload_can_be_turned_off():
    out = output_of("import torch; print(hasattr(torch, 'neuron'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert out == "False"


@pytest.mark.slow
def test_import_by_hand_registers():
    out = output_of(
        """
        import torch
        import adaptive_eager as ae
        ae.stats()
        print(torch.ones(2, device="neuron").sum().item())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "2.0"


def test_import_by_hand_alone_registers():
    """Nothing of the package needs to be called."""
    out = output_of(
        "import torch, adaptive_eager; print(torch.ones(2, device='neuron').sum().item())",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "2.0"


@pytest.mark.slow
def test_registering_twice_is_once():
    out = output_of(
        """
        import importlib, torch, adaptive_eager as ae
        module = torch.neuron
        ae._autoload()
        ae._autoload()
        importlib.import_module("adaptive_eager")
        print(torch.neuron is module, torch.ones(2, device="neuron").sum().item())
        """
    )
    assert out == "True 2.0"


@pytest.mark.slow
def test_import_loads_no_compiler():
    """`import torch` stays quick for programs that never use the device."""
    out = output_of(
        "import sys, torch; print([m for m in ('llvmlite', 'diskcache', 'rich', 'transformers') if m in sys.modules])"
    )
    assert out == "[]"


def test_a_broken_runtime_is_a_warning():
    done = run_script(
        "import torch; print(torch.ones(2).sum().item(), hasattr(torch, 'neuron'))",
        ADAPTIVE_EAGER_RUNTIME="/nonexistent/libnrt.so",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2.0 False")
    assert "/nonexistent/libnrt.so" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_another_backend_is_left_alone():
    done = run_script(
        """
        import torch
        torch.utils.rename_privateuse1_backend("other")
        import adaptive_eager as ae
        ae._autoload()
        print(torch._C._get_privateuse1_backend_name(), hasattr(torch, "neuron"))
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "other False"), done.stderr
    assert "other" in done.stderr


@pytest.mark.slow
def test_a_senseless_parameter_is_a_warning():
    done = run_script(
        "import torch; print(torch.ones(2, device='neuron').sum().item())",
        ADAPTIVE_EAGER_MAX_OPS="many",
        ADAPTIVE_EAGER_MODE="quick",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2.0"), done.stderr
    assert "ADAPTIVE_EAGER_MAX_OPS" in done.stderr and "ADAPTIVE_EAGER_MODE" in done.stderr


@pytest.mark.slow
def test_mode_from_the_environment():
    for mode in ("adaptive", "per_op", "stepwise"):
        assert output_of("import torch, adaptive_eager as ae; print(ae.mode())", ADAPTIVE_EAGER_MODE=mode) == mode


@pytest.mark.slow
def test_no_cache_directory():
    """Where nothing can be written the device works, without a disk cache."""
    done = run_script(
        "import torch; print(torch.ones(2, device='neuron').mul(3).sum().item())",
        ADAPTIVE_EAGER_CACHE_DIR="/proc/nowhere/cache",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "6.0"), done.stderr


@pytest.mark.slow
def test_torch_comes_up_where_warnings_are_errors():
    out = output_of(
        "import warnings; warnings.simplefilter('error'); import torch; print(hasattr(torch, 'neuron'))",
        ADAPTIVE_EAGER_RUNTIME="/nonexistent",
    )
    assert out == "False"
