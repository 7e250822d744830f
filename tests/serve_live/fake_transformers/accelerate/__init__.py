"""Stands where accelerate would: the one function by which hooks send, and what calls it."""
