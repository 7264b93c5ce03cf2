"""The plugin, and a Ctrl-C that arrives: a shell starts a command in the background with it ignored."""

import importlib
import signal

from faithcheck.pytest_plugin.collection import without_garbage_collection

with without_garbage_collection():  # the collector would look through torch's objects for a fifth of this time
    importlib.import_module("torch")

pytest_plugins = ["faithcheck.plugin"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
