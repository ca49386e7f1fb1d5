"""A query in four steps: parse, plan, execute, result."""
