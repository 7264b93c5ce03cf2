"""Until the front doors enter an executor: the names by which they call `faithcheck.executors.own_processes`."""
