"""The suite that users run, `test_axioms`; this project's own tests are in the folders, which are not shipped."""
