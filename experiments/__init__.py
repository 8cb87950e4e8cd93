"""Runnable experiments: a file is an experiment."""
