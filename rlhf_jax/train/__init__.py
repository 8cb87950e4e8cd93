"""State, optimizer, jitted steps, scoring, checkpoints."""
