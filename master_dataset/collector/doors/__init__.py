"""Doors: routes and ports of protocols that clients speak already. Each maps its messages onto events of a source."""
