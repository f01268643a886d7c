"""What users hold: shuffles and their calls, over an engine of either kind."""
