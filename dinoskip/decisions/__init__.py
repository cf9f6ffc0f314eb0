"""Decisions from scores: which block of a network is read, and which of two networks is better.

``cross_fitting`` chooses a block on one half of the images and scores it on the other; ``choosing`` reads a network at
a block that the images shown have not chosen, where that can be, and says how; ``failures`` are cuts that say nothing
of a network; ``comparing`` compares two networks, image by image and over their seeds of training, and decides all
comparisons of a page together. The report, the board, the paper's claims and ``dinoskip compare`` all ask here.
"""
