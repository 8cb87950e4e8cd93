"""Every formula that is differentiated; each opens with its equation."""
