"""What an explainer leaves behind on a model and in the process: snapshots that find it and undo it."""
