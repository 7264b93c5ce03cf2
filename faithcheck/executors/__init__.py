"""Where checks and batches run: in this process, in a process of its own, or on a Ray cluster."""
