"""Host-side reward functions under one contract."""
