"""The artifact as it was written: its files, its JSON, and the words of both."""
