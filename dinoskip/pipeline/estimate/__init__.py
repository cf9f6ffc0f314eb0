"""Estimates of the cost of a study: operations, disk, and seconds at the rates of its finished stages."""
