"""How well the maps of explainers agree with Leave-One-Out over a data set; axioms are measured on single cases."""
