"""``fuscoc plan``: plan a shuffle for a cluster that nobody has to own, and show what moves."""
