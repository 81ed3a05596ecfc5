"""docs/tour.ipynb: runs its cells in a kernel of Jupyter and keeps what they print.

python tests/make_tour.py
"""

import os
import shutil
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parents[1] / "docs"
os.environ["TQDM_DISABLE"] = "1"  # of the kernel too: a page needs no progress bars
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

notebook = nbformat.read(DOCS / "tour.ipynb", as_version=4)
try:
    NotebookClient(notebook, resources={"metadata": {"path": str(DOCS)}}).execute()
finally:
    shutil.rmtree(DOCS / "tour", ignore_errors=True)  # what its cells write
for cell in notebook.cells:
    cell.metadata.pop("execution", None)  # the times of this run
    if cell.cell_type == "code":  # as one text, without warnings, which name places on this machine
        printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)]
nbformat.write(notebook, DOCS / "tour.ipynb")
