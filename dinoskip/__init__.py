"""dinoskip: train DINO ViTs with and without skip connections, and measure every layer."""

__version__ = "0.1.0"
