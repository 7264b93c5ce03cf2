"""What makes two models one function: how they are run, where, on which scale, and under which circumstances."""
