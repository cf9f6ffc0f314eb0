"""What the gallery shows, gathered from the outputs of stages, and its pages."""
