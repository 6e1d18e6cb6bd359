"""How a comparison is shown: text formats, plots, and one self-contained page."""
