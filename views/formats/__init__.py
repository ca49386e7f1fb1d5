"""What records of formats other than plain JSON are: their frames, their schemas, and how one is decoded in Python.

Nothing here reads or writes anything; the schemas come with the declaration, or from `master_dataset/writer_schemas`.
"""
