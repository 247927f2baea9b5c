"""Users' data, checked and guarded, and a data set of drawn shapes for trying things out."""
