"""A small GPT in plain torch, and the text it learns from. Nothing in here knows about the device it runs on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of one training step."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 64
    batch: int = 8
    dropout: float = 0.1


class Block(nn.Module):
    """Attention and a GELU MLP, each behind a LayerNorm and beside a residual path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.norm_attention(x)))
        return x + self.dropout(self.narrow(F.gelu(self.widen(self.norm_mlp(x)))))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, shape: Shape) -> None:
        super().__init__()
        self.context = shape.context
        self.token = nn.Embedding(vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) token numbers -> (batch, length, vocabulary) logits."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Corpus:
    """The documentation texts that come with every Python, one token a character."""

    def __init__(self) -> None:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(text))
        self._numbers = {character: number for number, character in enumerate(self.characters)}
        self.tokens = self.encode(text)

    def encode(self, text: str) -> Tensor:
        return torch.tensor([self._numbers[character] for character in text])

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.characters[number] for number in tokens)

    def batches(self, shape: Shape, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless (inputs, targets) of shape (batch, context) from random places; the same ones for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(self.tokens) - shape.context - 1, (shape.batch,), generator=generator)
            window = torch.stack([self.tokens[start : start + shape.context + 1] for start in starts.tolist()])
            yield window[:, :-1].contiguous(), window[:, 1:].contiguous()


class Training:
    """A model, its optimizer and its batches on one device. `step()` is one ordinary training step.

    fused asks for AdamW's fused form; otherwise torch chooses one for the device.
    """

    def __init__(self, device: str, shape: Shape, corpus: Corpus, seed: int = 0, fused: bool = False) -> None:
        torch.manual_seed(seed)
        self.device = device
        # Made on the host and moved, so that every device starts from the same weights.
        self.model = GPT(len(corpus.characters), shape).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, fused=fused or None)
        self.batches = corpus.batches(shape, seed)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    def step(self) -> Tensor:
        """One step; returns the loss on the device. Nothing in it waits for the device."""
        inputs, targets = (part.to(self.device) for part in next(self.batches))
        logits = self.model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def generate(self, prompt: Tensor, length: int, seed: int = 0) -> list[int]:
        """The prompt's tokens and `length` more, drawn on the host from what the model predicts."""
        generator = torch.Generator().manual_seed(seed)
        tokens = prompt.tolist()
        self.model.eval()
        for _ in range(length):
            recent = torch.tensor([tokens[-self.model.context :]]).to(self.device)
            chances = (self.model(recent)[0, -1].cpu() / 0.8).softmax(0)
            tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
        self.model.train()
        return tokens
