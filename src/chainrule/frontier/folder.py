"""The folder of a frontier.

measurements.json    every figure of quality and every turn, as they come: the same command goes on from there
results.json         what they say so far: medians, ratios, and the points that failed
report.html          the same, drawn
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chainrule.errors import RunError
from chainrule.files import write_whole
from chainrule.frontier.report import render
from chainrule.frontier.results import Measurements, Results


@dataclass(frozen=True)
class FrontierFolder:
    """A frontier on disk."""

    path: Path

    @property
    def measurements_file(self) -> Path:
        return self.path / "measurements.json"

    def begin(self, asked: dict[str, Any]) -> Measurements:
        """What the same command has left here, or nothing in a new folder."""
        asked = json.loads(json.dumps(asked))  # as it will be read back
        if self.measurements_file.is_file():
            kept = self._kept()
            for name in asked.keys() | kept.asked.keys():
                if kept.asked.get(name) != asked.get(name):
                    raise RunError(
                        f"the frontier in {str(self.path)!r} was begun with another {name}; "
                        "repeat its command, or choose another folder"
                    )
            return kept
        if self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir())):
            raise RunError(f"{str(self.path)!r} exists and is not a frontier; choose a new or empty folder")
        return Measurements(asked=asked)

    def keep(self, measured: Measurements, results: Results) -> None:
        """Write what is known by now."""
        write_whole(self.measurements_file, measured.model_dump_json(indent=2))
        write_whole(self.path / "results.json", results.model_dump_json(indent=2))
        write_whole(self.path / "report.html", render(results))

    def _kept(self) -> Measurements:
        try:
            return Measurements.model_validate_json(self.measurements_file.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"the frontier in {str(self.path)!r} is damaged: {reason}; begin a new one") from None
