"""The notebook of the docs, run by a real kernel."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


@pytest.mark.torch
@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="needs the dev extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the dev extra")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (status,) = [cell.outputs[0].data["text/plain"] for cell in notebook.cells if "result.status," in cell.source]
    assert status.startswith("('completed', 2, 2, ")
