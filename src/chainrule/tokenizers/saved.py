"""The one file that a tokenizer is kept in: JSON with `format`, `kind` and what that kind needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chainrule.errors import TokenizerError
from chainrule.files import write_whole

FORMAT = 1


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Replace the file in one move."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        write_whole(path, text)
    except OSError as error:
        raise TokenizerError(f"tokenizer file {str(path)!r} cannot be written: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The content of a tokenizer file, of a format that this version knows."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokenizerError(f"there is no tokenizer file {str(path)!r}; check the path") from None
    except OSError as error:
        raise TokenizerError(f"tokenizer file {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:  # bad JSON or bad UTF-8
        raise TokenizerError(f"tokenizer file {str(path)!r} is damaged: {error}; restore or retrain it") from None
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise TokenizerError(
            f"{str(path)!r} is not a tokenizer file of chainrule; "
            "a tokenizer.json of Hugging Face is read by the spec huggingface:FILE"
        )
    if data["format"] > FORMAT:
        raise TokenizerError(
            f"tokenizer file {str(path)!r} has format {data['format']}, this version reads up to {FORMAT}; "
            "upgrade chainrule"
        )
    return data
