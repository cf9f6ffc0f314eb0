"""Files: read and written safely, locked, as arrays and as images."""
