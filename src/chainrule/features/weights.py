"""Pretrained BERT and GPT-2 checkpoints of Hugging Face transformers, with parameters renamed to ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.errors import RunError
from chainrule.features.folders import load_weights, read_config, read_weights, require_settings
from chainrule.nn.pretrained_encoders import ACTIVATIONS, BertEncoder, EncoderShape, GPT2Encoder, PretrainedEncoder

OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # layer norms in the first BERT checkpoints


class CheckpointTensors:
    """The tensors of a checkpoint by name, with or without the prefix of the base model."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix
        self.found = read_weights(folder)

    def __getitem__(self, name: str) -> Tensor:
        stem, _, kind = name.rpartition(".")
        for known in (name, f"{stem}.{OLD_NAMES.get(kind, kind)}"):
            for full in (self.prefix + known, known):
                if full in self.found:
                    return self.found[full]
        raise RunError(f"the weights in {str(self.folder)!r} have no {name!r}; the checkpoint is incomplete")

    def pair(self, theirs: str, ours: str) -> dict[str, Tensor]:
        """The weight and the bias of one module, renamed."""
        return {f"{ours}.{kind}": self[f"{theirs}.{kind}"] for kind in ("weight", "bias")}


class PretrainedFormat(NamedTuple):
    """One kind of pretrained model."""

    encoder: type[PretrainedEncoder]
    prefix: str
    settings: Mapping[str, str]  # our name of a setting -> theirs
    supported: Mapping[str, tuple[Any, ...]]  # settings that change the computation, with the supported values
    rename: Callable[[CheckpointTensors, int], dict[str, Tensor]]  # parameters by our names, given the layer count


def read_pretrained(folder: Path) -> PretrainedEncoder:
    """The pretrained model in a folder, in evaluation mode."""
    config = read_config(folder)
    name = str(config.get("model_type"))
    if name not in FORMATS:
        raise RunError(
            f"{str(folder)!r} holds a model of type {name!r}; supported types are: {', '.join(sorted(FORMATS))}"
        )
    kind = FORMATS[name]
    require_settings(folder, config, kind.supported)
    encoder = kind.encoder(_shape(folder, config, kind.settings))
    load_weights(encoder, kind.rename(CheckpointTensors(folder, kind.prefix), encoder.shape.layers), folder)
    return encoder.eval()


def _shape(folder: Path, config: Mapping[str, Any], settings: Mapping[str, str]) -> EncoderShape:
    values: dict[str, Any] = {ours: config.get(theirs) for ours, theirs in settings.items()}
    values["inner"] = values["inner"] or 4 * (values["width"] or 0)  # may be missing for GPT-2
    for ours, value in values.items():
        if value is None:
            raise RunError(f"the config.json in {str(folder)!r} has no {settings[ours]!r}; it is incomplete")
    shape = EncoderShape(**values)
    if shape.activation not in ACTIVATIONS:
        raise RunError(
            f"{str(folder)!r} has the activation {shape.activation!r}; supported are: {', '.join(sorted(ACTIVATIONS))}"
        )
    return shape


def _bert(weights: CheckpointTensors, layers: int) -> dict[str, Tensor]:
    ours = {
        "words": weights["embeddings.word_embeddings.weight"],
        "positions": weights["embeddings.position_embeddings.weight"],
        "token_types": weights["embeddings.token_type_embeddings.weight"],
        **weights.pair("embeddings.LayerNorm", "norm"),
    }
    for number in range(layers):
        theirs, block = f"encoder.layer.{number}", f"blocks.{number}"
        for kind in ("weight", "bias"):
            three = [weights[f"{theirs}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            ours[f"{block}.query_key_value.{kind}"] = torch.cat(three)
        for part, name in BERT_BLOCK.items():
            ours |= weights.pair(f"{theirs}.{part}", f"{block}.{name}")
    return ours


def _gpt2(weights: CheckpointTensors, layers: int) -> dict[str, Tensor]:
    ours = {"words": weights["wte.weight"], "positions": weights["wpe.weight"], **weights.pair("ln_f", "norm")}
    for number in range(layers):
        for part, name in GPT2_BLOCK.items():
            ours |= weights.pair(f"h.{number}.{part}", f"blocks.{number}.{name}")
        for name in MATRICES:  # (in, out) there
            ours[f"blocks.{number}.{name}.weight"] = ours[f"blocks.{number}.{name}.weight"].t()
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

FORMATS: Mapping[str, PretrainedFormat] = {
    "bert": PretrainedFormat(
        BertEncoder,
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
            "token_types": "type_vocab_size",
        },
        supported={"position_embedding_type": ("absolute",), "is_decoder": (False,)},
        rename=_bert,
    ),
    "gpt2": PretrainedFormat(
        GPT2Encoder,
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
        supported={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        rename=_gpt2,
    ),
}
