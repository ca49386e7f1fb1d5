"""RUN IT: settings, clients, REST basics, Java, Spark sessions, the local stack and its supervisor."""
