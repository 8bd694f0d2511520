"""The families. To add one: write its file, name it here (CONTRIBUTING.md walks through it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.errors import ConfigError, nearest
from chainrule.models.attentive_conv import AttentiveConv
from chainrule.models.autoregressive_transformer import AutoregressiveTransformer
from chainrule.models.base import Model
from chainrule.models.bert import BERT
from chainrule.models.causal_conv import CausalConv
from chainrule.models.classifier import Classifier
from chainrule.models.elmo import ELMo
from chainrule.models.fat import FAT
from chainrule.models.finite_memory import FiniteMemory
from chainrule.models.gpt import GPT
from chainrule.models.hybrid import Hybrid
from chainrule.models.hybrid_language import HybridLanguage
from chainrule.models.hybrid_regressive import HybridRegressive
from chainrule.models.neighbours import Neighbours
from chainrule.models.ngram import NGram
from chainrule.models.nonautoregressive import NonAutoregressive
from chainrule.models.pixelcnn import LabelledPixelCNN, PixelCNN
from chainrule.models.reader import SpanReader
from chainrule.models.recurrent import Recurrent
from chainrule.models.self_regressive import SelfRegressive
from chainrule.models.seq2seq import Seq2Seq
from chainrule.models.t5 import T5
from chainrule.models.tagger import Tagger
from chainrule.models.transformer import Transformer
from chainrule.models.word2vec import Word2Vec

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
    "word2vec": Word2Vec,
    "elmo": ELMo,
    "bert": BERT,
    "t5": T5,
    "classifier": Classifier,
    "tagger": Tagger,
    "reader": SpanReader,
    "neighbours": Neighbours,
    "pixelcnn": PixelCNN,
    "labelled_pixelcnn": LabelledPixelCNN,
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
