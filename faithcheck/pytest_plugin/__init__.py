"""The hooks and fixtures of the pytest plugin, which `faithcheck.plugin` gathers.

* `options`: the options, and the run that they ask for.
* `collection`: the checks as tests, and the test modules of faithcheck under their real names.
* `markers`: which tests a run selects.
* `fixtures`: what tests take.
* `reporter`: the outcomes, the results document and its tables.
"""
