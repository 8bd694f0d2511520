"""A pretrained model as the source encoder of another model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from chainrule.errors import ConfigError, RunError
from chainrule.features.folders import folder_fingerprint, read_config
from chainrule.features.stored import StoredFeatures, TokenRow, store_features
from chainrule.features.weights import read_pretrained
from chainrule.nn.pretrained_encoders import BertEncoder, PretrainedEncoder
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.types import Progress, Sequences

BERT_FIRST = "[CLS]"


class Pretrained(nn.Module):
    """The last hidden vectors of a BERT or a GPT-2, one for each token of a source.

        m_1 … m_N = model(first, s_1, …, s_N), without that of the first token

    The tokens are those of the pretrained model's own tokenizer, preceded by [CLS] or the begin-of-text token. An id
    outside its vocabulary (our BOS) is replaced by that token. A BERT is bidirectional, a GPT-2 causal; the target is
    never an input.

    If frozen, the weights are not parameters: they are neither optimized nor saved in checkpoints. They stay in their
    folder, and `fingerprint` identifies them.
    """

    def __init__(
        self, encoder: PretrainedEncoder, *, pieces: int, first: int, fingerprint: str, fine_tune: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pieces = pieces  # vocabulary of the tokenizer, at most that of the model
        self.first = first
        self.fingerprint = fingerprint
        self.fine_tune = fine_tune
        self.separator: int | None = None  # tokens after the first of these have the second token type of a BERT
        self.stored: StoredFeatures | None = None  # precomputed vectors
        if not fine_tune:
            freeze(encoder)

    @classmethod
    def open(cls, folder: Path | str, *, fine_tune: bool = False) -> Self:
        """Read a folder that holds config.json, model.safetensors and tokenizer.json."""
        path = Path(folder)
        encoder = read_pretrained(path)
        tokenizer = HuggingFace.read(path / "tokenizer.json")
        if tokenizer.vocabulary > encoder.shape.vocabulary:
            raise RunError(
                f"the tokenizer in {str(folder)!r} has {tokenizer.vocabulary} ids and the model "
                f"{encoder.shape.vocabulary}; use the tokenizer.json that belongs to the model"
            )
        return cls(
            encoder,
            pieces=tokenizer.vocabulary,
            first=_first_token(path, encoder, tokenizer),
            fingerprint=folder_fingerprint(path),
            fine_tune=fine_tune,
        )

    @classmethod
    def open_matching(
        cls, folder: Path | str, *, vocabulary: int, fine_tune: bool = False, fingerprint: str | None = None
    ) -> Self:
        """`open`, with checks that the vocabulary and the fingerprint match those of the model that uses it."""
        opened = cls.open(folder, fine_tune=fine_tune)
        if opened.pieces != vocabulary:
            raise ConfigError(
                f"the source has a vocabulary of {vocabulary} tokens, and the model in {str(folder)!r} one of "
                f"{opened.pieces}; use the tokenizer of the pretrained model, huggingface:{folder}"
            )
        if fingerprint is not None and fingerprint != opened.fingerprint and not fine_tune:
            raise RunError(
                f"the pretrained model in {str(folder)!r} is not the one that this model was trained with; "
                "restore the original"
            )
        return opened

    def train_last(self, blocks: int) -> None:
        """Fix all weights but those of the last blocks."""
        self.encoder.requires_grad_(False)
        for block in self.encoder.last_blocks(blocks):
            block.requires_grad_(True)

    @property
    def width(self) -> int:
        return self.encoder.shape.width

    @property
    def context(self) -> int:
        """Maximum source length: all positions but that of the first token."""
        return self.encoder.shape.context - 1

    def precompute(
        self, sources: Iterable[TokenRow], *, cache: Path | None = None, progress: Progress | None = None
    ) -> StoredFeatures:
        """Compute the vectors of sources, or load them from the cache; `forward` uses them from then on."""
        if self.fine_tune:
            raise RunError("vectors of a fine-tuned model cannot be precomputed; set fine_tune=false")
        kind = "" if self.separator is None else f" with token types after {self.separator}"
        self.stored = store_features(self, self.fingerprint + kind, self.width, sources, cache=cache, progress=progress)
        return self.stored

    def forward(self, source: Sequences) -> Tensor:
        """(B, S) to (B, S, D); undefined at padding."""
        known = None if self.stored is None else self.stored.find(source)
        if known is not None:
            return known.to(self.encoder.positions)
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            ids = source.ids.masked_fill(~source.mask | (source.ids >= self.pieces), self.first)
            first = ids.new_full((len(ids), 1), self.first)
            inputs = torch.cat([first, ids], dim=1)
            vectors: Tensor = self.encoder(inputs, source.lengths + 1, *self._token_types(inputs))
            return vectors[:, 1:]

    def _token_types(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """The token types (B, S) of a pair of texts, if there is a separator and the model has them."""
        if self.separator is None or not isinstance(self.encoder, BertEncoder):
            return ()
        edges = (inputs == self.separator).long()
        return ((edges.cumsum(1) - edges > 0).long(),)


def freeze(module: nn.Module) -> None:
    """Replace every parameter by a buffer that is not saved in checkpoints."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach(), persistent=False)


def _first_token(folder: Path, encoder: PretrainedEncoder, tokenizer: HuggingFace) -> int:
    if not isinstance(encoder, BertEncoder):
        begin: Any = read_config(folder).get("bos_token_id")
        # Configs of models with fewer tokens often still have the 50256 of GPT-2.
        return int(begin) if begin is not None and begin < encoder.shape.vocabulary else tokenizer.eos
    for token in tokenizer.description.get("added_tokens", []):
        if token["content"] == BERT_FIRST:
            return int(token["id"])
    raise RunError(f"the tokenizer.json in {str(folder)!r} has no special token {BERT_FIRST}; is it that of a BERT?")
