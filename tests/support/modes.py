"""Every mode that runs on CPU devices, as parameters of tests."""

import pytest

from dpcompare.config.modes import MODES, USUAL_MODES
from tests.support.marks import with_mark


def marked(framework, mode, nodes, devices):
    name = f"{framework}-{mode}-{nodes}x{devices}"
    return pytest.param((framework, mode, nodes, devices), id=name, marks=getattr(pytest.mark, framework))


def rows(*, usual):
    """Every mode that runs on CPU devices, on two replicas; on one where it is asynchronous: its losses then vary."""
    return [
        marked(
            framework,
            mode,
            len(row.roles) + 1 if row.roles else 2 if row.multi_node else 1,
            2 if row.is_pipeline or (row.multi_device and not row.multi_node) else 1,
        )
        for (framework, mode), row in MODES.items()
        if ((framework, mode) in USUAL_MODES) == usual and "cpu" in row.device_types
    ]


DEFAULT_MODES = rows(usual=True)
OTHER_MODES = [with_mark(arm, pytest.mark.slow) for arm in rows(usual=False)]
ALL_MODES = DEFAULT_MODES + OTHER_MODES
