"""The memory that an attribution takes: measured, predicted and limited."""
