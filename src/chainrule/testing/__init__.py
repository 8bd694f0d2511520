"""What the tests of a family need, and what the tests of a family outside this package need too."""

from chainrule.testing.checks import check_model
from chainrule.testing.tiny import tiny_model

__all__ = ["check_model", "tiny_model"]
