"""What the tests of a family need, and what the tests of a family outside this package need too."""

from chainrule.testing.checks import check_model
from chainrule.testing.parallel_checks import check_parallel
from chainrule.testing.tiny import tiny_model, tiny_parallel

__all__ = ["check_model", "check_parallel", "tiny_model", "tiny_parallel"]
