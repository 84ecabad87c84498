"""API keys: whose one is, how the file of them is read, and that no key is ever said again."""

import hmac
import io
import re
from argparse import ArgumentParser
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from actors import key_command
from actors.config import ConfigError, load
from actors.keys import NAME_IN_WORDS, Key, KeyLimits, Keys, KeysError, digest, new_key, read_keys, table_of
from actors.targets import Goal, Target

HASH = f"sha256:{digest('sesame').hex()}"


def file_of(folder: Path, text: str) -> Path:
    path = folder / "keys.toml"
    path.write_text(text)
    return path


# --- whose it is ---


def test_without_keys_everybody_is_the_same_nameless_owner() -> None:
    assert Keys().whose("anything") == ""
    assert not Keys()


def test_a_key_names_its_owner_and_anything_else_names_nobody() -> None:
    owners = Keys.in_clear({"shop": "sesame", "blog": "mellon"})
    assert (owners.whose("sesame"), owners.whose("mellon")) == ("shop", "blog")
    for wrong in ("", "sesam", "sesamee", "SESAME", HASH, digest("sesame").hex(), "sesame\udce9"):
        assert owners.whose(wrong) is None


@pytest.mark.parametrize("given", ["first", "second", "third", "none of them"])
def test_every_key_is_compared_in_constant_time_whichever_fits(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    in_constant_time = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return in_constant_time(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    owners = Keys.in_clear({"a": "first", "b": "second", "c": "third"})
    owners.whose(given)
    assert compared == [(digest(key), digest(given)) for key in ("first", "second", "third")]


def test_one_key_cannot_have_two_owners() -> None:
    with pytest.raises(KeysError, match="'a' and 'b' have the same key"):
        Keys.in_clear({"a": "sesame", "b": "sesame"})


def test_no_key_is_kept() -> None:
    owners = Keys.in_clear({"shop": "sesame"})
    assert "sesame" not in repr(vars(owners))


# --- the command ---


def made(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    parser = ArgumentParser()
    key_command.add_arguments(parser)
    code = key_command.run(parser.parse_args([name]))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("name", ["anna", "team-1.b_c"])
def test_a_made_key_is_shown_once_and_its_lines_stand_alone_on_standard_output(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = made(name, capsys)
    [key] = re.findall(r"^  (rota_\S+)$", err, re.MULTILINE)
    assert code == 0
    assert key not in out
    assert Keys(read_keys(file_of(tmp_path, out))).whose(key) == name


def test_several_made_keys_make_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(made(name, capsys)[1] for name in ("anna", "bert"))
    assert list(read_keys(file_of(tmp_path, text))) == ["anna", "bert"]


@pytest.mark.parametrize("name", ["anna", "an.na"])
def test_a_file_with_one_name_twice_says_whose(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path, "".join(made(name, capsys)[1] for _ in range(2)))
    with pytest.raises(KeysError) as caught:
        read_keys(path)
    assert str(caught.value).startswith(f"{path}: {name} is there twice (at line 3, column ")
    assert "sha256" not in str(caught.value)


def test_a_name_that_no_key_can_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = made("an na", capsys)
    assert (code, out) == (2, "")
    assert NAME_IN_WORDS in err


def test_what_a_name_is_made_of_is_said_the_same_everywhere(tmp_path: Path) -> None:
    parser = ArgumentParser()
    key_command.add_arguments(parser)
    assert NAME_IN_WORDS in " ".join(parser.format_help().split())
    with pytest.raises(KeysError, match=f"otherwise than by {NAME_IN_WORDS}"):
        read_keys(file_of(tmp_path, '["an na"]\n'))
    with pytest.raises(ConfigError, match=f"a name of {NAME_IN_WORDS}"):
        load({"api_keys": ["an na=sesame"]}, {}, tmp_path)
    every_sort = "aZ0._-"
    assert list(read_keys(file_of(tmp_path, table_of(every_sort, "sesame")))) == [every_sort]


def test_no_two_keys_are_alike_and_each_fits_a_header_and_a_subprotocol() -> None:
    made_keys = {new_key() for _ in range(100)}
    assert len(made_keys) == 100
    # RFC 9110: a subprotocol is a token. 43 characters of 6 bits hold 256 random ones.
    assert all(re.fullmatch(r"rota_[A-Za-z0-9_-]{43}", key) for key in made_keys)


# --- the file ---


def test_limits_stand_beside_the_hash(tmp_path: Path) -> None:
    text = table_of("shop", "sesame") + (
        'requests_per_minute = 60\nrunning = 8\ntier = "priority"\nttft_ms = 500\nitl_ms = 50.5\n'
    )
    limits = KeyLimits(requests_per_minute=60, running=8, tier="priority", ttft_ms=500.0, itl_ms=50.5)
    assert read_keys(file_of(tmp_path, text)) == {"shop": Key(digest("sesame"), limits)}


def test_a_key_without_limits_may_do_what_anybody_may(tmp_path: Path) -> None:
    [key] = read_keys(file_of(tmp_path, table_of("shop", "sesame"))).values()
    assert key.limits == KeyLimits()
    assert key.limits.floor is None
    assert KeyLimits(ttft_ms=5.0).floor == Target(5.0, 0.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[shop]\n", "shop needs the hash of its key"),
        ('[shop]\nhash = "hushhush"\n', "shop needs the hash of its key"),
        (f'[shop]\nhash = "{HASH.upper()}"\n', "shop needs the hash of its key"),
        ("[shop]\nhash = 3\n", "shop needs the hash of its key"),
        ('shop = "hushhush"\n', "each key is a table of its own"),
        ('hushhush = "x"\n', "each key is a table of its own"),
        ('["hush hush"]\n', "names a key otherwise than by letters"),
        (f'[shop]\nhash = "{HASH}"\nzzz = 1\n', "has something that no key has. A key has hash, requests_"),
        (f'[shop]\nhash = "{HASH}"\nhushhush = 1\n', "has something that no key has. A key has hash, requests_"),
        (f'[shop]\nhash = "{HASH}"\nrunnning = 1\n', "shop has runnning, which no key has. Did you mean running?"),
        (f'[shop]\nhash = "{HASH}"\nrunning = 0\n', "shop.running must be a whole number from 1 to"),
        (f'[shop]\nhash = "{HASH}"\nrunning = true\n', "shop.running must be a whole number from 1 to"),
        (f'[shop]\nhash = "{HASH}"\nrequests_per_minute = 1.5\n', "shop.requests_per_minute must be a whole number"),
        (f'[shop]\nhash = "{HASH}"\nttft_ms = inf\n', "shop.ttft_ms must be a number of milliseconds above 0"),
        (f'[shop]\nhash = "{HASH}"\nitl_ms = "hushhush"\n', "shop.itl_ms must be a number of milliseconds above 0"),
        (f'[shop]\nhash = "{HASH}"\ntier = "prio"\n', "shop.tier is no tier. Did you mean priority?"),
        ("[shop]\nhash = hushhush\n", "it is not TOML (at line 2"),
        ('[shop]\nhash = "x"\nhash = "hushhush"\n', "it is not TOML (at line 3"),
        ('["hush hush"]\n["hush hush"]\n', "it is not TOML (at line 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_why_without_what_may_be_a_key(
    text: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(KeysError) as caught:
        read_keys(file_of(tmp_path, text))
    assert sentence in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"missing\.toml cannot be read: No such file"):
        read_keys(tmp_path / "missing.toml")
    (tmp_path / "latin.toml").write_bytes(b"# gr\xfcn\n")
    with pytest.raises(KeysError, match="it is not TOML"):
        read_keys(tmp_path / "latin.toml")


def test_the_command_says_the_key_only_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    aside = io.StringIO()
    with redirect_stderr(aside):
        _, out, _ = made("anna", capsys)
    assert "rota_" in aside.getvalue()
    assert "rota_" not in out


# --- the manual ---


def test_every_limit_of_the_readmes_key_has_an_effect(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    [example] = re.findall(r"```toml\n(\[anna\].*?)```", readme, re.DOTALL)
    path = file_of(tmp_path, example.replace("sha256:…", HASH))
    limits = read_keys(path)["anna"].limits
    assert None not in (limits.requests_per_minute, limits.running, limits.tier, limits.ttft_ms, limits.itl_ms)

    def best(text: str) -> Goal:
        """Of whoever asks for all there is, with that file."""
        path.write_text(text)
        return load({"keys_file": str(path)}, {}, tmp_path).tiers.resolve("ultrafast", 1.0, 1.0, "anna")

    whole = path.read_text()
    assert best(whole) == Goal("priority", 3.0, 0.2)
    assert best(re.sub(r"(?m)^(ttft|itl)_ms.*\n", "", whole)) == Goal("priority", 2.0, 0.15)
    assert best(re.sub(r"(?m)^tier.*\n", "", whole)) == Goal("ultrafast", 3.0, 0.2)
