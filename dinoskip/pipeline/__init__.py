"""Studies: variants × stages, cached by content, resumable (``dinoskip run``)."""
