"""Read records back from the master dataset, with and without Spark."""
