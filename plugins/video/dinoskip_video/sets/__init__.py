"""The kinds of data set of videos and of pairs of images, a file each."""
