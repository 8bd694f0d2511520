"""Import and export of Hugging Face GPT-2 folders: config.json and model.safetensors.

Both directions preserve the function: `GPT2LMHeadModel` on [bos, x_1, …, x_{T−1}] and `GPT` on x_1, …, x_T have the
same logits. Neither direction needs transformers, and no pickle is ever loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from chainrule.errors import ConfigError, RunError
from chainrule.features.folders import WEIGHTS, load_weights, read_config, require_settings
from chainrule.features.weights import GPT2_BLOCK, CheckpointTensors
from chainrule.files import save_tensors, whole_file, write_whole
from chainrule.models.gpt import GPT, GPTConfig

PREFIX = "transformer."
HEAD = "lm_head.weight"
TRUNK = {
    "wpe.weight": "trunk.positions",
    "ln_f.weight": "trunk.norm.weight",
    "ln_f.bias": "trunk.norm.bias",
}
# Settings that change what GPT2LMHeadModel computes, with the values that `GPT` supports.
SUPPORTED = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


def write_gpt2(model: GPT, folder: Path, *, eos: int | None = 0) -> None:
    """Write a folder for `GPT2LMHeadModel.from_pretrained`; `eos` is the id of the tokenizer's EOS."""
    config = model.config
    if config.layout != "gpt2":
        raise RunError(
            f"a gpt with layout {config.layout!r} has no equivalent in Hugging Face transformers; "
            "train one with --set model.layout=gpt2"
        )
    ours = model.state_dict()
    weights = {
        theirs if theirs == HEAD else PREFIX + theirs: _transposed(name, ours[name]).contiguous()
        for theirs, name in _names(config)
    }
    with whole_file(folder / WEIGHTS) as temporary:
        save_tensors(weights, temporary, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(_their_config(model, eos), indent=2) + "\n")


def read_gpt2(folder: Path) -> GPT:
    """Load a folder written by `GPT2LMHeadModel.save_pretrained`."""
    config = _our_config(folder)
    model = GPT(config)
    found = CheckpointTensors(folder, PREFIX)
    load_weights(model, {name: _transposed(name, found[theirs]) for theirs, name in _names(config)}, folder)
    return model.eval()


def _names(config: GPTConfig) -> Iterator[tuple[str, str]]:
    """For every parameter, its name there without the prefix, and its name here."""
    if config.shares_embeddings:
        yield "wte.weight", "tokens.matrix"
    else:
        yield "wte.weight", "tokens.embedding.weight"
        yield HEAD, "tokens.matrix"
    yield from TRUNK.items()
    for layer in range(config.layers):
        for theirs, name in GPT2_BLOCK.items():
            for kind in ("weight", "bias"):
                yield f"h.{layer}.{theirs}.{kind}", f"trunk.blocks.{layer}.{name}.{kind}"


def _transposed(name: str, tensor: Tensor) -> Tensor:
    """The matrices of a block are (in, out) there and (out, in) here."""
    return tensor.T if name.startswith("trunk.blocks") and tensor.ndim == 2 else tensor


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
        "n_inner": config.mlp_ratio * config.width,
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
        raise RunError(f"{str(folder)!r} holds a model of type {kind!r}; only 'gpt2' is supported")
    require_settings(folder, theirs, SUPPORTED)
    try:
        width, vocabulary = theirs["n_embd"], theirs["vocab_size"]
        inner = theirs.get("n_inner") or 4 * width
        if inner % width:
            raise RunError(f"{str(folder)!r} has an MLP of size {inner}; it must be a multiple of the width {width}")
        bos = theirs.get("bos_token_id")
        if bos is not None and bos >= vocabulary:  # GPT-2's default of 50256, kept by a model with fewer tokens
            bos = None
        return GPTConfig.parse(
            {
                "layout": "gpt2",
                "vocabulary": vocabulary,
                "layers": theirs["n_layer"],
                "width": width,
                "heads": theirs["n_head"],
                "context": theirs["n_positions"],
                "mlp_ratio": inner // width,
                "dropout": theirs.get("resid_pdrop", 0.1),
                "tied": theirs.get("tie_word_embeddings", True),
                "bos": bos,
            }
        )
    except KeyError as missing:
        raise RunError(f"the config.json in {str(folder)!r} has no {missing}; it is not that of a GPT-2") from None
    except ConfigError as error:
        raise RunError(f"the config.json in {str(folder)!r} cannot be used: {error}") from None
