"""Checks of model families, for the families of this package and for those of others."""

from chainrule.testing.checks import check_model
from chainrule.testing.embedder_checks import check_embedder
from chainrule.testing.parallel_checks import check_parallel
from chainrule.testing.tiny import tiny_embedder, tiny_model, tiny_parallel

__all__ = ["check_embedder", "check_model", "check_parallel", "tiny_embedder", "tiny_model", "tiny_parallel"]
