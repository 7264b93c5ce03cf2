"""The plugin, and a Ctrl-C that arrives: a shell starts a command in the background with it ignored."""

import signal

pytest_plugins = ["faithcheck.reports.plugin"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
