"""Measured lower bounds on what a mechanism leaks, to stand beside the proven upper bounds."""
