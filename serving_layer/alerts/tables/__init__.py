"""The tables of the alert journal, a module each. `serving_layer.alerts.journal` writes them together."""
