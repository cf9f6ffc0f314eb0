"""Published tables with our numbers in them, the claims of papers, and the command paper (docs/plugins/papers.md)."""
