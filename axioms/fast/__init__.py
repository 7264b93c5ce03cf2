"""For speed alone: results on a model that several pairs share are computed once; FAITHCHECK_PLAIN=1 runs without."""
