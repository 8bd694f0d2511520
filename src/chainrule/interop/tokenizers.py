"""Our tokenizers in the form of Hugging Face's tokenizer.json, for those that have one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.tokenizers.subword import Subword

EOS, UNKNOWN = "<eos>", "<unk>"


def as_huggingface(tokenizer: Tokenizer) -> tuple[dict[str, Any], str] | None:
    """The content of a tokenizer.json that gives the same ids, and the name of EOS in it; None where there is none."""
    if isinstance(tokenizer, HuggingFace):
        return tokenizer.description, tokenizer.eos_name
    if isinstance(tokenizer, Subword):
        return _subword(tokenizer), EOS
    if isinstance(tokenizer, Chars):
        return _chars(tokenizer), EOS
    return None


def _subword(tokenizer: Subword) -> dict[str, Any]:
    """Our ids are the library's plus one, since EOS stands before them: here it joins them."""
    description = copy.deepcopy(tokenizer.description)
    model = description["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {EOS: 0} | {token: index + 1 for token, index in model["vocab"].items()}
    else:
        never = min(score for _, score in model["vocab"]) - 1000.0
        model["vocab"] = [[EOS, never], *model["vocab"]]
    description["added_tokens"] = _special([EOS])
    return description


def _chars(tokenizer: Chars) -> dict[str, Any]:
    """Words of one character each."""
    names = [EOS, UNKNOWN, *tokenizer.characters]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _special(names[:2]),
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


def _special(names: Sequence[str]) -> list[dict[str, Any]]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": index, "content": name, **plain} for index, name in enumerate(names)]
