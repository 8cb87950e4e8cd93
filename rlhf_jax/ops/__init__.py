"""Arrays in, arrays out; no opinion about RL."""
