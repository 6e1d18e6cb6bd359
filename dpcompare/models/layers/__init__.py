"""Layers that the models of a framework share."""
