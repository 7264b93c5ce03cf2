"""The pytest plugin, ``-p faithcheck.plugin``: what happens before collection. The rest is in `pytest_plugin`."""

import os

import pytest
import torch

from faithcheck.models.data import DataError
from faithcheck.options import OptionError
from faithcheck.options.pairs import describe_checkpoint
from faithcheck.pytest_plugin.collection import pytest_collect_directory as pytest_collect_directory
from faithcheck.pytest_plugin.collection import pytest_collection as pytest_collection
from faithcheck.pytest_plugin.collection import pytest_generate_tests as pytest_generate_tests
from faithcheck.pytest_plugin.collection import pytest_pycollect_makemodule as pytest_pycollect_makemodule
from faithcheck.pytest_plugin.collection import without_garbage_collection
from faithcheck.pytest_plugin.fixtures import figure as figure
from faithcheck.pytest_plugin.fixtures import prepared as prepared
from faithcheck.pytest_plugin.fixtures import report as report
from faithcheck.pytest_plugin.fixtures import report_check as report_check
from faithcheck.pytest_plugin.fixtures import settings as settings
from faithcheck.pytest_plugin.fixtures import table as table
from faithcheck.pytest_plugin.markers import pytest_collection_modifyitems as pytest_collection_modifyitems
from faithcheck.pytest_plugin.markers import pytest_ignore_collect as pytest_ignore_collect
from faithcheck.pytest_plugin.markers import pytest_itemcollected as pytest_itemcollected
from faithcheck.pytest_plugin.markers import refuse_unknown_markers, register_markers
from faithcheck.pytest_plugin.options import RUN, chosen_run
from faithcheck.pytest_plugin.options import pytest_addoption as pytest_addoption
from faithcheck.pytest_plugin.reporter import Reporter
from faithcheck.reports.documents.environment import version


# Last, so that the markers of the other plugins are registered by then.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the run, and register its reporter."""
    register_markers(config)
    share_cores(config)
    try:
        with without_garbage_collection():
            refuse_unknown_markers(config)
            run = config.stash[RUN] = chosen_run(config)
    except (OptionError, DataError) as error:
        raise pytest.UsageError(str(error)) from error
    config.add_cleanup(run.executor.close)
    config.pluginmanager.register(Reporter(config, run), "faithcheck-reporter")


def share_cores(config: pytest.Config) -> None:
    """Share torch's threads among pytest-xdist's workers, unless the user set them: too many wait for each other."""
    workers = getattr(config, "workerinput", {}).get("workercount") or config.getoption("numprocesses", None) or 1
    if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def pytest_report_header(config: pytest.Config) -> str:
    """The settings of the run, and what a checkpoint has."""
    run = config.stash[RUN]
    about, checkpoint = run.about, run.checkpoint
    further = f"\n{describe_checkpoint(checkpoint)}" if checkpoint else ""
    return (
        f"faithcheck {version()}: seed {about.seed}, {about.dtype}, {about.device}, "
        f"data: {about.data}, {len(about.explainers)} explainers, {about.pairs} pairs{further}"
    )
