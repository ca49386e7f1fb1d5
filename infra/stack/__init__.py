"""The local stack: services, their supervisor, ports and logs."""
