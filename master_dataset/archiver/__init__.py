"""The archiver: appends records from Kafka to the master dataset, each offset exactly once.

`__main__.py` is the process, `source_archiver.py` opens and reopens each source, and `archive.py` is its Spark query.
"""
