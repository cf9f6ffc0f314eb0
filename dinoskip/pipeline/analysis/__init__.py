"""What ``dinoskip analyze`` and the stage ``analyze`` measure inside networks, as JSON and text."""
