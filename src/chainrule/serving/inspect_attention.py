"""Attention maps: self-attention of language models, and alignments of a target with its source."""

from __future__ import annotations

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from chainrule.decoding.translation import attention
from chainrule.errors import DecodingError
from chainrule.interface.base import DensityModel
from chainrule.interface.capabilities import AttentionHeads
from chainrule.interface.conditional import HasAttention
from chainrule.serving.inspect_text import TokenText, token_text
from chainrule.tasks import Run
from chainrule.tasks.text import TextRun
from chainrule.tasks.translation import TranslationRun
from chainrule.tokenizers import Tokenizer
from chainrule.types import Batch, Sequences

MOST_TOKENS = 160  # of either side: a larger map has no legible cells
BOS = TokenText(text="", special="bos")


class AttentionMap(BaseModel):
    """The weights of one head, or the mean of several."""

    layer: int | None = Field(None, description="from 1; None: the mean of all layers and heads")
    head: int | None = None
    weights: list[list[float]] = Field(description="a row for each predicted token, a column for each attended one")


class Attention(BaseModel):
    """What a model attends to when it predicts each token."""

    kind: str = Field(description="self: the tokens before; source: the source of a translation")
    predicted: list[TokenText]
    attended: list[TokenText]
    maps: list[AttentionMap] = Field(description="the mean first")


def has_attention(kind: type) -> bool:
    """Whether models of a class expose their attention weights."""
    return issubclass(kind, AttentionHeads | HasAttention)


@torch.inference_mode()
def attend(run: Run, text: str, target: str | None = None) -> Attention:
    """The attention of a language model over a text, or of a translation model over a source.

    Without a target, a translation model's own translation is taken.
    """
    if isinstance(run, TranslationRun):
        return _cross_attention(run, text, target)
    if not isinstance(run, TextRun) or not isinstance(run.model, AttentionHeads):
        raise DecodingError(
            "this model has no attention weights to show; choose a gpt, an attentive_conv or a transformer"
        )
    model, tokenizer = run.autoregressive, run.tokenizer
    [ids] = run.prompt_ids([text], allow_unknown=True)
    ids = ids[: min(MOST_TOKENS, model.context or MOST_TOKENS)]
    if not ids:
        raise DecodingError("the text has no tokens; give at least one")
    weights = run.model.attention_heads(Batch(Sequences.pack([ids], model.device)))[:, 0]
    tokens = _texts(tokenizer, ids)
    return Attention(kind="self", predicted=tokens, attended=[BOS, *tokens[:-1]], maps=_maps(weights))


def _cross_attention(run: TranslationRun, source: str, target: str | None) -> Attention:
    translator = run.translator()
    if not isinstance(run.model, HasAttention):
        raise DecodingError("this model has no cross-attention to show; choose a transformer, a seq2seq or a fat")
    if not target:
        target = _translated(run, source)
    source_ids, target_ids = translator.encode_source(source), translator.encode_target(target)
    if max(len(source_ids), len(target_ids)) > MOST_TOKENS:
        raise DecodingError(f"the texts have more than {MOST_TOKENS} tokens; give shorter ones")
    maps = _pair_maps(run.model, source_ids, target_ids)
    return Attention(
        kind="source",
        predicted=_texts(run.tokenizer, target_ids),
        attended=_texts(run.source_tokenizer, source_ids),
        maps=maps,
    )


def _translated(run: TranslationRun, source: str) -> str:
    [[best, *_]] = run.translate(source)
    if best.is_untranslated:
        raise DecodingError(f"the source is {best.finished}; give a sentence that the model can translate")
    return best.text


def _pair_maps(model: DensityModel, source: list[int], target: list[int]) -> list[AttentionMap]:
    if isinstance(model, AttentionHeads):
        batch = Batch(Sequences.pack([target], model.device), Sequences.pack([source], model.device))
        return _maps(model.attention_heads(batch)[:, 0])
    [mean] = attention(model, [source], [target])
    return [AttentionMap(weights=_rounded(mean))]


def _maps(weights: Tensor) -> list[AttentionMap]:
    """From (L, H, T, S): the mean, then every head."""
    layers, heads = weights.shape[:2]
    found = [AttentionMap(weights=_rounded(weights.mean((0, 1))))]
    for layer in range(layers):
        found += [
            AttentionMap(layer=layer + 1, head=head + 1, weights=_rounded(weights[layer, head]))
            for head in range(heads)
        ]
    return found


def _rounded(weights: Tensor) -> list[list[float]]:
    return [[round(value, 5) for value in row] for row in weights.tolist()]


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[TokenText]:
    known = [min(token, tokenizer.vocabulary - 1) for token in ids]
    return [token_text(tokenizer, token, piece) for token, piece in zip(ids, tokenizer.pieces(known), strict=True)]
