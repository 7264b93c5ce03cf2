"""The search for counterexamples to invariance: equal expressions are drawn, rewritten and explained."""
