"""The plugin, and a Ctrl-C that arrives: a shell starts a command in the background with it ignored."""

import gc
import signal

pytest_plugins = ["faithcheck.reports.plugin"]
gc.disable()  # until the plugin is imported: the collector would look through torch's objects for a fifth of that time

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    gc.enable()
