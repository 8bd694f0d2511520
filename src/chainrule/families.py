"""The registry of families: the one list of what can be trained, loaded and composed.

A family's module is imported when it is first asked for, so that listing the names costs nothing. To add a family,
write its file and name it here (CONTRIBUTING.md walks through it).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, final

from chainrule.errors import ConfigError, nearest

if TYPE_CHECKING:  # names are looked up without torch
    from chainrule.interface.base import Model

Entry = TypeVar("Entry")


@final
class Registry(Mapping[str, type[Entry]]):
    """Names to classes that are given as "module:Class" and imported on first use."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def __getitem__(self, name: str) -> type[Entry]:
        module, _, kind = self._homes[name].partition(":")
        found: type[Entry] = getattr(importlib.import_module(f"chainrule.{module}"), kind)
        return found

    def names(self, package: str) -> list[str]:
        """The names whose classes are in a package, without importing them."""
        return [name for name, home in self._homes.items() if home.startswith(f"{package}.")]

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


FAMILIES: Registry[Model] = Registry(
    {
        "ngram": "models.ngram:NGram",
        "finite_memory": "models.finite_memory:FiniteMemory",
        "recurrent": "models.recurrent:Recurrent",
        "self_regressive": "models.self_regressive:SelfRegressive",
        "causal_conv": "models.causal_conv:CausalConv",
        "attentive_conv": "models.attentive_conv:AttentiveConv",
        "gpt": "models.gpt:GPT",
        "seq2seq": "models.seq2seq:Seq2Seq",
        "transformer": "models.transformer:Transformer",
        "autoregressive_transformer": "models.autoregressive_transformer:AutoregressiveTransformer",
        "fat": "models.fat:FAT",
        "hybrid": "models.hybrid:Hybrid",
        "hybrid_language": "models.hybrid_language:HybridLanguage",
        "nonautoregressive": "models.nonautoregressive:NonAutoregressive",
        "hybrid_regressive": "models.hybrid_regressive:HybridRegressive",
        "word2vec": "models.word2vec:Word2Vec",
        "elmo": "models.elmo:ELMo",
        "bert": "models.bert:BERT",
        "t5": "models.t5:T5",
        "classifier": "models.classifier:Classifier",
        "pair_classifier": "models.pair_classifier:PairClassifier",
        "tagger": "models.tagger:Tagger",
        "reader": "models.reader:SpanReader",
        "vit": "models.vit:ViT",
        "image_classifier": "models.image_classifier:ImageClassifier",
        "neighbours": "models.neighbours:Neighbours",
        "pixelcnn": "models.pixelcnn:PixelCNN",
        "labelled_pixelcnn": "models.pixelcnn:LabelledPixelCNN",
        # composed of trained runs
        "mixture": "compose.mixture:Mixture",
        "ensemble": "compose.ensemble:Ensemble",
        "conditional_mixture": "compose.conditional:ConditionalMixture",
        "conditional_ensemble": "compose.conditional:ConditionalEnsemble",
        "reverse": "compose.reverse:Reverse",
        "sliding": "compose.sliding:Sliding",
        "neural_cache": "compose.neural_cache:NeuralCache",
    }
)


def require_family(name: str) -> None:
    """Raise ConfigError for an unknown name, with the nearest known one."""
    if name not in FAMILIES:
        raise ConfigError(f"unknown family {name!r}; {nearest(name, FAMILIES.names('models'))}")


def family(name: str) -> type[Model]:
    """The class of a family; an unknown name is a ConfigError that names the nearest known one."""
    require_family(name)
    return FAMILIES[name]


def build(name: str, settings: Mapping[str, Any], *, where: str = "model") -> Model:
    """A new model of a family; settings that are not given take the family's defaults."""
    kind = family(name)
    return kind(kind.Config.parse(settings, where=where))


def single_families() -> dict[str, type[Model]]:
    """All families that are not composed of other models."""
    return {name: FAMILIES[name] for name in FAMILIES.names("models")}


def composites() -> dict[str, type[Model]]:
    """All families that are composed of other models."""
    return {name: FAMILIES[name] for name in FAMILIES.names("compose")}
