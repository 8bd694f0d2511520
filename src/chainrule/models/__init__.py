"""The families. To add one: write its file, name it here (CONTRIBUTING.md walks through it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.errors import ConfigError, nearest
from chainrule.models.attentive_conv import AttentiveConv
from chainrule.models.autoregressive_transformer import AutoregressiveTransformer
from chainrule.models.base import Model
from chainrule.models.causal_conv import CausalConv
from chainrule.models.fat import FAT
from chainrule.models.finite_memory import FiniteMemory
from chainrule.models.gpt import GPT
from chainrule.models.hybrid import Hybrid
from chainrule.models.hybrid_language import HybridLanguage
from chainrule.models.hybrid_regressive import HybridRegressive
from chainrule.models.ngram import NGram
from chainrule.models.nonautoregressive import NonAutoregressive
from chainrule.models.recurrent import Recurrent
from chainrule.models.self_regressive import SelfRegressive
from chainrule.models.seq2seq import Seq2Seq
from chainrule.models.transformer import Transformer

FAMILIES: dict[str, type[Model]] = {
    "ngram": NGram,
    "finite_memory": FiniteMemory,
    "recurrent": Recurrent,
    "self_regressive": SelfRegressive,
    "causal_conv": CausalConv,
    "attentive_conv": AttentiveConv,
    "gpt": GPT,
    "seq2seq": Seq2Seq,
    "transformer": Transformer,
    "autoregressive_transformer": AutoregressiveTransformer,
    "fat": FAT,
    "hybrid": Hybrid,
    "hybrid_language": HybridLanguage,
    "nonautoregressive": NonAutoregressive,
    "hybrid_regressive": HybridRegressive,
}


def family(name: str) -> type[Model]:
    """The class of a family."""
    if name not in FAMILIES:
        raise ConfigError(f"unknown family {name!r}; {nearest(name, FAMILIES)}")
    return FAMILIES[name]


def build(name: str, settings: Mapping[str, Any]) -> Model:
    """A new model of a family; what the settings leave open takes the family's defaults."""
    kind = family(name)
    return kind(kind.Config.parse(settings, where="model"))
