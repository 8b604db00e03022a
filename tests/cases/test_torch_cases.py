"""The programs of torch_cases.py on the device, in every mode."""

import pytest
import torch_cases


@pytest.mark.parametrize("number,case", torch_cases._cases(), ids=lambda v: str(v) if isinstance(v, int) else "")
def test_case(number, case, mode):
    case("neuron")
