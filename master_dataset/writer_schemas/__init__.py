"""The schemas that records of a source were written with: asked of the schema registry once, and noted.

`noted.py` notes the answers beside the master table. They come from another registry by HTTP (`registry.py`), or from
the topic of our own (`own_registry.py`).
"""
