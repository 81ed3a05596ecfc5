"""Stop strings in whole answers and in streams."""

from itertools import accumulate

from serving_client import WITH_USAGE, chat, commits, generated, streamed

from wedlm.serving.stop_strings import before_possible_stop, before_stop


def test_stop_strings_end_a_text_and_are_no_part_of_it(checkpoint, client):
    text = generated(checkpoint)[2]
    ends = list(accumulate(map(len, commits(checkpoint))))  # a stop string may begin in one commit and end in another
    across = [text[end - 1 : end + 2] for end in ends[2:12]]
    for stop in (text[10:13], *across, [text[30:33], text[15:18]], "nowhere in it", []):
        expected = before_stop(text, stop)
        answer = chat(client, stop=stop)
        assert answer.choices[0].message.content == expected, stop
        texts, reason, usage = streamed(chat(client, stop=stop, **WITH_USAGE))
        assert "".join(texts) == expected and usage == answer.usage
        assert reason == answer.choices[0].finish_reason == ("length" if expected == text else "stop")
        assert (usage.completion_tokens < 40) == (expected != text)
    assert before_possible_stop("ab<e", ["<end>", "e!"]) == "ab"
    assert before_possible_stop("ab<en|", ["<end>"]) == "ab<en|"
    assert before_possible_stop("ab!cd", ["!"]) == "ab"
