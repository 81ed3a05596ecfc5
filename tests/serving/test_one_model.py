"""The one model that requests can name."""

import json

import openai
import pytest
from serving_client import (
    chat,
    post,
)


def test_only_one_model_is_there(client, server):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny") == model
    for other in ("other", "an/other"):
        with pytest.raises(openai.NotFoundError, match=f"This server has tiny only, not {other}."):
            client.models.retrieve(other)
    with pytest.raises(openai.BadRequestError, match="pinned to 'tiny'; requested 'other'"):
        chat(client, model="other")
    assert "This server has tiny only, not other." in post(server, "/load_model", {"model": "other"})[1]
    assert '"status": "ready", "model": "tiny"' in post(server, "/load_model", {"model": "tiny"})[1]
    assert post(server, "/reset", {})[0] == 200 and chat(client).choices
    status, answer = post(server, "/v1/responses", {"model": "tiny", "input": "the cat"})
    assert status == 404 and json.loads(answer)["error"]["message"].endswith(
        "/v1/chat/completions and /v1/completions."
    )
