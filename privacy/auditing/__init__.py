"""Measured lower bounds on a mechanism's leakage, to compare with the proven upper bounds."""
