"""A Ray cluster: one that is reached by its address, or one of this machine that is started and ended here."""

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from faithcheck.axioms.measure.error_text import message_text
from faithcheck.options import OptionError
from faithcheck.request import Place

LOCAL = "local"
"""The address of a cluster of this machine that faithcheck starts itself."""
OBJECT_STORE = 100 * 2**20  # bytes; what tasks take and return is small


@contextmanager
def with_threads(place: Place) -> Iterator[None]:
    """As many threads here as in each worker, if there is a cluster: stores and documents name their number."""
    before = torch.get_num_threads()
    if place.cluster is not None:
        torch.set_num_threads(place.cpus_per_worker)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Cluster:
    """A cluster that is connected."""

    workers: int  # how many it has room for, at most as many as asked for
    dashboard: str  # the address of its dashboard; empty without one


@contextmanager
def connected(place: Place) -> Iterator[Cluster]:
    """Connect to a cluster, or start one here and end it; `OptionError` if that fails or no worker has room."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray sends nothing to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # says that workers without GPUs see all of them
    import ray

    address = str(place.cluster)
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    folder = None
    if address == LOCAL:
        folder = tempfile.mkdtemp(prefix=f"faithcheck-ray-{os.getpid()}-")
        cpus = max(os.cpu_count() or 1, (place.workers or 1) * place.cpus_per_worker)
        options |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        options |= {"_node_ip_address": "127.0.0.1", "_temp_dir": folder}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own, of its next versions
            try:
                context = ray.init(address, **options)
            except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
                raise OptionError(f"--ray={address}: {_first_line(error)}{_token_hint(address, error)}") from error
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        yield Cluster(room(resources, place), str(context.dashboard_url or ""))
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def room(resources: Mapping[str, float], place: Place) -> int:
    """How many workers start."""
    room = int(resources.get("CPU", 0) // place.cpus_per_worker)
    if wanted := place.gpus_per_worker:
        gpus = resources.get("GPU", 0)
        of_one = int(1 // wanted)  # a worker's fraction lies on one GPU
        room = min(room, int(gpus) * of_one if of_one else int(gpus // wanted))
    if room < (place.workers or 1):
        has = f"{resources.get('CPU', 0):g} processors and {resources.get('GPU', 0):g} GPUs"
        asks = f"{place.workers or 1} workers of {place.cpus_per_worker} processors and {place.gpus_per_worker:g} GPUs"
        raise OptionError(f"--ray: the cluster has {has}, too few for {asks}")
    return place.workers or room


def _token_hint(address: str, error: Exception) -> str:
    """What to do where a cluster may have refused this process: Ray looks for a token by itself only for ``auto``."""
    if not isinstance(error, ConnectionError) or address == "auto" or os.environ.get("RAY_AUTH_MODE") == "token":
        return ""
    return "; if the cluster asks for a token, as ray start says, set RAY_AUTH_MODE=token here, with the same token"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in message_text(error).splitlines() if line.strip()), type(error).__name__)
