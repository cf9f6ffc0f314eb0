"""The kinds of data set with depth and surface normals, a file each."""
