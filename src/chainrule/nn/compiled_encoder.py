"""Encoders of whole sequences by compiled programs, instead of torch modules: without padding, one row after the other.

Shape letters: B rows, T tokens, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import is_applicable, program_for, run_separately
from chainrule.types import Sequences, State

MAX_TOKENS = 64  # of a row, up to which a program is faster than torch modules with any number of threads


def encode(
    module: nn.Module,
    source: Sequences,
    state: State,
    outputs: int,
    describe: Callable[[ProgramBuilder], None],
) -> Tensor | None:
    """The result (B, T, outputs) of the program that the module's method describes; None where torch is used instead.

    The program reads the tokens of the source, or vectors of the state; see `unread`.
    """
    if not len(source.ids) or not is_applicable(module, source.ids[:1], few=MAX_TOKENS):
        return None
    program = program_for(module, outputs, describe)
    return None if program is None else run_separately(program, source, state)


def unread(vectors: Tensor, lengths: Tensor) -> Sequences:
    """Tokens that a program does not read, since it reads vectors (B, T, D)."""
    return Sequences(torch.zeros(vectors.shape[:2], dtype=torch.int64, device=vectors.device), lengths)


def keys_and_values(found: Tensor, layers: int, heads: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Keys and values (B, H, T, D/H) of each layer from (B, T, 2 L D)."""
    by_head = found.view(*found.shape[:2], 2 * layers, heads, -1).permute(2, 0, 3, 1, 4)
    parts = by_head.contiguous().unbind(0)
    return parts[::2], parts[1::2]
