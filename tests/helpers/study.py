"""The smallest study with every stage of the core: two variants of two blocks, 16 scenes of 64 pixels, one epoch."""

from importlib.util import find_spec

ANALYZE = "analyze: {enabled: false}\n" if find_spec("dinoskip_diagnostics") else ""
"""Every study has the stage of this plug-in where it is installed, if it is not told otherwise."""
SVG = "report: {figure_formats: []}\n"
"""Figures as the page shows them, without the files for papers, which take a third of a small report's time."""
PLAIN = ("report.figure_formats=[]", "gallery.sheet_formats=[]")
"""The same for commands, and a gallery without its contact sheets."""
TINY = """
name: tiny
data:
  scenes: {kind: scenes, images: 16, size: 64, val_fraction: 0.5}
model: {name: vit_tiny_patch16, depth: 2, img_size: 32}
variants:
  model: [{skip: true}, {skip: false, init: {name: skipless}}]
pretrain:
  dataset: scenes
  epochs: 1
  warmup_epochs: 0
  batch_size: 4
  out_dim: 32
  hidden_dim: 32
  bottleneck_dim: 16
  warmup_teacher_temp_epochs: 0
  crops: {global_size: 32, local_size: 16, num_local: 1}
evaluate:
  multiscale: [1, 2]
  probe: {datasets: [scenes], size: 64, epochs: 2, learning_rates: [1e-3, 1e-2]}
  tokencut: {datasets: [scenes]}
  knn: {datasets: [scenes], k: [3], size: 64}
  retrieve: {datasets: [scenes], size: 48, memory: 50, k: 3}
gallery: {first: 3, sheet_formats: []}
"""
TINY += ANALYZE + SVG

# The same for labelled folders: DATA is to be replaced by the folder with train and val.
SUPERVISED = """
name: labelled
data: {shapes: {kind: folder, root: DATA}}
model: {name: vit_tiny_patch16, depth: 1, img_size: 32}
variants:
  model: [{skip: true}, {skip: false, init: {name: skipless}}]
supervise:
  dataset: shapes
  epochs: 1
  warmup_epochs: 0
  batch_size: 6
  augment: {size: 32}
evaluate: {knn: {datasets: [shapes], k: [1], size: 32}}
"""
SUPERVISED += ANALYZE + SVG
