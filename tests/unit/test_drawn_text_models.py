"""LOO and gradient × input of drawn models and texts equal a short loop over the tokenizer and the model alone."""

import os

import pytest

from faithcheck.tests.helpers.drawn_text_models import largest_difference

DRAWS = int(os.environ.get("DRAWS", "50"))
ROUND_OFF = 1e-4
"""Relative to the largest output: half of the models run in float32, where sums of cancelling terms lose digits."""


@pytest.mark.parametrize("seed", range(DRAWS))
def test_the_maps_of_a_drawn_model_are_those_of_a_plain_loop(seed, tmp_path):
    what, difference = largest_difference(seed, tmp_path)
    print(f"{difference:.1e} {what}")
    assert difference <= ROUND_OFF, what
