"""The hooks and fixtures of the pytest plugin, which `faithcheck.plugin` gathers."""
