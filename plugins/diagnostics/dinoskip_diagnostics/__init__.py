"""The stage and the command analyze: networks looked at from inside (docs/plugins/diagnostics.md)."""
