"""Draws from a distribution over many outcomes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class AliasTable:
    """Draws from a distribution over V outcomes in time that does not depend on V (Walker 1977; Vose 1991).

    The mass is laid out in V columns of height 1/V, each shared by at most two outcomes: a draw chooses a column, then
    one of the two.
    """

    def __init__(self, probabilities: npt.NDArray[np.float64]) -> None:
        size = len(probabilities)
        heights = (probabilities * (size / probabilities.sum())).tolist()  # in columns
        others = list(range(size))
        # The lowest are filled first: what rounding leaves over at the end should be nearly full, and never impossible.
        small = sorted((index for index in others if heights[index] < 1), key=heights.__getitem__, reverse=True)
        large = [index for index, height in enumerate(heights) if height >= 1]
        while small and large:
            short, tall = small.pop(), large[-1]
            others[short] = tall  # the rest of the short column is filled from the tall one
            heights[tall] -= 1 - heights[short]
            if heights[tall] < 1:
                small.append(large.pop())
        for full in (*small, *large):  # up to rounding
            heights[full] = 1.0
        self.heights = torch.tensor(heights, dtype=torch.float64)
        self.others = torch.tensor(others)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> Tensor:
        """(count,) outcomes; without a generator from torch's own random numbers, which a run saves and resumes."""
        return self.at(torch.rand(count, dtype=torch.float64, generator=generator))

    def at(self, chance: Tensor) -> Tensor:
        """The outcomes that belong to numbers from [0, 1), each of which decides one draw."""
        # One number for both choices: its whole part is the column, its fraction the height in it.
        points = chance * len(self.heights)
        columns = points.long()
        return torch.where(points - columns < self.heights[columns], columns, self.others[columns])
