"""Tasks on videos and on pairs of images (docs/plugins/video.md).

``video`` follows objects, ``correspondence`` finds keypoints.
"""
