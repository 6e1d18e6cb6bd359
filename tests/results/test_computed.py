"""What a training computed first: figures as large as its types allow are taken, impossible ones are refused."""

import pytest
from pydantic import TypeAdapter, ValidationError

from dpcompare.system.json_files import MOST, Norm, Rate


def test_the_norm_of_a_gradient_that_exploded_is_a_figure():
    assert TypeAdapter(Norm).validate_python(1e38) == 1e38
    for impossible in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            TypeAdapter(Norm).validate_python(impossible)


@pytest.mark.parametrize("impossible", [0.0, 10 * MOST])
def test_a_refusal_is_no_line_of_hundreds_of_digits(impossible):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Rate).validate_python(impossible)
    assert len(refused.value.errors()[0]["msg"]) < 80
