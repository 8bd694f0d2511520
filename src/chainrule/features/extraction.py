"""Features of texts, for whoever wants to look at them or to use them elsewhere."""

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
    """A text as a pretrained model sees it."""

    pieces: list[str]  # S of them; the last is the end of the text and shown as ""
    vectors: npt.NDArray[np.float32]  # (S, D)


def extract(folder: Path | str, texts: Iterable[str], *, cache: Path | None = None) -> list[TextFeatures]:
    """What the BERT or GPT-2 in a local folder makes of each text; kept on disk, so the second time it is read.

    A text is cut into the pretrained model's own pieces, closed by its end-of-text token.
    """
    path = Path(folder)
    tokenizer = HuggingFace.read(path / "tokenizer.json")
    model = Pretrained.open(path)
    rows = [[*tokenizer.encode(text).tolist(), tokenizer.eos] for text in texts]
    longest = max((len(row) for row in rows), default=0)
    if longest > model.context:
        raise DataError(
            f"a text of {longest} tokens does not fit into the {model.context} that the model in {str(folder)!r} "
            "can read; cut it"
        )
    if not rows:
        return []
    stored = model.precompute(rows, cache=cache)
    return [TextFeatures(tokenizer.pieces(row), stored.of(row)) for row in rows]
