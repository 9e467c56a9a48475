"""Architectures, one folder a family: the network and the task that it does."""
