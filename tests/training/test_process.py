from __future__ import annotations

from chainrule.training.process import KERNEL_CACHE, limit_cached_kernels


def test_few_kernels_are_cached_unless_the_user_says_how_many() -> None:
    environment: dict[str, str] = {}
    limit_cached_kernels(environment)
    assert 0 < int(environment[KERNEL_CACHE]) < 1024
    environment[KERNEL_CACHE] = "500"
    limit_cached_kernels(environment)
    assert environment[KERNEL_CACHE] == "500"
