"""How a text is read when it is scored: the protocol that every score includes.

A perplexity means little without the context that each prediction has:

- `carried`: one pass from the first token to the last with carried state; a prediction sees all earlier tokens. For
  models with unlimited context.
- `windows`: windows of `context` tokens with a stride of `stride`. Each window starts at BOS, and only tokens that no
  earlier window has scored count, so a prediction sees at least `context − stride` tokens (except in the first
  window) and at most `context − 1`.
- `documents`: each document is a sequence of its own, from BOS to EOS; documents longer than the context are read by
  windows. For conditional models every window is conditioned on the source of its document.
- `whole`: each document at once, given its source, by a parallel model, whose sequence probability does not factorise
  over tokens. Documents that are too long for the model are counted and excluded.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from chainrule.config import Settings
from chainrule.data.corpus import Corpus
from chainrule.data.windows import SlidingWindow
from chainrule.errors import ConfigError
from chainrule.interface.base import DensityModel
from chainrule.interface.capabilities import Branched
from chainrule.interface.conditional import Conditional, ParallelModel


class Protocol(Settings):
    """How a text was read; stored with every score."""

    method: Literal["carried", "windows", "documents", "whole"]
    context: int | None = Field(None, description="tokens per window; none: unlimited")
    stride: int | None = Field(None, description="tokens between the starts of windows")
    carry_over: bool = Field(description="whether predictions see all earlier tokens of the text")
    eos: bool = Field(description="whether EOS of each document is scored")
    source: bool = Field(False, description="whether documents are conditioned on their sources")
    source_context: int | None = Field(None, description="maximum source tokens; none: unlimited")
    pieces: int = Field(1, description="parts of the stream that are read independently")
    tokens: int | None = Field(None, description="number of tokens from the start that are scored; none: all")
    gamma: float | None = Field(
        None, description="hybrids: fixed weight of the non-autoregressive branch; none: the learned one"
    )
    words: str = "separated by white space, plus one for each line end"
    bytes: str | None = Field(None, description="what counts as a byte of bits/byte; none: not text")


def protocol_for(
    model: DensityModel,
    corpus: Corpus,
    *,
    stride: int | None = None,
    pieces: int = 1,
    tokens: int | None = None,
) -> Protocol:
    """The default protocol of a model and corpus: carried state if the context is unlimited, else half-overlapping."""
    context = model.context
    if isinstance(model, ParallelModel):
        return Protocol(
            method="whole", context=context, carry_over=False, eos=True, source=True,
            source_context=model.source_context, tokens=tokens, bytes=_counted_bytes(corpus),
        )  # fmt: skip
    if stride is not None and (context is None or not 1 <= stride <= context):
        limit = (
            "the model has an unlimited context and needs no windows"
            if context is None
            else f"it must be 1 to {context}"
        )
        raise ConfigError(f"stride {stride} is not possible: {limit}; leave it out")
    if context is not None:
        stride = stride or SlidingWindow.half_overlapping(context).stride
    gamma = model.fixed_gamma if isinstance(model, Branched) else None
    if corpus.offsets is not None:
        return Protocol(
            method="documents",
            context=context,
            stride=stride,
            carry_over=False,
            eos=corpus.closed,
            source=isinstance(model, Conditional),
            source_context=model.source_context if isinstance(model, Conditional) else None,
            tokens=tokens,
            bytes=_counted_bytes(corpus),
            gamma=gamma,
        )
    method: Literal["carried", "windows"] = "carried" if context is None else "windows"
    return Protocol(
        method=method,
        context=context,
        stride=stride,
        carry_over=context is None,
        eos=False,
        pieces=pieces if context is None else 1,
        tokens=tokens,
        bytes=_counted_bytes(corpus),
        gamma=gamma,
    )


def _counted_bytes(corpus: Corpus) -> str | None:
    if not corpus.closed:
        return None  # labels and images
    return "UTF-8" if corpus.offsets is None else "UTF-8, with one line end per document"
