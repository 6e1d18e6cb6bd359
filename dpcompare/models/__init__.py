"""Models: architectures, initial weights and layouts that all frameworks share."""
