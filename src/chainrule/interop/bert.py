"""Import and export of Hugging Face BERT folders: config.json and model.safetensors.

Both directions preserve the function: `BertForMaskedLM` on [CLS], x_1, …, x_T, [SEP] and `BERT` on x_1, …, x_T have the
same logits and hidden vectors. A folder saved from `BertModel` has no masked-LM head; the imported model can only embed
texts. Neither direction needs transformers, and no pickle is ever loaded.

If [CLS], [SEP] and [MASK] have ids past our vocabulary, the exported vocabulary contains them, followed by [PAD]. Their
output biases are so low that their probabilities are 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import ConfigError, RunError
from chainrule.features.folders import WEIGHTS, load_weights, read_config
from chainrule.features.weights import BERT_BLOCK, CheckpointTensors, read_pretrained
from chainrule.files import save_tensors, whole_file, write_whole
from chainrule.interop.tokenizers import special_tokens
from chainrule.models.bert import BERT, BERTConfig, SpecialIds
from chainrule.nn.pretrained_encoders import BertEncoder
from chainrule.tokenizers.huggingface import HuggingFace

NAMES = ("[CLS]", "[SEP]", "[MASK]")
PAD = "[PAD]"
IMPOSSIBLE = -1e4  # a logit whose exponential is 0 in float32 and bfloat16
EMBEDDINGS = {
    "body.words": "bert.embeddings.word_embeddings.weight",
    "body.positions": "bert.embeddings.position_embeddings.weight",
    "body.token_types": "bert.embeddings.token_type_embeddings.weight",
}
NORMS = {
    "body.norm": "bert.embeddings.LayerNorm",
    "head.norm": "cls.predictions.transform.LayerNorm",
}
TRANSFORM, BIAS = "cls.predictions.transform.dense", "cls.predictions.bias"


def write_bert(model: BERT, folder: Path) -> None:
    """Write a folder for `BertForMaskedLM.from_pretrained`, or for `BertModel` if the model has no head."""
    weights = {name: tensor.contiguous() for name, tensor in _their_weights(model)}
    with whole_file(folder / WEIGHTS) as temporary:
        save_tensors(weights, temporary, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(_their_config(model), indent=2) + "\n")


def padding_id(model: BERT) -> int | None:
    """The id of the exported [PAD]; None if the special tokens are part of the vocabulary."""
    table = model.config.shape.vocabulary
    return table if table > model.vocabulary else None


def _their_weights(model: BERT) -> Iterator[tuple[str, Tensor]]:
    ours = model.state_dict()
    past = padding_id(model)
    for name, theirs in EMBEDDINGS.items():
        table = ours[name]
        if name == "body.words" and past is not None:
            table = torch.cat([table, table.new_zeros(1, table.shape[1])])
        yield theirs, table
    for name, theirs in NORMS.items():
        if f"{name}.weight" in ours:
            yield from ((f"{theirs}.{kind}", ours[f"{name}.{kind}"]) for kind in ("weight", "bias"))
    for number in range(model.config.layers):
        yield from _their_layer(ours, number)
    if model.head is not None:
        yield f"{TRANSFORM}.weight", ours["head.transform.weight"]
        yield f"{TRANSFORM}.bias", ours["head.transform.bias"]
        bias = ours["head.bias"]
        rows = model.vocabulary if past is None else past + 1
        yield BIAS, torch.cat([bias, bias.new_full((rows - len(bias),), IMPOSSIBLE)])


def _their_layer(ours: dict[str, Tensor], number: int) -> Iterator[tuple[str, Tensor]]:
    block, theirs = f"body.blocks.{number}", f"bert.encoder.layer.{number}"
    for kind in ("weight", "bias"):
        three = ours[f"{block}.query_key_value.{kind}"].chunk(3)
        for name, part in zip(("query", "key", "value"), three, strict=True):
            yield f"{theirs}.attention.self.{name}.{kind}", part
        for their_part, name in BERT_BLOCK.items():
            yield f"{theirs}.{their_part}.{kind}", ours[f"{block}.{name}.{kind}"]


def _their_config(model: BERT) -> dict[str, Any]:
    shape, past = model.config.shape, padding_id(model)
    return {
        "architectures": ["BertModel" if model.head is None else "BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": shape.vocabulary if past is None else past + 1,
        "max_position_embeddings": shape.context,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "hidden_act": shape.activation,
        "layer_norm_eps": shape.epsilon,
        "type_vocab_size": shape.token_types,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "pad_token_id": past,
    }


def read_bert(folder: Path, tokenizer: HuggingFace) -> BERT:
    """Load a folder written by `save_pretrained`, with the special token ids of its tokenizer."""
    body = read_pretrained(folder)
    if not isinstance(body, BertEncoder):
        raise RunError(f"{str(folder)!r} does not hold a BERT according to its config.json")
    weights = CheckpointTensors(folder, "bert.")
    head = _our_head(weights) if BIAS in weights.found else {}
    if head and read_config(folder).get("tie_word_embeddings", True) is not True:
        raise RunError(f"{str(folder)!r} sets tie_word_embeddings to False; only True is supported")
    config = _our_config(folder, body, _special(folder, tokenizer), head=bool(head))
    model = BERT(config)
    ours = {f"body.{name}": tensor for name, tensor in body.state_dict().items()} | head
    load_weights(model, ours, folder)
    return model.eval()


def _our_head(weights: CheckpointTensors) -> dict[str, Tensor]:
    return (
        weights.pair(TRANSFORM, "head.transform")
        | weights.pair(NORMS["head.norm"], "head.norm")
        | {"head.bias": weights[BIAS]}
    )


def _special(folder: Path, tokenizer: HuggingFace) -> SpecialIds:
    found = [tokenizer.id_of(name) for name in NAMES]
    if None in found:
        missing = NAMES[found.index(None)]
        raise RunError(f"the tokenizer.json in {str(folder)!r} has no {missing}; it is not the tokenizer of a BERT")
    return SpecialIds(*(index for index in found if index is not None))


def _our_config(folder: Path, body: BertEncoder, special: SpecialIds, *, head: bool) -> BERTConfig:
    shape = body.shape
    try:
        return BERTConfig.parse(
            {
                "vocabulary": shape.vocabulary,
                "layers": shape.layers,
                "width": shape.width,
                "heads": shape.heads,
                "inner": shape.inner,
                "context": shape.context - 2,
                "dropout": read_config(folder).get("hidden_dropout_prob", 0.1),
                "activation": shape.activation,
                "epsilon": shape.epsilon,
                "token_types": shape.token_types,
                "head": head,
                **special._asdict(),
            }
        )
    except ConfigError as error:
        raise RunError(f"the config.json in {str(folder)!r} cannot be used: {error}") from None


def bert_tokenizer(model: BERT, description: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of tokenizer.json and tokenizer_config.json; a text is encoded as [CLS], its tokens, [SEP]."""
    names = dict(zip(NAMES, model.special, strict=True))
    if (past := padding_id(model)) is not None:
        names[PAD] = past
        description = description | {
            "added_tokens": [*description["added_tokens"], *special_tokens(names)],
            "post_processor": _post_processor(names),
        }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.shape.context,
        "cls_token": NAMES[0],
        "sep_token": NAMES[1],
        "mask_token": NAMES[2],
        "pad_token": PAD,
    }
    return description, settings


def _post_processor(ids: dict[str, int]) -> dict[str, Any]:
    """[CLS] A [SEP] for one text, [CLS] A [SEP] B [SEP] for two."""

    def special(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    start, end = NAMES[:2]
    single = [special(start, 0), text("A", 0), special(end, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(end, 1)],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (start, end)},
    }
