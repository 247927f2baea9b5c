"""Checks and guards for users' data, and a data set of drawn shapes for trying things out."""
