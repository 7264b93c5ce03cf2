"""``faithcheck align --ray``: the batches of an alignment on the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from faithcheck.alignment.remote_batch import RemoteModel
from faithcheck.alignment.run_key import fingerprint
from faithcheck.executors.ray.cluster import Workers
from faithcheck.executors.ray.on_ray import OnRay, Watch
from faithcheck.executors.ray.worker import refuse_other_explainers, states_of
from faithcheck.explainers.protocol import Explainer
from faithcheck.options import OptionError


@dataclass(frozen=True)
class AlignmentReadiness:
    """The worker has the model and the explainers of the driver.

    Attributes:
        model: the model.
        specs: the name of ``--explainer`` of each explainer, by the explainer's name.
        fingerprint: of the driver's model.
        states: `states_of` the driver's explainers.
    """

    model: RemoteModel
    specs: Mapping[str, str]
    fingerprint: str
    states: Mapping[str, str | None]

    def confirm(self) -> None:
        """Load the model and the explainers.

        Raises:
            OptionError: one is another than that of the driver.
        """
        explainers = {name: self.model.explainer(spec) for name, spec in self.specs.items()}
        if fingerprint(self.model.load().model) != self.fingerprint:
            raise OptionError(f"it has another model at {self.model.request.model}: give it the same files")
        refuse_other_explainers(self.states, explainers)


def alignment_on_ray(
    remote: RemoteModel,
    model: nn.Module,
    explainers: Sequence[Explainer],
    specs: Mapping[str, str],
    address: str,
    wanted: Workers,
    watch: Watch,
) -> OnRay:
    """The executor of an alignment.

    Args:
        remote: the model as workers load it.
        model: the same as loaded here.
        explainers: as loaded here.
        specs: see `AlignmentReadiness`.
        address: of the cluster.
        wanted: the workers.
        watch: see `OnRay`.
    """
    states = states_of({one.name: one for one in explainers})
    return OnRay(address, wanted, AlignmentReadiness(remote, specs, fingerprint(model), states), watch)
