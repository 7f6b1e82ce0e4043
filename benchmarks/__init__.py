"""Measurements: what policing costs."""
