"""What several test modules share: oracles, small models, builders. No tests."""
