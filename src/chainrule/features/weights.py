"""From the names that Hugging Face transformers has for the parts of a BERT or a GPT-2 to ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.errors import RunError
from chainrule.features.folders import read_config, read_weights
from chainrule.nn.pretrained import ACTIVATIONS, GPT2, Bert, Reader, Shape

OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # of the norms, in BERT's first checkpoints


class Weights:
    """Tensors by their names, which may stand with or without that of the model in front of them."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix
        self.found = read_weights(folder)

    def __getitem__(self, name: str) -> Tensor:
        stem, _, kind = name.rpartition(".")
        for known in (name, f"{stem}.{OLD_NAMES.get(kind, kind)}"):
            for full in (self.prefix + known, known):
                if full in self.found:
                    return self.found[full]
        raise RunError(f"the weights in {str(self.folder)!r} have no {name!r}; the folder does not hold a whole model")

    def pair(self, theirs: str, ours: str) -> dict[str, Tensor]:
        """The weight and the bias of one part."""
        return {f"{ours}.{kind}": self[f"{theirs}.{kind}"] for kind in ("weight", "bias")}


class Kind(NamedTuple):
    """One kind of pretrained model."""

    reader: type[Reader]
    prefix: str
    settings: Mapping[str, str]  # our name of a setting -> theirs
    arithmetic: Mapping[str, Any]  # settings that change what is computed, with the one value that is computed here
    rename: Callable[[Weights, int], dict[str, Tensor]]  # weights of so many layers by our names


def read_pretrained(folder: Path) -> Reader:
    """The model in a folder, ready to read."""
    config = read_config(folder)
    name = str(config.get("model_type"))
    if name not in KINDS:
        raise RunError(
            f"{str(folder)!r} holds a model of type {name!r}; features are read from: {', '.join(sorted(KINDS))}"
        )
    kind = KINDS[name]
    for setting, usable in kind.arithmetic.items():
        if config.get(setting, usable) != usable:
            raise RunError(f"{str(folder)!r} sets {setting} to {config[setting]!r}; only {usable!r} can be read")
    reader = kind.reader(_shape(folder, config, kind.settings))
    weights = kind.rename(Weights(folder, kind.prefix), reader.shape.layers)
    for part, parameter in reader.state_dict().items():
        if weights[part].shape != parameter.shape:
            shapes = f"{tuple(weights[part].shape)} where config.json implies {tuple(parameter.shape)}"
            raise RunError(f"the weights in {str(folder)!r} do not fit their config: {part} has the shape {shapes}")
    reader.load_state_dict(weights)
    return reader.eval()


def _shape(folder: Path, config: Mapping[str, Any], settings: Mapping[str, str]) -> Shape:
    values: dict[str, Any] = {ours: config.get(theirs) for ours, theirs in settings.items()}
    values["inner"] = values["inner"] or 4 * (values["width"] or 0)  # GPT-2's may be left out
    for ours, value in values.items():
        if value is None:
            raise RunError(f"the config.json in {str(folder)!r} has no {settings[ours]!r}; it is not a whole one")
    shape = Shape(**values)
    if shape.activation not in ACTIVATIONS:
        raise RunError(
            f"{str(folder)!r} has the activation {shape.activation!r}; one of these can be read: "
            f"{', '.join(sorted(ACTIVATIONS))}"
        )
    return shape


def _bert(weights: Weights, layers: int) -> dict[str, Tensor]:
    ours = {
        "words": weights["embeddings.word_embeddings.weight"],
        "positions": weights["embeddings.position_embeddings.weight"],
        "texts": weights["embeddings.token_type_embeddings.weight"],
        **weights.pair("embeddings.LayerNorm", "norm"),
    }
    for number in range(layers):
        theirs, block = f"encoder.layer.{number}", f"blocks.{number}"
        for kind in ("weight", "bias"):
            three = [weights[f"{theirs}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            ours[f"{block}.query_key_value.{kind}"] = torch.cat(three)
        for part, name in BERT_BLOCK.items():
            ours |= weights.pair(f"{theirs}.{part}", f"{block}.{name}")
        for name in MATRICES:  # stored (out, in) there
            ours[f"{block}.{name}.weight"] = ours[f"{block}.{name}.weight"].t()
    return ours


def _gpt2(weights: Weights, layers: int) -> dict[str, Tensor]:
    ours = {"words": weights["wte.weight"], "positions": weights["wpe.weight"], **weights.pair("ln_f", "norm")}
    for number in range(layers):
        for part, name in GPT2_BLOCK.items():
            ours |= weights.pair(f"h.{number}.{part}", f"blocks.{number}.{name}")
    return ours


MATRICES = ("query_key_value", "attention_out", "mlp_in", "mlp_out")
BERT_BLOCK = {
    "attention.output.dense": "attention_out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp_in",
    "output.dense": "mlp_out",
    "output.LayerNorm": "mlp_norm",
}
GPT2_BLOCK = {
    "ln_1": "attention_norm",
    "attn.c_attn": "query_key_value",
    "attn.c_proj": "attention_out",
    "ln_2": "mlp_norm",
    "mlp.c_fc": "mlp_in",
    "mlp.c_proj": "mlp_out",
}

KINDS: Mapping[str, Kind] = {
    "bert": Kind(
        Bert,
        prefix="bert.",
        settings={
            "vocabulary": "vocab_size",
            "context": "max_position_embeddings",
            "width": "hidden_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "inner": "intermediate_size",
            "activation": "hidden_act",
            "epsilon": "layer_norm_eps",
            "texts": "type_vocab_size",
        },
        arithmetic={"position_embedding_type": "absolute", "is_decoder": False},
        rename=_bert,
    ),
    "gpt2": Kind(
        GPT2,
        prefix="transformer.",
        settings={
            "vocabulary": "vocab_size",
            "context": "n_positions",
            "width": "n_embd",
            "layers": "n_layer",
            "heads": "n_head",
            "inner": "n_inner",
            "activation": "activation_function",
            "epsilon": "layer_norm_epsilon",
        },
        arithmetic={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        rename=_gpt2,
    ),
}
