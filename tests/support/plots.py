"""What a plot draws, as rows."""


def drawn_values(plot):
    """The rows of all layers that have more than two fields: not those of the lines that only guide the eye."""
    found = []
    for name, values in plot.chart.to_dict().get("datasets", {}).items():
        found += [row for row in values if len(row) > 2] if name else []
    spec = plot.chart.to_dict()
    for layer in [spec, *spec.get("layer", [])]:
        values = layer.get("data", {}).get("values", [])
        found += [row for row in values if len(row) > 2 and row not in found]
    return found
