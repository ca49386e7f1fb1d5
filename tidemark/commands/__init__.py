"""Every group of commands of `tidemark`, one module each; tidemark/cli.py lists them."""
