"""The dashboard: a page made from the declarations, served with everything it needs; nothing comes from elsewhere."""
