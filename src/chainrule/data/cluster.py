"""Clusters for independent work, by any `concurrent.futures.Executor`; Dask's is the one that is supported.

    --on local:4              four workers on this machine
    --on tcp://scheduler:8786 a running Dask scheduler
    --on slurm.yaml           a cluster that is started for the command, as the file describes

Workers see the data, the cache and the run folders at the same paths.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from pydantic import Field

from chainrule.config import Settings
from chainrule.data.workers import working_on
from chainrule.errors import ConfigError, MissingExtra

CONNECT_SECONDS = 30


class ClusterDescription(Settings):
    """A YAML file that describes a cluster to start."""

    cluster: str  # the class, such as dask_jobqueue.SLURMCluster or dask_kubernetes.operator.KubeCluster
    workers: int
    settings: dict[str, Any] = Field(default_factory=dict)


@contextlib.contextmanager
def connected(where: str) -> Iterator[Executor]:
    """The executor of `--on`: local:N, the address of a scheduler, or a YAML file that describes a cluster."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingExtra("--on", "cluster") from None
    with contextlib.ExitStack() as stack:
        if where.startswith("local:"):
            count = where.removeprefix("local:")
            if not count.isdigit() or int(count) < 1:
                raise ConfigError(f"--on {where!r} needs a number of workers; for example --on local:4")
            start: Any = LocalCluster
            address = stack.enter_context(start(n_workers=int(count), threads_per_worker=1, dashboard_address=None))
        elif where.endswith((".yaml", ".yml")):
            address = stack.enter_context(_described_cluster(Path(where)))
        elif "://" in where:
            address = where
        else:
            raise ConfigError(
                f"--on {where!r} is neither local:N, nor the address of a scheduler such as tcp://host:8786, nor a "
                ".yaml file; correct it"
            )
        try:
            connect: Any = Client
            client = stack.enter_context(connect(address, timeout=CONNECT_SECONDS))
        except (OSError, TimeoutError) as error:
            raise ConfigError(
                f"no Dask scheduler answers at {where!r} ({error}); start one with: dask scheduler"
            ) from None
        yield stack.enter_context(client.get_executor(pure=False))


def _described_cluster(file: Path) -> Any:
    import yaml  # type: ignore[import-untyped]  # a dependency of Dask

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {str(error).splitlines()[0]}") from None
    described = ClusterDescription.parse(values, where=file.name)
    module, _, name = described.cluster.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ConfigError(
            f"{file.name}: there is no {described.cluster!r}; install the package of the cluster, for example: "
            "pip install dask-jobqueue"
        ) from None
    cluster = kind(**described.settings)
    cluster.scale(described.workers)
    return cluster


@contextlib.contextmanager
def working_at(where: str | None) -> Iterator[None]:
    """Do the independent work of this block on the cluster of `--on`, if it is given."""
    if where is None:
        yield
        return
    with connected(where) as executor, working_on(executor):
        yield
