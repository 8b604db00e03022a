"""Whole models: a training step, or a greedy decode. Configurations of transformers, random weights, train() mode.

A step is zero_grad, forward, loss, backward, the optimizer's step, and reading the loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.contender import FORMS_WITH_OPTIMIZER, WITH_OPTIMIZER, Contender
from bench.timer import Timer

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

TITLE = "Whole models"
UNIT = ("ms", 1e3)
CONTENDERS, FORMS = WITH_OPTIMIZER, FORMS_WITH_OPTIMIZER
ROUNDS = 7
TARGETS = {
    "mlp": {"cpu": 2.0, "inductor": 1.0},
    "gpt2": {"cpu": 1.3, "inductor": 1.0},
    "bert": {"cpu": 1.24, "inductor": 1.0},
    "resnet": {"cpu": 1.3, "inductor": 1.0},
    "llama": {"cpu": 1.35, "inductor": 1.0},
}

ROUND_SECONDS = 0.6


def cases() -> list[str]:
    return list(TARGETS)


def prepare(case: str, contender: Contender) -> Measured:
    return Measured({"mlp": mlp, "gpt2": gpt2, "bert": bert, "resnet": resnet, "llama": llama}[case](contender))


class Measured:
    """A step and its times. `first_seconds` is the first step's, with all that it compiles."""

    def __init__(self, step: Callable[[], object]) -> None:
        start = time.perf_counter()
        step()
        self.first_seconds = time.perf_counter() - start
        self._timer = Timer(step, ROUND_SECONDS)

    def __call__(self, index: int) -> float:
        """Seconds a step."""
        return self._timer.round()


def mlp(contender: Contender) -> Callable[[], float]:
    """64-256-256-10 on a batch of 128, Adam."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 10)
    ).to(contender.device)  # fmt: skip
    inputs = torch.randn(128, 64).to(contender.device)
    labels = torch.randint(10, (128,)).to(contender.device)
    forward = contender.wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=contender.fused_optimizer or None)
    return training(lambda: nn.functional.cross_entropy(forward(inputs), labels), optimizer)


def gpt2(contender: Contender) -> Callable[[], float]:
    """4 layers of 256, a vocabulary of 4096, a batch of 4 x 128, AdamW."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=4096, n_positions=128, n_embd=256, n_layer=4, n_head=4, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    model.loss_type = "ForCausalLM"  # what it takes anyway, with a warning
    tokens = torch.randint(4096, (4, 128))
    return transformer(model, contender, input_ids=tokens, labels=tokens)


def bert(contender: Contender) -> Callable[[], float]:
    """4 layers of 256, a batch of 8 x 128, two classes, AdamW."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(
        BertConfig(vocab_size=4096, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    )
    return transformer(
        model, contender, input_ids=torch.randint(4096, (8, 128)), labels=torch.randint(2, (8,)),
        attention_mask=torch.ones(8, 128, dtype=torch.int64),
    )  # fmt: skip


def resnet(contender: Contender) -> Callable[[], float]:
    """Basic blocks [2, 2, 2, 2] of 32 to 256 channels, a batch of 8 x 3 x 64 x 64, SGD."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(
        ResNetConfig(
            embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
        )
    )
    model.to(contender.device).train()
    inputs = {"pixel_values": torch.randn(8, 3, 64, 64), "labels": torch.randint(10, (8,))}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=contender.fused_optimizer or None)
    return training(loss_of(model, contender, inputs), optimizer)


def llama(contender: Contender) -> Callable[[], Tensor]:
    """4 layers of 256: 32 tokens, greedily, after a prompt of 8. Inductor gets the static cache that suits it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    ).to(contender.device)  # fmt: skip
    prompt = torch.randint(1, 4096, (1, 8)).to(contender.device)
    mask = torch.ones_like(prompt)
    settings = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False}
    if contender.compiled:
        model.forward = contender.wrap(model.forward)
        settings["cache_implementation"] = "static"
    return lambda: model.generate(prompt, attention_mask=mask, **settings).cpu()


def transformer(model: nn.Module, contender: Contender, **inputs: Tensor) -> Callable[[], float]:
    """A training step with AdamW."""
    import torch

    model.to(contender.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=contender.fused_optimizer or None)
    return training(loss_of(model, contender, inputs), optimizer)


def loss_of(model: nn.Module, contender: Contender, inputs: dict[str, Tensor]) -> Callable[[], Tensor]:
    forward = contender.wrap(model)
    moved = {name: tensor.to(contender.device) for name, tensor in inputs.items()}
    return lambda: forward(**moved).loss


def training(loss: Callable[[], Tensor], optimizer: Optimizer) -> Callable[[], float]:
    def step() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.item()

    return step


if __name__ == "__main__":
    from bench import harness

    harness.main("models")
