"""Further tasks of dense features, a folder each (docs/plugins/dense.md).

Linear heads: ``depth``, ``normals``, ``linear`` (classes of images); ``surfaces`` has how those of depth and normals
are chosen and saved. Without labels: ``saliency``, ``objects``, ``cluster``.
"""
