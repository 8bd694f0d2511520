"""Model folders of Hugging Face transformers: config.json and weights as safetensors. Pickles are never loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from chainrule.errors import RunError
from chainrule.memory import require_room_for

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json."""
    return _read_json(folder / CONFIG)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder, from one file or from the shards listed in an index."""
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        require_room_for(file)
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise RunError(f"the weights {str(file)!r} cannot be read: {error}") from None
    return weights


def require_settings(folder: Path, config: Mapping[str, Any], supported: Mapping[str, Sequence[Any]]) -> None:
    """Raise RunError if a setting has an unsupported value. The first supported value is the default of the format."""
    for setting, values in supported.items():
        if config.get(setting, values[0]) not in values:
            raise RunError(f"{str(folder)!r} sets {setting} to {config[setting]!r}; only {values[0]!r} is supported")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load all parameters of a model, converted to its precision. Raises RunError if shapes do not match."""
    for name, parameter in model.state_dict().items():
        if weights[name].shape != parameter.shape:
            shapes = f"{tuple(weights[name].shape)} where config.json implies {tuple(parameter.shape)}"
            raise RunError(f"the weights in {str(folder)!r} do not match their config: {name} has the shape {shapes}")
    model.load_state_dict(weights)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_read_json(folder / INDEX).get("weight_map", {}).values()))]
    if any(folder.glob("*.bin")):
        raise RunError(
            f"{str(folder)!r} holds its weights as a pickle (.bin), which can run arbitrary code and is never loaded; "
            "convert it with transformers: save_pretrained(folder) writes model.safetensors"
        )
    raise RunError(f"{str(folder)!r} has no {WEIGHTS}; check the path")


def folder_fingerprint(folder: Path) -> str:
    """A hash of the settings and the weights of the model in the folder."""
    total = hashlib.blake2b(digest_size=16)
    for file in (folder / CONFIG, *weight_files(folder)):
        try:
            with file.open("rb") as content:
                total.update(hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).digest())
        except OSError as error:
            raise RunError(f"{str(file)!r} cannot be read: {error.strerror or error}") from None
    return total.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{str(path.parent)!r} has no {path.name}; it is not a Hugging Face model folder") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{str(path)!r} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise RunError(f"{str(path)!r} is not a JSON object; it is not the config of a Hugging Face model")
    return values
