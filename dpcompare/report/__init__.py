"""The reports of a comparison: text formats, plots, and one self-contained page."""
