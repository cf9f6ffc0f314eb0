"""iBOT, MAE, distillation, and losses added to those of other objectives (docs/plugins/objectives.md)."""
