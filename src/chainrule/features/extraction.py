"""Features of texts from a pretrained model, for use outside chainrule."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.errors import DataError
from chainrule.features.pretrained import Pretrained
from chainrule.tokenizers.huggingface import HuggingFace


class TextFeatures(NamedTuple):
    """The tokens of a text and their hidden vectors."""

    pieces: list[str]  # S tokens; the last is the end-of-text token, shown as ""
    vectors: npt.NDArray[np.float32]  # (S, D)


def extract(folder: Path | str, texts: Iterable[str], *, cache: Path | None = None) -> list[TextFeatures]:
    """The last hidden vectors of a BERT or GPT-2 in a local folder for each text, cached on disk.

    A text is tokenized by the pretrained model's own tokenizer and ends with its end-of-text token.
    """
    path = Path(folder)
    tokenizer = HuggingFace.read(path / "tokenizer.json")
    model = Pretrained.open(path)
    rows = [[*tokenizer.encode(text).tolist(), tokenizer.eos] for text in texts]
    longest = max((len(row) for row in rows), default=0)
    assert model.context is not None  # the texts are tokenized by its own tokenizer
    if longest > model.context:
        raise DataError(
            f"a text of {longest} tokens exceeds the context of {model.context} of the model in {str(folder)!r}; "
            "split it"
        )
    if not rows:
        return []
    stored = model.precompute(rows, cache=cache)
    return [TextFeatures(tokenizer.pieces(row), stored.of(row)) for row in rows]
