"""The error of every decoder."""


class Undecodable(Exception):
    """A record that is no event, for the reason in the text."""
