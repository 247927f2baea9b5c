"""The whole job in minutes: train, evaluate and look, on images drawn on the spot."""
