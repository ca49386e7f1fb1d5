"""Events on their way in: the envelope, strict JSON, and whether a value fits its declared field."""
