"""Sampling responses with their log-probs."""
