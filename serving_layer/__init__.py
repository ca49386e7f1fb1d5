"""ANSWER: batch state and speed state, merged, presented and explained; starts without a JVM."""
