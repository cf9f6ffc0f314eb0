"""The process: terminal, environment, cores, precision, randomness, and processes that train together."""
