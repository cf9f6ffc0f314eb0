"""The examples of docs/extending.md: a part of every kind."""
