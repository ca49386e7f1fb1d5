"""RUN IT: settings, jars, Spark sessions, the local stack, its supervisor and the command line."""
