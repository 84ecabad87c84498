import io
import json
from pathlib import Path

from tests.kernels import in_process


def test_every_prompt_of_every_stream_is_answered_whole(small_folder: Path) -> None:
    asked = {"prompts": [["one", "two " * 300], ["three"]], "output_tokens": 5}
    answers = io.StringIO()
    in_process.main(str(small_folder), io.StringIO(json.dumps(asked) + "\n"), answers)
    ready, answered = (json.loads(line) for line in answers.getvalue().splitlines())
    assert ready == {"ready": True}
    assert [len(stream) for stream in answered["streams"]] == [2, 1]
    for record in (it for stream in answered["streams"] for it in stream):
        assert record["output_tokens"] == len(record["texts_s"]) == 5
        assert record["sent_s"] < record["texts_s"][0] <= record["texts_s"][-1] == record["ended_s"]
    assert answered["streams"][0][1]["input_tokens"] > 1000
