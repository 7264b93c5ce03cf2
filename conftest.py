pytest_plugins = ["faithcheck.reports.plugin"]
