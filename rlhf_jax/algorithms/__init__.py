"""Compositions of losses and advantages: one file a paper, one record each."""
