"""A tiny model of every family, small enough to enumerate its sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from chainrule.families import build, composites, family, single_families
from chainrule.interface.base import AutoregressiveModel, CountModel, Model
from chainrule.interface.capabilities import Embedder
from chainrule.interface.conditional import Conditional, ParallelModel
from chainrule.types import Sequences

VOCABULARY = 5
SOURCE_VOCABULARY = 6  # differs from VOCABULARY, so that the two cannot be confused

_TRANSFORMER = {"encoder_layers": 2, "decoder_layers": 2, "width": 8, "heads": 2, "context": 16}
_FAT = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "width": 8,
    "heads": 2,
    "key_width": 3,
    "max_distance": 2,
    "context": 16,
}
_HYBRID = {"layers": 1, "width": 8, "heads": 2}
_PIXELS = {"layers": 3, "width": 6, "first_kernel": 3}
_VIT = {"patch": 2, "layers": 2, "width": 8, "heads": 2}
_CLASSIFIER = {"embedding": 5, "heads": 2, "attention_width": 3, "hidden": 4}
_PAIRS = {"embedding": 5, "hidden": 4, "labels": tuple("abcdefgh")}
_TAGGER = {"width": 6, "word_width": 3, "char_width": 4, "char_filters": 5, "char_kernel": 3, "tag_width": 3}

TINY: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ngram": {"": {"order": 3}},
    "finite_memory": {
        "markov": {"memory": 1, "layers": 1, "width": 6},
        "several": {"memory": 3, "layers": 2, "width": 6},
        "tied": {"memory": 3, "layers": 2, "width": 6, "tied": True},
    },
    "recurrent": {
        cell: {"cell": cell, "layers": 2, "width": 6}
        for cell in ("rnn", "lstm", "lstm_peephole", "lstm_full_peephole", "lstm_coupled", "gru", "gru_input_reset")
    },
    "self_regressive": {
        "whole vocabulary": {"width": 6},
        "likeliest words": {"width": 6, "candidates": 2},
    },
    "causal_conv": {
        name: {"layers": 3, "width": 6, "kernel": 3, "cycle": 2, "tied": name == "tied"} for name in ("untied", "tied")
    },
    "attentive_conv": {
        name: {"layers": 2, "width": 8, "kernel": 3, "heads": 2, "context": 16, "tied": name == "tied"}
        for name in ("untied", "tied")
    },
    "gpt": {
        layout: {"layout": layout, "layers": 2, "width": 8, "heads": 2, "context": 16} for layout in ("modern", "gpt2")
    },
    "seq2seq": {
        "attention": {"layers": 2, "width": 6},
        "one direction": {"layers": 2, "width": 6, "bidirectional": False, "cell": "gru", "tied": False},
        "bahdanau": {"layers": 2, "width": 6, "attention": "bahdanau"},
        "plain": {"layers": 2, "width": 6, "attention": "none"},
        "plain both ways": {"layers": 1, "width": 6, "attention": "none", "bidirectional": True},
        "shared": {"layers": 1, "width": 6, "shared_embeddings": True, "source_vocabulary": VOCABULARY},
    },
    "transformer": {
        "added": _TRANSFORMER,
        "rotary": {**_TRANSFORMER, "positions": "rotary", "tied": False},
        "concatenated": {**_TRANSFORMER, "positions": "concatenated"},
        "shared": {**_TRANSFORMER, "shared_embeddings": True, "source_vocabulary": VOCABULARY},
    },
    "t5": {"": {**_TRANSFORMER, "sentinels": 2, "source_vocabulary": VOCABULARY}},
    "autoregressive_transformer": {
        "": {"layers": 2, "width": 6, "attention_width": 5},
        "tied": {"layers": 1, "width": 6, "attention_width": 5, "tied": True},
    },
    "fat": {
        "left to right": _FAT,
        "right to left": {**_FAT, "direction": "right_to_left", "tied": False},
        "tanh weights": {**_FAT, "attention_weights": "tanh"},
        "shared": {**_FAT, "shared_embeddings": True, "source_vocabulary": VOCABULARY},
    },
    "hybrid": {
        "gated": _HYBRID,
        "learned": {**_HYBRID, "gate": "learned", "layers": 2, "tied": False},
        "fixed": {**_HYBRID, "gate": "fixed", "gamma": 0.7, "min_mass": 0.0},
        "short plan": {**_HYBRID, "length_ratio": 0.5, "length_margin": 1},
        "shared": {**_HYBRID, "shared_embeddings": True, "source_vocabulary": VOCABULARY},
    },
    "classifier": {
        "words": _CLASSIFIER,
        "attentive_conv": {**_CLASSIFIER, "encoder": "attentive_conv", "embedding": 8, "encoder_context": 16},
        "no mask": {
            **_CLASSIFIER,
            "encoder": "attentive_conv",
            "encoder_mask": "none",
            "embedding": 8,
            "encoder_context": 16,
        },
    },
    "pair_classifier": {
        "words": {**_PAIRS, "separator": 2},
        "no matches": {**_PAIRS, "match": False, "encoder": "attentive_conv", "embedding": 8, "encoder_context": 16},
    },
    "tagger": {
        "first order": {**_TAGGER, "words": 3},
        "recurrent": {**_TAGGER, "order": "recurrent", "layers": 2},
    },
    "reader": {
        "words": {"embedding": 5, "width": 6, "max_distance": 2},
        "attentive_conv": {"encoder": "attentive_conv", "embedding": 8, "width": 6, "encoder_context": 16},
    },
    "hybrid_language": {
        "gated": {**_HYBRID, "chunk": 4, "window": 3},
        "learned": {**_HYBRID, "gate": "learned", "layers": 2, "recurrent_layers": 2, "kernel": 1, "chunk": 1},
        "fixed": {**_HYBRID, "gate": "fixed", "gamma": 0.7, "chunk": 5, "tied": False},
        "several layers": {**_HYBRID, "layers": 3, "parallel_layers": 2, "chunk": 4, "window": 8},
    },
    "neighbours": {
        "grey": {"shape": (1, 4, 4), "neighbours": 4},
        "coloured": {"shape": (3, 3, 2), "neighbours": 2},
    },
    "pixelcnn": {
        "grey": {**_PIXELS, "shape": (1, 4, 4)},
        "coloured": {**_PIXELS, "shape": (3, 3, 2)},
        "wide": {**_PIXELS, "shape": (1, 2, 8), "kernel": 5},
    },
    "vit": {
        "grey": {**_VIT, "shape": (1, 4, 4)},
        "coloured": {**_VIT, "shape": (3, 3, 2)},
    },
    "image_classifier": {
        "": {
            "shape": (1, 4, 4),
            "grid": 2,
            "hidden": 5,
            "encoder_run": "pixelcnn",
            "embedder": {**_PIXELS, "family": "pixelcnn", "shape": (1, 4, 4)},
        }
    },
    "labelled_pixelcnn": {"": {**_PIXELS, "shape": (1, 5, 3)}},
}
"""family -> variant -> settings; a variant is a choice that changes the equations."""

_SHORT = {"encoder_layers": 2, "decoder_layers": 2, "width": 8, "heads": 2, "context": 12}

PARALLEL: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "nonautoregressive": {
        "ctc": _SHORT,
        "three frames": {**_SHORT, "frames_per_token": 3, "positions": "rotary", "tied": False},
        "masked": {**_SHORT, "output": "masked"},
        "masked, shared": {
            **_SHORT, "output": "masked", "shared_embeddings": True, "source_vocabulary": VOCABULARY
        },
    },
    "hybrid_regressive": {
        "every second": _SHORT,
        "every third": {**_SHORT, "chunk_size": 3, "positions": "rotary"},
    },
}  # fmt: skip
"""The same for families that generate all tokens in parallel."""

EMBEDDERS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "word2vec": {"": {"width": 6}},
    "elmo": {
        "mix": {"layers": 2, "width": 6},
        "concatenate": {"layers": 2, "width": 6, "vectors": "concatenate"},
    },
    "bert": {"": {"layers": 2, "width": 8, "heads": 2, "context": 8}},
}
"""The same for families that embed the tokens of a text and predict no sequences."""

_PARTS = (
    {"family": "ngram", "order": 3},
    {"family": "gpt", "layers": 1, "width": 8, "heads": 2, "context": 5},
    {"family": "recurrent", "layers": 1, "width": 6},
)

_CHUNKS = {"family": "hybrid_language", **_HYBRID, "layers": 2, "chunk": 4, "window": 3}

_TRANSLATORS = (
    {"family": "seq2seq", "layers": 1, "width": 6},
    {"family": "transformer", **_SHORT, "context": 40},
)

COMPOSED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mixture": {
        **{gate: {"gate": gate, "parts": _PARTS} for gate in ("fixed", "learned", "context")},
        "nested": {"parts": ({"family": "ensemble", "parts": _PARTS}, _PARTS[0])},
        "chunks and caches": {"parts": (_PARTS[2], _CHUNKS, {"family": "neural_cache", "model": _PARTS[2], "size": 3})},
    },
    "ensemble": {gate: {"gate": gate, "parts": _PARTS} for gate in ("fixed", "learned", "context")},
    "conditional_mixture": {gate: {"gate": gate, "parts": _TRANSLATORS} for gate in ("learned", "context")},
    "conditional_ensemble": {"context": {"parts": _TRANSLATORS}},
    "reverse": {"": {"model": {"family": "gpt", **TINY["gpt"]["modern"]}}},
    "sliding": {
        "half": {"model": _PARTS[1]},
        "no overlap": {"model": _PARTS[1], "overlap": 0},
        "all but one": {"model": _PARTS[1], "overlap": 4},
    },
    "neural_cache": {
        "short": {"model": _PARTS[2], "size": 3},
        "long": {"model": _PARTS[2], "size": 40},
        "of two stages": {"model": {"family": "self_regressive", "width": 6}, "size": 9},
        "of branches": {"model": _CHUNKS, "size": 3},
    },
}
"""composite -> variant -> settings. The context is short, so that windows slide within a check."""


def variants() -> list[tuple[str, str]]:
    """Every (family, variant); a family without a tiny form is an error."""
    return [(name, variant) for name in _families(AutoregressiveModel) for variant in TINY[name]]


def parallel_variants() -> list[tuple[str, str]]:
    """Every (family, variant) of those that generate all tokens in parallel."""
    return [(name, variant) for name in _families(ParallelModel) for variant in PARALLEL[name]]


def _families(kind: type[Model] | type[Embedder]) -> list[str]:
    return [name for name, found in single_families().items() if issubclass(found, kind)]


def embedder_variants() -> list[tuple[str, str]]:
    """Every (family, variant) of those that embed the tokens of a text."""
    return [(name, variant) for name in _families(Embedder) for variant in {**TINY, **EMBEDDERS}[name]]


def composed_variants() -> list[tuple[str, str]]:
    """Every (composite, variant)."""
    return [(name, variant) for name in composites() for variant in COMPOSED[name]]


def tiny_model(name: str, variant: str = "", *, seed: int = 0, vocabulary: int = VOCABULARY) -> AutoregressiveModel:
    """A model with random weights or counts; call it under a default dtype of float64 for exact checks."""
    model = _random(name, (COMPOSED if name in COMPOSED else TINY)[name], variant, seed, vocabulary)
    assert isinstance(model, AutoregressiveModel)
    return model


def tiny_parallel(name: str, variant: str = "", *, seed: int = 0, vocabulary: int = VOCABULARY) -> ParallelModel:
    """The same for a family that generates all tokens in parallel."""
    model = _random(name, PARALLEL[name], variant, seed, vocabulary)
    assert isinstance(model, ParallelModel)
    return model


def tiny_embedder(name: str, variant: str = "", *, seed: int = 0, vocabulary: int = VOCABULARY) -> Model:
    """The same for a family that embeds the tokens of a text."""
    return _random(name, {**TINY, **EMBEDDERS}[name], variant, seed, vocabulary)


def _random(name: str, forms: Mapping[str, Mapping[str, Any]], variant: str, seed: int, vocabulary: int) -> Model:
    torch.manual_seed(seed)
    sizes = {"vocabulary": vocabulary}
    if issubclass(family(name), Conditional):
        sizes["source_vocabulary"] = SOURCE_VOCABULARY
    model = build(name, {**sizes, **forms[variant or next(iter(forms))]})
    for part in model.modules():
        if isinstance(part, CountModel):
            part.observe(Sequences.full(torch.randint(vocabulary, (3, 40))))
            part.estimate()
    with torch.no_grad():
        for parameter in model.parameters():  # away from zero and from symmetry, so that every path is exercised
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()
