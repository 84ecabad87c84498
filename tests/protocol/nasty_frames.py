"""Frames that nobody means well by: a grammar of what clients can send, wrong anywhere, and the largest of each kind.

Knows JSON and the fields of the wire. Knows nothing of what is made of them.
"""

import json
from collections.abc import Callable

from hypothesis import strategies as st

from actors.server import ServerSettings

LARGEST = ServerSettings().max_frame_bytes
"""Bytes of the largest frame that is let in."""

# --- a grammar -------------------------------------------------------------------------------------------------------

NOT_QUITE = [
    *("NaN", "Infinity", "-Infinity", "nan", "undefined", "True", "None", "'a'", "0x10", "01", "+1", ".5", "1.", "--1"),
    *("1e400", "-1e400", "1e-400", "1" * 400, "9" * 5_000, "0." + "1" * 5_000, "1e99999999999", "-0", "-0.0", "1E+2"),
    *('"\\ud83d"', '"\\udc00\\ud83d"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\x"', '"\\u12"', '"', '"\\', '"\t"'),
    *("[" * 2_000, '{"a":' * 2_000, "[" * 900 + "]" * 900, "[]]", "{}}", "[,]", "{,}", '{"a"}', '{"a":}', "", " "),
    *("//", "/**/", "\ufeff", "\u2028", "\x00", "\x7f", "\ufffe", "😀", '"' + "x" * 5_000 + '"'),
]
FIELDS = [
    *("type", "model", "input", "instructions", "previous_response_id", "stream_id", "generate", "max_output_tokens"),
    *("temperature", "top_p", "include", "top_logprobs", "metadata", "truncation", "service_tier", "store", "user"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_options", "stop", "seed", "top_k", "min_p", "ignore_eos"),
    *("deadline_ms", "targets", "response_id", "resumable", "starting_after", "role", "content", "text", "tools"),
    *("stream", "background", "reasoning", "conversation", "stream_options", "tool_choice", "ttft_ms", "itl_ms"),
    *("include_obfuscation", "prewarm", "mode", "ttl", "format", "id", "status", "annotations", "logprobs", "", "é"),
]
WORDS = [
    *(
        "response.create",
        "response.cancel",
        "response.steer",
        "response.resume",
        "message",
        "input_text",
        "output_text",
    ),
    *(
        "user",
        "assistant",
        "system",
        "developer",
        "legible",
        "auto",
        "flex",
        "message.output_text.logprobs",
        "a",
        "a b",
    ),
    *("<|im_start|>", "resp_1", "\ud83d", "\x00", "x" * 300, ""),
]

_texts = st.one_of(st.sampled_from(WORDS), st.text(max_size=8)).map(json.dumps)
_numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1])).map(
    json.dumps
)
_simple = st.one_of(
    _texts, _numbers, st.sampled_from(["true", "false", "null", "[]", "{}"]), st.sampled_from(NOT_QUITE)
)


def _list(values: list[str]) -> str:
    return f"[{','.join(values)}]"


def _object(pairs: list[tuple[str, str]]) -> str:
    return f"{{{','.join(f'{name}:{value}' for name, value in pairs)}}}"


_names = st.one_of(st.sampled_from(FIELDS).map(json.dumps), _texts)
_values = st.recursive(
    _simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(_list), st.lists(st.tuples(_names, inner), max_size=4).map(_object)
    ),
    max_leaves=8,
)
_PROPER: dict[str, st.SearchStrategy[str]] = {
    "type": st.sampled_from([*["response.create"] * 5, *WORDS[1:4]]).map(json.dumps),
    "model": st.sampled_from(["legible", "m"]).map(json.dumps),
    "input": st.one_of(
        st.text(max_size=8).map(json.dumps),
        st.lists(
            st.fixed_dictionaries(
                {
                    "role": st.sampled_from(WORDS[7:11]),
                    "content": st.one_of(
                        st.text(max_size=4),
                        st.lists(
                            st.fixed_dictionaries({"type": st.sampled_from(WORDS[5:7]), "text": st.text(max_size=4)})
                        ),
                    ),
                },
            ),
            max_size=3,
        ).map(json.dumps),
    ),
    "max_output_tokens": st.sampled_from(["1", "2", "3"]),
    "stream_id": st.sampled_from(['"a"', '"b"']),
}


@st.composite
def _events(draw: st.DrawFn, strange: int) -> str:
    """Fields as they should be, up to so many others and worse ones among them, some twice."""
    pairs = [(json.dumps(name), draw(proper)) for name, proper in _PROPER.items() if draw(st.integers(0, 5))]
    pairs += draw(st.lists(st.tuples(_names, _values), max_size=strange))
    return _object(draw(st.permutations(pairs)))


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """A frame of the grammar, some bytes of which are lost, said twice, or others."""
    frame = bytearray(draw(_events(0)).encode(errors="surrogatepass"))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(frame)))
        end = min(len(frame), start + draw(st.integers(0, 12)))
        other = draw(
            st.one_of(st.binary(max_size=4), st.sampled_from(NOT_QUITE).map(str.encode), st.just(frame[start:end] * 2))
        )
        frame[start:end] = other
    return bytes(frame)


def frames() -> st.SearchStrategy[bytes]:
    """What may come in one frame, most of it nearly right."""
    return st.one_of(
        *[_events(strange).map(lambda text: text.encode(errors="surrogatepass")) for strange in (0, 1, 3)],
        _mutated(),
        _values.map(lambda text: text.encode(errors="surrogatepass")),
        st.binary(max_size=64),
    )


# --- the largest frame of each kind ----------------------------------------------------------------------------------


def _filled(before: str, unit: str, after: str) -> str:
    room = LARGEST - len(before.encode()) - len(after.encode())
    return before + unit * (room // len(unit.encode())) + after


def _create(**fields: object) -> str:
    return json.dumps({"type": "response.create", "model": "m", "stream_id": "a", "input": "Hi", **fields})


def _messages(number: int, size: int, content: Callable[[str], object] = str) -> str:
    return _create(input=[{"role": "user", "content": content("x" * size)} for _ in range(number)])


_INPUT = '{"type":"response.create","input":"'

LARGEST_OF_EACH_KIND: dict[str, Callable[[], str | bytes]] = {
    "a text": lambda: _filled(_INPUT, "x", '"}'),
    "a text of escapes": lambda: _filled(_INPUT, "\\n", '"}'),
    "a text of emoji": lambda: _filled(_INPUT, "😀", '"}'),
    "a text of surrogate pairs": lambda: _filled(_INPUT, "\\ud83d\\ude00", '"}'),
    "lone surrogates": lambda: _filled(_INPUT, "\\ud83d", '"}'),
    "a lone surrogate behind a text": lambda: _filled(_INPUT, "x", '\\ud83d"}'),
    "a lone surrogate behind commas": lambda: _filled(_INPUT, ",", '\\ud83d"}'),
    "a text that is not closed": lambda: _filled('{"x":"', '\\",', ""),
    "backslashes": lambda: _filled('{"x":"', "\\\\", '"}'),
    "bytes that are not UTF-8": lambda: b'{"x":"' + b"a" * (LARGEST - 9) + b'\xff"}',
    "open lists": lambda: _filled("", "[", ""),
    "open objects": lambda: _filled("", '{"a":', ""),
    "nested lists": lambda: "[" * (LARGEST // 2) + "]" * (LARGEST // 2),
    "lists nested as deep as may be": lambda: _filled('{"x":[', "[" * 400 + "]" * 400 + ",", "0]}"),
    "a number of digits": lambda: _filled('{"seed":', "1", "}"),
    "a fraction of digits": lambda: _filled('{"temperature":0.', "1", "}"),
    "an exponent of digits": lambda: _filled('{"temperature":1e', "1", "}"),
    "numbers too large": lambda: _filled('{"x":[', "1e400,", "0]}"),
    "long numbers": lambda: _filled('{"x":[', "1" * 300 + ",", "0]}"),
    "long numbers behind a NaN": lambda: _filled('{"x":[NaN,', "1" * 4_000 + ",", "0]}"),
    "NaN without end": lambda: _filled('{"x":[', "NaN,", "0]}"),
    "a NaN behind a text": lambda: _filled('{"x":"', "x", '","y":NaN}'),
    "as many values as may be": lambda: _filled('{"x":[', '"' + "y" * 18 + '",', "0]}"),
    "as many objects as may be": lambda: '{"x":[' + '{"a":1},' * 49_000 + "0]}",
    "objects behind which is a NaN": lambda: '{"x":[' + '{"a":1},' * 49_000 + "NaN]}",
    "one name again and again": lambda: _filled("{", '"model":"m",', '"type":"response.create"}'),
    "one name as often as may be": lambda: "{" + '"model":"m",' * 99_000 + '"type":"response.create"}',
    "names": lambda: "{" + ",".join(f'"{n}":1' for n in range(99_000)) + "}",
    "names behind which is a NaN": lambda: "{" + ",".join(f'"{n}":1' for n in range(99_000)) + ',"x":NaN}',
    "a long name": lambda: _filled('{"', "x", '":1}'),
    "long names": lambda: "{" + ",".join(f'"temperatur{n}{"e" * 8_000}":1' for n in range(240)) + "}",
    "as many messages as may be": lambda: _messages(4_096, 450),
    "as many parts as may be": lambda: _create(
        input=[{"role": "user", "content": [{"type": "input_text", "text": "x" * 450}] * 4_095}]
    ),
    "10,000 messages": lambda: _messages(10_000, 120),
    "stop texts": lambda: _create(stop=["x"] * 90_000),
    "a stop text": lambda: _filled('{"type":"response.create","input":"Hi","stop":["', "x", '"]}'),
    "metadata": lambda: _create(metadata={str(n): "v" for n in range(49_000)}),
    "a key of metadata": lambda: _create(metadata={"k" * 2_000_000: "v"}),
    "tools": lambda: _create(tools=[{"type": "function"}] * 40_000),
    "inclusions": lambda: _create(include=["message.output_text.logprobs"] * 60_000),
    "a lane": lambda: _create(stream_id="a" * 2_000_000),
    "an input to steer with": lambda: json.dumps(
        {"type": "response.steer", "previous_response_id": "r", "input": [[]] * 99_000}
    ),
    "blanks": lambda: _filled("", " ", ""),
    "blanks in an object": lambda: _filled("{", " ", "}"),
    "commas": lambda: _filled("", ",", ""),
    "quotes": lambda: _filled('{"a":', '""', ""),
    "lanes": lambda: _filled("[", '"stream_id"' + " " * 1_000, ""),
    "zeros": lambda: _filled("", "\x00", ""),
}
