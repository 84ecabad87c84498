"""The commands one types in `rota chat`: what they are called, what they change, and which one a misspelt word meant.

Knows settings and figures. Knows no socket and no screen; what a command has to say is returned.
"""

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from loadgen.chat_conversation import Conversation
from loadgen.chat_words import time_of, tokens_in
from protocol.responses import ServiceTier, Targets

_COMMAND = re.compile(r"/[A-Za-z]*(?=\s|$)")
_TARGET = re.compile(r"(ttft|itl)=([0-9.]+)(ms|s)")
TIERS: tuple[ServiceTier, ...] = get_args(ServiceTier)
LEAVE = "Ctrl-D or /quit leaves."


class BadValue(ValueError):
    """What was typed is no value of the setting. The message says what one looks like."""


@dataclass(frozen=True)
class Typed:
    """What came of a line: something to say, a question to ask, or the end."""

    say: str | None = None
    ask: str | None = None
    leave: bool = False


def obey(line: str, conversation: Conversation) -> Typed:
    """What a line asks for. One that begins with a command does what it says; everything else is the question.

    "/etc/hosts" is no command, nor is anything behind a space.
    """
    found = _COMMAND.match(line)
    if found is None:
        question = line.strip()
        return Typed(ask=question or None)
    name, rest = found[0].lower(), line[found.end() :].strip()
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.0)[0]
        return Typed(say=f"There is no command {name}. Did you mean {near}? /help names them all.")
    try:
        return COMMANDS[name].act(conversation, rest)
    except BadValue as wrong:
        return Typed(say=str(wrong))


def targets_of(text: str) -> Targets | None:
    """`ttft=1s,itl=100ms`, or one of the two, or `none`. Raises `BadValue`."""
    if text == "none":
        return None
    found: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        target = _TARGET.fullmatch(part)
        try:
            ms = float(target[2]) * (1.0 if target[3] == "ms" else 1e3) if target is not None else math.nan
        except ValueError:
            ms = math.nan
        if target is None or not 0 < ms < math.inf:
            raise BadValue(f"{part!r} is no target. They look like ttft=1s,itl=100ms, or one of the two, or none.")
        found[f"{target[1]}_ms"] = ms
    if not found:
        raise BadValue("Targets look like ttft=1s,itl=100ms, or one of the two, or none.")
    return Targets(**found)


def targets_in_words(targets: Targets | None) -> str:
    if targets is None:
        return "the tier's"
    named = (("ttft", targets.ttft_ms), ("itl", targets.itl_ms))
    return ", ".join(f"{name} {time_of(ms)}" for name, ms in named if ms is not None)


# -- the commands


def _new(conversation: Conversation, rest: str) -> Typed:
    conversation.forget()
    return Typed(say="A new conversation.")


def _system(conversation: Conversation, rest: str) -> Typed:
    settings = conversation.settings
    if rest:
        settings.instructions = None if rest == "none" else rest
    shown = settings.instructions
    return Typed(say="No instructions." if shown is None else f"Instructions, sent with every question: {shown}")


def _targets(conversation: Conversation, rest: str) -> Typed:
    if rest:
        conversation.settings.targets = targets_of(rest)
    return Typed(say=f"Targets: {targets_in_words(conversation.settings.targets)}.")


def _tier(conversation: Conversation, rest: str) -> Typed:
    settings = conversation.settings
    if rest:
        tier = next((known for known in TIERS if known == rest), None)
        if tier is None:
            raise BadValue(f"{rest!r} is no tier. There are {', '.join(TIERS)}.")
        settings.service_tier = tier
    return Typed(say=f"Tier: {settings.service_tier or 'auto'}.")


def _seed(conversation: Conversation, rest: str) -> Typed:
    settings = conversation.settings
    if rest:
        settings.seed = _whole(rest, 0)
    return Typed(say="No seed." if settings.seed is None else f"Seed: {settings.seed}.")


def _tokens(conversation: Conversation, rest: str) -> Typed:
    settings = conversation.settings
    if rest:
        settings.max_output_tokens = _whole(rest, 1)
    limit = settings.max_output_tokens
    return Typed(say=f"Longest answer: {'the server decides' if limit is None else f'{limit:,} tokens'}.")


def _retry(conversation: Conversation, rest: str) -> Typed:
    question = conversation.take_back()
    return Typed(say="Nothing was asked yet.") if question is None else Typed(ask=question)


def _cost(conversation: Conversation, rest: str) -> Typed:
    spent = conversation.spent
    if not spent.answers:
        return Typed(say="Nothing was answered yet.")
    answers = "1 answer" if spent.answers == 1 else f"{spent.answers:,} answers"
    tokens = tokens_in(spent.input_tokens, spent.cached_tokens)
    return Typed(say=f"{answers} · {tokens} · {spent.output_tokens:,} out · {time_of(spent.took_s * 1e3)}.")


def _help(conversation: Conversation, rest: str) -> Typed:
    width = max(len(f"{name} {command.takes}") for name, command in COMMANDS.items())
    lines = [f"{f'{name} {command.takes}':{width}}  {command.does}" for name, command in COMMANDS.items()]
    keys = (
        "Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves. "
        "A question that begins like a command wants a space in front."
    )
    return Typed(say="\n".join([*lines, keys]))


def _quit(conversation: Conversation, rest: str) -> Typed:
    return Typed(leave=True)


def _whole(text: str, least: int) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise BadValue(f"{text!r} is no whole number from {least} on, nor none.")
    return int(text)


@dataclass(frozen=True)
class Command:
    takes: str
    does: str
    act: Callable[[Conversation, str], Typed]


COMMANDS = {
    "/new": Command("", "forget the conversation", _new),
    "/system": Command("[TEXT|none]", "show or set the instructions", _system),
    "/targets": Command("[ttft=1s,itl=100ms|none]", "show or set how soon tokens should come", _targets),
    "/tier": Command("[NAME]", f"show or set the service tier: {', '.join(TIERS)}", _tier),
    "/seed": Command("[N|none]", "show or set the seed: the same gives the same answer", _seed),
    "/tokens": Command("[N|none]", "show or set the longest answer", _tokens),
    "/retry": Command("", "ask the last question again, in place of its answer", _retry),
    "/cost": Command("", "what the conversation has cost so far", _cost),
    "/help": Command("", "this list", _help),
    "/quit": Command("", "leave", _quit),
}
