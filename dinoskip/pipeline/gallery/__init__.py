"""Contents of the gallery, gathered from the outputs of stages, and its pages."""
