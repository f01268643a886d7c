"""How ranks talk: requests and who answers them, windows, the network, and who has ended."""
