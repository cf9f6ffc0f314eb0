"""The report of a study, its costs and cards, and the page of the whole paper, from the outputs of stages."""
