"""THE PROTOCOL between batch and speed layer: HANDOFF.md describes it, model.py is its executable specification."""
