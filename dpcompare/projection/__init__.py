"""Projection: what more nodes and other links would bring, predicted from what was measured; see docs/projection.md."""
