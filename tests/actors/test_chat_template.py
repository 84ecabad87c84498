import jinja2
import pytest

from actors.chat_template import PLAIN, ChatTemplate, PromptRefused
from protocol.input_items import Message, Role
from tests.actors.vocabularies import CHATML

LATE_REFUSED = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System must come first') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
NO_SYSTEM_ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def _messages(*turns: tuple[Role, str]) -> list[Message]:
    return [Message(role, text) for role, text in turns]


def test_developer_messages_are_system_messages_to_a_template() -> None:
    rendered = ChatTemplate(CHATML).render(_messages(("developer", "Be brief."), ("user", "Hi")))
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_takes_system_messages_anywhere_gets_them_where_they_were() -> None:
    rendered = ChatTemplate(CHATML).render(_messages(("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d")))
    assert rendered.index("system\nc") > rendered.index("assistant\nb")


def test_late_system_messages_are_joined_in_front_where_only_that_is_taken() -> None:
    turns = _messages(("system", "one"), ("user", "a"), ("assistant", "b"), ("developer", "two"), ("user", "c"))
    assert ChatTemplate(LATE_REFUSED).render(turns) == "[system]one\n\ntwo[user]a[assistant]b[user]c"


def test_without_system_messages_they_go_in_front_of_the_first_user_message() -> None:
    template = ChatTemplate(NO_SYSTEM_ALTERNATING)
    assert template.render(_messages(("system", "s"), ("user", "a"))) == "[user]s\n\na"
    assert template.render(_messages(("system", "s"))) == "[user]s"


def test_neighbours_of_one_role_are_joined_where_roles_must_alternate() -> None:
    turns = _messages(("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"))
    assert ChatTemplate(NO_SYSTEM_ALTERNATING).render(turns) == "[user]a\n\nb[assistant]c[user]d"
    assert "user\na<|im_end|>\n<|im_start|>user\nb" in ChatTemplate(CHATML).render(turns)


def test_what_a_template_refuses_is_refused_with_its_reason() -> None:
    with pytest.raises(PromptRefused, match="roles must alternate"):
        ChatTemplate(NO_SYSTEM_ALTERNATING).render(_messages(("assistant", "a"), ("user", "b")))


def test_a_template_cannot_leave_its_sandbox() -> None:
    with pytest.raises(PromptRefused):
        ChatTemplate("{{ messages.__class__.__mro__ }}").render(_messages(("user", "a")))


def test_a_template_that_is_no_template_is_an_error_at_once() -> None:
    with pytest.raises(jinja2.TemplateError):
        ChatTemplate("{% if %}")


def test_what_transformers_gives_templates_is_there() -> None:
    source = (
        "{{ bos_token }}{{ [1] | tojson }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% break %}{% endfor %}{{ strftime_now('%%') }}{{ eos_token }}"
    )
    rendered = ChatTemplate(source, {"bos_token": "<s>"}).render(_messages(("user", "a"), ("user", "b")))
    assert rendered == "<s>[1]a%"


def test_without_a_template_texts_are_strung_together() -> None:
    assert ChatTemplate(PLAIN).render(_messages(("user", "a"), ("assistant", "b"))) == "a\n\nb"
