"""One file per figure of a paper: its claim, a criterion fixed beforehand, and a verdict.

`python -m experiments.figures` lists them with their last verdict; `--all` runs them all.
"""
