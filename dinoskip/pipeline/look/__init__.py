"""A study made for a folder of photographs."""
