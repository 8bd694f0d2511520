"""A pretrained model as a part of another: it gives a vector for each token of a source."""

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

    The tokens are the pretrained model's own pieces; before them stands what it expects at the start of a text, [CLS]
    or the begin of text, and an id that it does not know (our BOS) is read as that, too. A BERT sees a source in both
    directions, a GPT-2 up to each token: neither ever sees a target, which is not given to it.

    Frozen, its weights are no parameters: no optimizer changes them, no gradient is computed for them, and no
    checkpoint holds them. They stay in their folder, and `fingerprint` says which they were.
    """

    def __init__(
        self, encoder: PretrainedEncoder, *, pieces: int, first: int, fingerprint: str, fine_tune: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pieces = pieces  # ids of the tokenizer, at most as many as the model has
        self.first = first
        self.fingerprint = fingerprint
        self.fine_tune = fine_tune
        self.stored: StoredFeatures | None = None  # vectors computed before, which is faster and nothing else
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
                f"{encoder.shape.vocabulary}; they do not belong together"
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
        """The same for a model that was trained with one: it must read these tokens, and be the one that it was."""
        opened = cls.open(folder, fine_tune=fine_tune)
        if opened.pieces != vocabulary:
            raise ConfigError(
                f"what is to be read has a vocabulary of {vocabulary} tokens, and the model in {str(folder)!r} one of "
                f"{opened.pieces}; it reads its own pieces, so give it the tokenizer huggingface:{folder}"
            )
        if fingerprint is not None and fingerprint != opened.fingerprint and not fine_tune:
            raise RunError(
                f"the pretrained model in {str(folder)!r} is not the one that this model was trained with; put that "
                "one back"
            )
        return opened

    @property
    def width(self) -> int:
        return self.encoder.shape.width

    @property
    def context(self) -> int:
        """The longest source: all but one of the positions."""
        return self.encoder.shape.context - 1

    def precompute(
        self, sources: Iterable[TokenRow], *, cache: Path | None = None, progress: Progress | None = None
    ) -> StoredFeatures:
        """Compute the vectors of sources, or find them on disk; from now on they are taken from there."""
        if self.fine_tune:
            raise RunError("a pretrained model that is being trained gives other vectors after each step; freeze it")
        self.stored = store_features(self, self.fingerprint, self.width, sources, cache=cache, progress=progress)
        return self.stored

    def forward(self, source: Sequences) -> Tensor:
        """(B, S) to (B, S, D); vectors past a length hold nothing in particular."""
        known = None if self.stored is None else self.stored.find(source)
        if known is not None:
            return known.to(self.encoder.positions)
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            ids = source.ids.masked_fill(~source.mask | (source.ids >= self.pieces), self.first)
            first = ids.new_full((len(ids), 1), self.first)
            vectors: Tensor = self.encoder(torch.cat([first, ids], dim=1), source.lengths + 1)
            return vectors[:, 1:]


def freeze(module: nn.Module) -> None:
    """Turn every parameter into a buffer that no checkpoint holds."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach(), persistent=False)


def _first_token(folder: Path, encoder: PretrainedEncoder, tokenizer: HuggingFace) -> int:
    if not isinstance(encoder, BertEncoder):
        begin: Any = read_config(folder).get("bos_token_id")
        # GPT-2's own 50256 is left standing in the settings of models with fewer tokens.
        return int(begin) if begin is not None and begin < encoder.shape.vocabulary else tokenizer.eos
    for token in tokenizer.description.get("added_tokens", []):
        if token["content"] == BERT_FIRST:
            return int(token["id"])
    raise RunError(f"the tokenizer.json in {str(folder)!r} has no special token {BERT_FIRST}; it is not one of a BERT")
