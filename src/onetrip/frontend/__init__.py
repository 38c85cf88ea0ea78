"""Frontends: a model of another system in, our own Graph out."""
