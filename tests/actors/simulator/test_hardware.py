"""Profiles: those that come with rota, those in files, and the sentence about one that cannot be used."""

from pathlib import Path

import pytest
from msgspec import structs

from actors.scheduling.costs import Costs
from actors.simulator import roofline
from actors.simulator.hardware import BUILT_IN, Hardware, HardwareError, as_toml, named
from tests.actors.simulator.plain import PLAIN


@pytest.mark.parametrize("profile", BUILT_IN, ids=lambda profile: profile.name)
def test_a_profile_says_where_its_numbers_come_from_and_holds_one_full_context(profile: Hardware) -> None:
    assert named(profile.name) is profile
    assert "easured" in profile.about
    assert profile.blocks * profile.block_size >= profile.max_context


@pytest.mark.parametrize("profile", [*BUILT_IN, PLAIN], ids=lambda profile: profile.name)
def test_what_a_worker_on_it_would_measure_is_fitted_to_what_it_is(profile: Hardware) -> None:
    assert Costs(profile.calibration()).coefficients == pytest.approx(profile.coefficients, rel=0.01, abs=1e-12)


@pytest.mark.parametrize("profile", [*BUILT_IN, PLAIN], ids=lambda profile: profile.name)
def test_a_profile_written_to_a_file_is_read_as_it_was(profile: Hardware, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(as_toml(profile), encoding="utf-8")
    assert named(str(file)) == profile


def test_a_file_without_a_name_is_called_after_itself(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(as_toml(PLAIN).replace('name = "plain"\n', ""), encoding="utf-8")
    assert named(str(file)) == structs.replace(PLAIN, name="mine")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("blocks = 1000", "blocks = 0"), "blocks: Expected `int` >= 1"),
        (("blocks = 1000", "block = 1000"), "the file: there is no key `block`"),
        (("base_s = 0.1\n", ""), "step: it lacks the key `base_s`"),
        (("base_s = 0.1", "base_s = -1.0"), "step.base_s: Expected `float` >= 0.0"),
        (("blocks = 1000", "blocks = 10"), "10 blocks of 16 hold 160 tokens, and max_context is 4,096"),
        (("blocks = 1000", f"blocks = {1 << 30}"), "1,073,741,824 blocks are more than can be simulated; the most is "),
        (("blocks = 1000", "blocks ="), "is not TOML"),
    ],
)
def test_a_profile_that_cannot_be_used_is_a_sentence(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(as_toml(PLAIN).replace(*change), encoding="utf-8")
    with pytest.raises(HardwareError) as caught:
        named(str(file))
    assert str(file) in str(caught.value)
    assert sentence in str(caught.value)


def test_an_unknown_name_or_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"There is no hardware 'h2000': rota comes with laptop and h200; a file "):
        named("h2000")
    with pytest.raises(HardwareError, match=r"mine\.toml cannot be read: No such file or directory\."):
        named(str(tmp_path / "mine.toml"))


def test_the_arithmetic_finds_the_weights_that_the_model_card_says() -> None:
    model = roofline.LLAMA_3_1_8B
    assert model.all_bytes / roofline.BYTES == pytest.approx(8.03e9, rel=0.001)
    assert model.kv_token_bytes == 131_072
    assert model.token_flops == pytest.approx(2 * 6.98e9, rel=0.001)


def test_the_h200_decodes_alone_as_fast_as_it_reads_its_weights() -> None:
    base_s = named("h200").step.base_s
    assert base_s == pytest.approx(7.5e9 * 2 / (0.6 * 4.8e12), rel=0.01)
