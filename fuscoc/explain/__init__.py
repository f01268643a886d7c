"""``fuscoc explain``: a compiled spec in words and numbers.

``facts.py`` works out what there is to say from the manifest, in ``formula.py``'s formulae of what
only a run knows; ``tables.py`` prints it.
"""
