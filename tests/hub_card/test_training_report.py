"""The section of a card about the training."""

import re
import shutil

from exports import names, refused, run

import wedlm
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.training.dataset import DataSummary
from wedlm.training.train import write_report


def test_the_summary_of_a_training(tmp_path, model, unchecked):
    log = [
        {"loss": 3.0, "mlm_loss": 3.1, "ar_loss": 2.9, "epoch": 0.5, "step": 1000},
        {"loss": 1.5, "mlm_loss": 2.0, "ar_loss": 1.0, "epoch": 1.25, "step": 2000},
        {"eval_loss": 1.75, "epoch": 1.25, "step": 2000},
        {"train_runtime": 600.0, "train_loss": 2.25, "epoch": 1.25, "step": 2000},
    ]
    data = {"train": DataSummary(64, num_read=1200, num_samples=1100, num_tokens=5000, num_loss_tokens=3000)}
    write_report(model, ["/home/me/full.yaml", "--hub_token", "secret", "--output_dir=/data/me/out"], log, data)
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    text = text[text.index("## Training") : text.index("## Limits")]
    facts = dict(re.findall(r"^\| (\w[\w, ()-]*?) \| (.*) \|$", text, flags=re.MULTILINE))
    assert facts.pop("versions").startswith(f"wedlm {wedlm.__version__}, torch ")
    assert facts == {
        "optimizer steps": "2,000",
        "epochs": "1.25",
        "data (train)": "1,100 samples from 1,200 records: 5,000 tokens, 3,000 of them with loss",
        "loss, nats per token": "1.500, of masked tokens 2.000, of next tokens 1.000",
        "loss on held-out data": "1.750",
        "time": "10 minutes",
    }
    assert "```bash\nwedlm train full.yaml --hub_token=... ... --output_dir=out\n```\n\n![" in text
    assert (tmp_path / "out" / "loss.png").read_bytes() == (model / "loss.png").read_bytes()


def test_a_training_file_that_is_none(tmp_path, model, unchecked):
    shutil.copy(DEMO_FOLDER / "training.json", tmp_path / "other.json")
    (tmp_path / "loss.png").write_text("no picture")
    arguments = (model, tmp_path / "out", "--license", "mit", "--training", tmp_path / "other.json")
    assert run(*arguments).exit_code == 0
    assert "loss.png" not in names(tmp_path / "out") and "loss.png" not in (tmp_path / "out/README.md").read_text()
    shutil.rmtree(tmp_path / "out")
    for content, sentence in (("{}", "KeyError: 'results'"), ('{"log": []}', "IndexError: "), ("[]", "TypeError: ")):
        (tmp_path / "other.json").write_text(content)
        assert f"other.json is not a file of `wedlm train` ({sentence}" in refused(*arguments)
