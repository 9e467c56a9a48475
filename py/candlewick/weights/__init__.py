"""Bytes -> named tensors. Headers are read first and checked in full; data only when somebody asks for it."""
