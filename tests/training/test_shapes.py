"""Models that are built to count their parameters."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chainrule.families import build
from chainrule.tasks.text_comparison import TextComparison
from chainrule.training.shapes import build_shapes

NEURAL = [name for name in TextComparison.families() if name != "ngram"]


@pytest.mark.parametrize("name", NEURAL)
def test_a_model_without_weights_has_the_shapes_of_the_model(name):
    settings = {"vocabulary": 11, "width": 32}
    shapes, model = build_shapes(name, settings), build(name, settings)
    assert {key: value.shape for key, value in shapes.state_dict().items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    assert all(parameter.is_meta for parameter in shapes.parameters())


def test_counting_parameters_does_not_load_the_compiler_of_pytorch():
    code = (
        "import sys; from chainrule.training.shapes import build_shapes\n"
        f"for name in {NEURAL!r}: build_shapes(name, {{'vocabulary': 11, 'width': 32}})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
