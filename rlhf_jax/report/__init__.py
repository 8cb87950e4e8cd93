"""What people look at: run folder, progress, sample tables, curves."""
