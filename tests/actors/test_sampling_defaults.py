import json
from pathlib import Path

from actors.sampling_defaults import SamplingDefaults, sampling_of
from protocol.messages import Sampling
from protocol.responses import LOGPROBS, ResponseCreate


def test_openai_s_defaults_hold_where_nobody_says_otherwise() -> None:
    assert sampling_of(ResponseCreate(), SamplingDefaults(), 9) == Sampling(1.0, 1.0, 0, 0.0, 9, None)


def test_the_client_s_word_counts_before_the_model_s() -> None:
    defaults = SamplingDefaults(0.6, 0.9, 20, 0.05)
    assert sampling_of(ResponseCreate(), defaults, 9) == Sampling(0.6, 0.9, 20, 0.05, 9, None)
    create = ResponseCreate(temperature=0.2, top_p=0.5, top_k=0, min_p=0.0, seed=7, include=(LOGPROBS,), top_logprobs=3)
    assert sampling_of(create, defaults, 9) == Sampling(0.2, 0.5, 0, 0.0, 7, 3)


def test_greedy_needs_no_seed_but_keeps_the_client_s() -> None:
    assert sampling_of(ResponseCreate(temperature=0.0), SamplingDefaults(), 9).seed == 0
    assert sampling_of(ResponseCreate(temperature=0.0, seed=7), SamplingDefaults(), 9).seed == 7


def test_a_model_s_folder_says_how_it_likes_to_be_sampled(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    assert SamplingDefaults.load(tmp_path) == SamplingDefaults()
    file.write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "top_k": None, "eos_token_id": 2}))
    assert SamplingDefaults.load(tmp_path) == SamplingDefaults(temperature=0.6, top_p=0.9)
    file.write_text(json.dumps({"temperature": 0.6, "do_sample": False}))
    assert SamplingDefaults.load(tmp_path) == SamplingDefaults()
