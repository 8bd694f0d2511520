"""Export of tokenizers as the tokenizer.json of Hugging Face."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.tokenizers.subword import Subword

EOS, UNKNOWN = "<eos>", "<unk>"


def as_huggingface(tokenizer: Tokenizer) -> tuple[dict[str, Any], str] | None:
    """The content of an equivalent tokenizer.json and its EOS token; None if this tokenizer has no such form."""
    if isinstance(tokenizer, HuggingFace):
        return tokenizer.description, tokenizer.eos_name
    if isinstance(tokenizer, Subword):
        return _subword(tokenizer), EOS
    if isinstance(tokenizer, Chars):
        return _chars(tokenizer), EOS
    return None


def _subword(tokenizer: Subword) -> dict[str, Any]:
    """Our ids are those of the library plus one, because EOS has id 0; here EOS becomes part of its vocabulary."""
    description = copy.deepcopy(tokenizer.description)
    model = description["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {EOS: 0} | {token: index + 1 for token, index in model["vocab"].items()}
    else:
        unreachable = min(score for _, score in model["vocab"]) - 1000.0
        model["vocab"] = [[EOS, unreachable], *model["vocab"]]
    description["added_tokens"] = special_tokens({EOS: 0})
    return description


def _chars(tokenizer: Chars) -> dict[str, Any]:
    """A word-level model over single characters."""
    names = [EOS, UNKNOWN, *tokenizer.characters]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens({EOS: 0, UNKNOWN: 1}),
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {name: index for index, name in enumerate(names)},
            "unk_token": UNKNOWN,
        },
    }


def special_tokens(ids: Mapping[str, int]) -> list[dict[str, Any]]:
    """Entries of `added_tokens` for special tokens with these ids."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": index, "content": token, **flags} for token, index in ids.items()]
