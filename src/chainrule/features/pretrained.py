"""A pretrained model as the source encoder of another model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from chainrule.data.cache import fingerprint as cache_key
from chainrule.errors import ConfigError, RunError
from chainrule.features.folders import folder_fingerprint, read_config
from chainrule.features.pooling import TokenAligner, pack_windows, pool_windows
from chainrule.features.stored import StoredFeatures, TokenRow, store_features
from chainrule.features.weights import read_pretrained
from chainrule.nn.pretrained_encoders import BertEncoder, PretrainedEncoder
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.types import Progress, Sequences

BERT_FIRST = "[CLS]"


class Pretrained(nn.Module):
    """The last hidden vectors of a BERT or a GPT-2, one for each token of a source.

        m_1 … m_N = model(first, s_1, …, s_N), without that of the first token

    The tokens are those of the pretrained model's own tokenizer, preceded by [CLS] or the begin-of-text token. An id
    outside its vocabulary (our BOS) is replaced by that token. If the source has another tokenizer (`use_tokenizer`),
    its text is tokenized again, and the vectors are pooled onto its tokens (`features.pooling`). A BERT is
    bidirectional, a GPT-2 causal; the target is never an input.

    If frozen, the weights are not parameters: they are neither optimized nor saved in checkpoints. They stay in their
    folder, and `fingerprint` identifies them.
    """

    def __init__(
        self,
        encoder: PretrainedEncoder,
        *,
        tokenizer: HuggingFace,
        first: int,
        fingerprint: str,
        fine_tune: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.tokenizer = tokenizer  # its vocabulary is at most that of the model
        self.vocabulary = tokenizer.vocabulary  # of the sources
        self.aligner: TokenAligner | None = None  # of sources with another tokenizer
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
            tokenizer=tokenizer,
            first=_first_token(path, encoder, tokenizer),
            fingerprint=folder_fingerprint(path),
            fine_tune=fine_tune,
        )

    @classmethod
    def open_matching(
        cls, folder: Path | str, *, vocabulary: int, fine_tune: bool = False, fingerprint: str | None = None
    ) -> Self:
        """`open` for sources of a vocabulary, with a check that the model is that of the fingerprint."""
        opened = cls.open(folder, fine_tune=fine_tune)
        opened.vocabulary = vocabulary
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
    def context(self) -> int | None:
        """Maximum source length: all positions but that of the first token; None with another tokenizer.

        Then a source that is too long for the model is read in parts.
        """
        return self._positions if self.aligner is None else None

    @property
    def _positions(self) -> int:
        return self.encoder.shape.context - 1

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Sources will be ids of this tokenizer."""
        same = isinstance(tokenizer, HuggingFace) and tokenizer.to_json() == self.tokenizer.to_json()
        if self.separator is not None and not same:
            raise ConfigError(
                "pairs of texts are separated by a token of the pretrained model, so its own tokenizer must be used; "
                "give --tokenizer huggingface:PATH with the folder of model.features"
            )
        self.aligner = None if same else TokenAligner(self.tokenizer, tokenizer)

    def precompute(
        self, sources: Iterable[TokenRow], *, cache: Path | None = None, progress: Progress | None = None
    ) -> StoredFeatures:
        """Compute the vectors of sources, or load them from the cache; `forward` uses them from then on."""
        if self.fine_tune:
            raise RunError("vectors of a fine-tuned model cannot be precomputed; set fine_tune=false")
        identity = self.fingerprint
        if self.separator is not None:
            identity += f" with token types after {self.separator}"
        if self.aligner is not None:
            identity = cache_key(identity, self.aligner.other.kind, self.aligner.other.to_json())
        self.stored = store_features(self, identity, self.width, sources, cache=cache, progress=progress)
        return self.stored

    def forward(self, source: Sequences) -> Tensor:
        """(B, S) to (B, S, D); undefined at padding."""
        known = None if self.stored is None else self.stored.find(source)
        if known is not None:
            return known.to(self.encoder.positions)
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            if self.aligner is not None:
                return self._pooled(source, self.aligner)
            if self.vocabulary != self.tokenizer.vocabulary:
                raise ConfigError(
                    f"the source has a vocabulary of {self.vocabulary} tokens, and the pretrained model one of "
                    f"{self.tokenizer.vocabulary}; name the tokenizer of the source with `use_tokenizer`"
                )
            ids = source.ids.masked_fill(~source.mask | (source.ids >= self.vocabulary), self.first)
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

    def _pooled(self, source: Sequences, aligner: TokenAligner) -> Tensor:
        rows = zip(source.ids.tolist(), source.lengths.tolist(), strict=True)
        alignments = [aligner.align(tuple(ids[:length])) for ids, length in rows]
        windows = Sequences.pack(pack_windows(alignments, self.first, self._positions), source.ids.device)
        vectors = self.encoder(windows.ids.masked_fill(~windows.mask, self.first), windows.lengths)
        return pool_windows(alignments, vectors, self._positions, source.ids.shape[1])


def use_tokenizer(model: nn.Module, read: Callable[[], Tokenizer]) -> None:
    """Name the tokenizer of the sources, which `read` returns, to every pretrained part of a model."""
    for part in model.modules():
        if isinstance(part, Pretrained):
            part.use_tokenizer(read())


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
