"""Events, filters, calibration and certificates. Nothing in this package imports torch."""
