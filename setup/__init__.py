"""What serve.py does: make everything the pages need (environment, runtime, weights, wheel) and serve it.

Runs on a bare Python 3.11 or newer: the standard library and nothing else.
"""
