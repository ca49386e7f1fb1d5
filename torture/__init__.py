"""The fault programme: inject faults into a running installation, and check every answer."""
