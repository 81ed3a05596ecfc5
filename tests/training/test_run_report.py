"""The report that a run leaves."""

import json

import pytest
from matplotlib.figure import Figure

from wedlm.training.run_report import plot_losses, without_secrets, write_report


def test_secrets_are_not_written():
    words = ["a.yaml", "--hub_token", "secret", "--push_to_hub_token=secret", "--hub-token=secret", "--lr", "1"]
    written = " ".join(without_secrets(words))
    assert "secret" not in written and "--lr 1" in written and "a.yaml" in written


@pytest.mark.full
def test_the_report_of_a_run(full_run):
    report = json.loads((full_run.folder / "training_report.json").read_text())
    assert "secret" not in report["command"]
    assert report["command"].startswith("wedlm train") and report["versions"].keys() >= {"torch", "transformers"}
    assert report["data"]["train"]["num_samples"] == 10 and report["train"]["step"] == 2
    assert report["train"]["mlm_loss"] > 0 and report["eval"]["eval_loss"] > 0
    assert (full_run.folder / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_plot_has_the_losses_of_each_step(tmp_path, monkeypatch):
    drawn = {}

    def note(self, path, **options):
        drawn.update({line.get_label(): line.get_xydata().tolist() for line in self.axes[0].lines})

    monkeypatch.setattr(Figure, "savefig", note)
    steps = [{"step": 1, "loss": 3.0, "mlm_loss": 4.0}, {"step": 5, "loss": 2.0, "mlm_loss": 2.5, "ar_loss": 1.5}]
    plot_losses(steps, [{"step": 5, "eval_loss": 2.5}], tmp_path / "loss.png")
    assert drawn == {
        "loss": [[1, 3], [5, 2]], "mlm_loss": [[1, 4], [5, 2.5]], "ar_loss": [[5, 1.5]], "eval_loss": [[5, 2.5]]
    }  # fmt: skip


def test_a_report_without_steps_or_data(tmp_path):
    write_report(tmp_path, ["a.yaml"], [], {})
    report = json.loads((tmp_path / "training_report.json").read_text())
    assert (report["train"], report["eval"], report["data"], report["log"]) == (None, None, {}, [])
    assert (tmp_path / "loss.png").exists()
