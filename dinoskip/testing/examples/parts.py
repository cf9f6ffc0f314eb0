"""All examples as one plug-in, named as a file: ``plugins: [parts.py]`` of a study, or ``--plugin parts.py``."""

from __future__ import annotations

from dinoskip.testing.examples import distance, hello, lion, notes, smoothness, turns, xavier

PARTS = {
    "tasks": {"smoothness": smoothness.TASK, "note_length": notes.LENGTH},
    "labels": {"notes": notes.NOTES},
    "data_kinds": {"beside": notes.BesideConfig},
    "layers": {"distance": distance.LAYER},
    "objectives": {"turns": turns.TurnsConfig},
    "initialisations": {"xavier": xavier.XavierInit},
    "optimizers": {"lion": lion.LionConfig},
    "commands": {"hello": hello.add_commands},
}
