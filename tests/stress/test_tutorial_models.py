"""What is taken of a tutorial: the statements that a model needs, unchanged."""

from stress.tutorial_models import FLAX, KERAS, code_of, lines_of, module_of, needed

PAGE = """
# A tutorial

```{code-cell} ipython3
!pip install library
import numpy
from library import Layer as Base, other
size = 3
```

Text with an `x = 1`, outside the code.

```{code-cell}
class Net(Base):
  def __init__(self, images):
    # as it was trained
    self.size = size

images = numpy.ones(size)
print(Net(images))
```
"""


def test_a_model_is_taken_with_what_it_needs(tmp_path):
    page = tmp_path / "tutorial.md"
    page.write_text(PAGE)
    assert needed(code_of(page), "Net").split("\n\n") == [
        "from library import Layer as Base, other",
        "size = 3",
        "class Net(Base):\n  def __init__(self, images):\n    # as it was trained\n    self.size = size\n",
    ]
    program = tmp_path / "tutorial.py"
    program.write_text("import a.b\n\nmodel = a.b.Net()\nmodel.fit()\n")
    assert needed(code_of(program), "model") == "import a.b\n\nmodel = a.b.Net()\n"


def test_what_a_user_writes_is_python_and_counted():
    for tutorial in (FLAX, KERAS):
        compile(module_of(tutorial), "mine.py", "exec")
    assert (lines_of(FLAX.around), lines_of(KERAS.around)) == (7, 7)
