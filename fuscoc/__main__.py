"""``python -m fuscoc``: the same as ``fuscoc``, for launchers that start Python modules."""

from fuscoc.cli import main

main()
