"""``fuscoc simulate``: flows of compiled programs on clusters that need not be there."""
