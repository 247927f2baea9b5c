"""The whole workflow in minutes: train, evaluate and show two models on drawn images."""
