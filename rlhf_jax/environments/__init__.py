"""Worlds that answer a policy turn by turn: tools and games, on the host."""
