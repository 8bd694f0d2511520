"""GPT-2 folders of Hugging Face transformers: config.json and model.safetensors, in both directions.

What is read here and written there is the same function: the logits of `GPT2LMHeadModel` for [bos, x_1, …, x_{T−1}]
are those of `GPT` for x_1, …, x_T. Neither direction needs transformers, and no pickle is ever loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from chainrule.errors import ConfigError, RunError
from chainrule.features.folders import WEIGHTS, read_config, read_weights
from chainrule.files import whole_file, write_whole
from chainrule.models.gpt import GPT, GPTConfig

TRUNK = {
    "wpe.weight": "trunk.positions",
    "ln_f.weight": "trunk.norm.weight",
    "ln_f.bias": "trunk.norm.bias",
}
BLOCK = {
    "ln_1": "attention_norm",
    "attn.c_attn": "query_key_value",
    "attn.c_proj": "attention_out",
    "ln_2": "mlp_norm",
    "mlp.c_fc": "mlp_in",
    "mlp.c_proj": "mlp_out",
}

# Settings that change what GPT2LMHeadModel computes, with the one value that `GPT` computes as well.
ARITHMETIC = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


def write_gpt2(model: GPT, folder: Path, *, eos: int | None = 0) -> None:
    """Write a folder that `GPT2LMHeadModel.from_pretrained` loads; `eos` is the tokenizer's, where it has one."""
    config = model.config
    if config.layout != "gpt2":
        raise RunError(
            f"a gpt of layout {config.layout!r} has no twin in Hugging Face transformers; "
            "train one that has, with --set model.layout=gpt2"
        )
    ours = model.state_dict()
    weights = {theirs: _turned(name, ours[name]).contiguous() for theirs, name in _names(config)}
    with whole_file(folder / WEIGHTS) as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(_their_config(model, eos), indent=2) + "\n")


def read_gpt2(folder: Path) -> GPT:
    """The model in a folder that `GPT2LMHeadModel.save_pretrained` has written."""
    config = _our_config(folder)
    model = GPT(config)
    found = read_weights(folder)
    weights = {}
    for theirs, name in _names(config):
        tensor = found.get(theirs, found.get(theirs.removeprefix("transformer.")))
        if tensor is None:
            raise RunError(f"the weights in {str(folder)!r} have no {theirs!r}; the folder is not a whole GPT-2")
        weights[name] = _turned(name, tensor)
    for name, parameter in model.state_dict().items():
        if weights[name].shape != parameter.shape:
            shapes = f"{tuple(weights[name].shape)} where config.json implies {tuple(parameter.shape)}"
            raise RunError(f"the weights in {str(folder)!r} do not fit their config: {name} has the shape {shapes}")
    model.load_state_dict(weights)  # into float32, whatever they were stored in
    return model.eval()


def _names(config: GPTConfig) -> Iterator[tuple[str, str]]:
    """Every parameter: its name there and its name here."""
    if config.shares_embeddings:
        yield "transformer.wte.weight", "tokens.matrix"
    else:
        yield "transformer.wte.weight", "tokens.embedding.weight"
        yield "lm_head.weight", "tokens.matrix"
    for theirs, name in TRUNK.items():
        yield f"transformer.{theirs}", name
    for layer in range(config.layers):
        for theirs, name in BLOCK.items():
            for kind in ("weight", "bias"):
                yield f"transformer.h.{layer}.{theirs}.{kind}", f"trunk.blocks.{layer}.{name}.{kind}"


def _turned(name: str, tensor: Tensor) -> Tensor:
    """The readout is stored one way there and the other way here."""
    return tensor.T if name == "tokens.matrix" else tensor


def _their_config(model: GPT, eos: int | None) -> dict[str, Any]:
    config = model.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocabulary,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.multiple * config.width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "tie_word_embeddings": config.shares_embeddings,
        "bos_token_id": model.bos,
        "eos_token_id": eos,
    }


def _our_config(folder: Path) -> GPTConfig:
    theirs = read_config(folder)
    kind = theirs.get("model_type")
    if kind != "gpt2":
        raise RunError(f"{str(folder)!r} holds a model of type {kind!r}; only 'gpt2' can be read")
    for setting, usable in ARITHMETIC.items():
        value = theirs.get(setting, usable[0])
        if value not in usable:
            raise RunError(f"{str(folder)!r} sets {setting} to {value!r}; only {usable[0]!r} can be read")
    try:
        width, vocabulary = theirs["n_embd"], theirs["vocab_size"]
        inner = theirs.get("n_inner") or 4 * width
        if inner % width:
            raise RunError(f"{str(folder)!r} has an MLP of {inner}; only multiples of the width {width} can be read")
        bos = theirs.get("bos_token_id")
        if bos is not None and bos >= vocabulary:  # GPT-2's own 50256, left standing by a model with fewer tokens
            bos = None
        return GPTConfig.parse(
            {
                "layout": "gpt2",
                "vocabulary": vocabulary,
                "layers": theirs["n_layer"],
                "width": width,
                "heads": theirs["n_head"],
                "context": theirs["n_positions"],
                "multiple": inner // width,
                "dropout": theirs.get("resid_pdrop", 0.1),
                "tied": theirs.get("tie_word_embeddings", True),
                "bos": bos,
            }
        )
    except KeyError as missing:
        raise RunError(f"the config.json in {str(folder)!r} has no {missing}; it is not one of a GPT-2") from None
    except ConfigError as error:
        raise RunError(f"the config.json in {str(folder)!r} cannot be used: {error}") from None
