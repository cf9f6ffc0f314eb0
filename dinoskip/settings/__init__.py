"""Settings: what a study, a command and Python are configured with, and records of tasks and networks."""
