"""An example gets the same attribution alone as in a batch, and none at padding."""

import pytest


@pytest.mark.batching
@pytest.mark.axiom("batching")
def test_batch_and_padding_independence(check, settings, report):
    report(check.run(settings))
