"""The commands of ``fuscoc``, one file a theme; ``fuscoc/cli.py`` puts them together."""
