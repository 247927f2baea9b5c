"""The main job in minutes: train, evaluate and look, on data that is drawn on the spot."""
