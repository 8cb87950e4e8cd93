"""Prompts and demonstrations: generated, read from files, batched by grain."""
