"""What the server of processes imports, by this module's name, before it forks (`faithcheck.executors.process`)."""

import gc

from faithcheck.check_job import RemoteCheck
from faithcheck.executors.supervisor import supervise
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models.pair import registered_pairs

LOADED = (supervise, RemoteCheck, registered_pairs(), builtin_explainers())
gc.freeze()  # the processes share the memory of what is loaded, as long as no collection writes to it
