"""What the `candlewick` command does, one file a command; `cli.py` only parses words and prints errors.

Nothing here is imported in a page. Each file imports NumPy and the models when its command runs, so that
`candlewick --help` answers at once.
"""
