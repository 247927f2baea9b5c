"""Checks and guards for users' data, and a dataset of drawn shapes for trying things out."""
