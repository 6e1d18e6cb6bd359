"""What the images of an arm, and its way to a target, cost at a price per device and hour."""

from __future__ import annotations

from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.comparison import Comparison


def dollars_per_million_images(dollars_per_device_hour: float, num_devices: int, images_per_second: float) -> float:
    """Dollars for a million images at a steady speed."""
    return dollars_per_device_hour * num_devices / 3600 / images_per_second * 1e6


def priced(comparison: Comparison, dollars_per_device_hour: float) -> Comparison:
    """The comparison with what its arms cost, where they have a speed, and seconds to a target."""
    arms = [_priced(row, dollars_per_device_hour) for row in comparison.arms]
    measured = f"{comparison.measured} · ${dollars_per_device_hour:g} per device-hour"
    return comparison.model_copy(
        update={"arms": arms, "dollars_per_device_hour": dollars_per_device_hour, "measured": measured}
    )


def _priced(row: ArmRow, price: float) -> ArmRow:
    devices, speed, target = row.num_nodes * row.devices_per_node, row.steady_images_per_second, row.to_target
    if target is not None and target.seconds is not None:
        target = target.model_copy(update={"dollars": price * devices * target.seconds / 3600})
    cost = dollars_per_million_images(price, devices, speed) if speed else None
    return row.model_copy(update={"dollars_per_million_images": cost, "to_target": target})
