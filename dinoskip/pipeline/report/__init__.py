"""The report of a study, its costs and cards, from the outputs of stages."""
