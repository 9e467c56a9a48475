"""Whisper: speech -> text."""
