"""Declarations as Spark jobs: the only package of `views` that imports pyspark."""
