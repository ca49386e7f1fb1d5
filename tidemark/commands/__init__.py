"""The commands of `tidemark`: a module for each group or single command that tidemark/cli.py lists.

`stack` has the commands without a group (up, down, status and others), and `options` the options that commands share.
The demo is a package of its own, tidemark/demo.
"""
