"""How ranks talk: requests, and the engines that answer them."""
