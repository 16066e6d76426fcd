"""Chat templates: what they write, derived by hand and beside transformers, and what they may not do."""

import json
import pickle
from typing import Any

import pytest

from rljax import environments
from rljax.config import resolve, schema
from rljax.data import chat, tokenizers
from rljax.environments.questions import published as gsm8k
from rljax.run import programs
from rljax.run.evaluation import sample
from tests.data import test_public_tokenizer as public
from tests.environments import test_gsm8k as questions
from tests.support import tiny

# Templates written for this test in the form of public families, with the markers of those families.
CHATML = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif %}
{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA = """{{- bos_token }}
{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {%- set ns.count = ns.count + 1 %}
    {%- set header = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {{- header + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
{{- '' if ns.count else 'empty' }}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

JSON = (
    "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{{ m | tojson(indent=1) }}{% endfor %}"
)

ASKED = [{"role": "user", "content": " 1 < 2 & é? "}]
TALK = [*ASKED, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Sure?"}]
SYSTEM = [{"role": "system", "content": "Think."}, *ASKED]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("template", "messages", "prompt", "text"),
    [
        (
            CHATML,
            ASKED,
            True,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 < 2 & é?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (CHATML, SYSTEM, False, "<|im_start|>system\nThink.<|im_end|>\n<|im_start|>user\n1 < 2 & é?<|im_end|>\n"),
        (
            LLAMA,
            ASKED,
            True,
            "<s><|start_header_id|>user<|end_header_id|>\n\n1 < 2 & é?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        # a line that holds a block alone leaves nothing behind: trim_blocks and lstrip_blocks
        (
            GEMMA,
            TALK,
            True,
            "<s><start_of_turn>user\n1 < 2 & é?<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n"
            "<start_of_turn>user\nSure?<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            JSON,
            ASKED,
            False,
            '{"role": "user", "content": " 1 < 2 & é? "}{\n "role": "user",\n "content": " 1 < 2 & é? "\n}',
        ),
    ],
)
def test_templates_write_what_they_say(template, messages, prompt, text):
    assert chat.render(template, messages, prompt, NAMES) == text


@pytest.mark.parametrize("template", [CHATML, LLAMA, GEMMA, JSON], ids=["chatml", "llama", "gemma", "json"])
def test_templates_are_applied_as_transformers_applies_them(template, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = public.write(tmp_path / "model", "fallback")
    (folder / "chat_template.jinja").write_text(template)
    published, ours = transformers.PreTrainedTokenizerFast.from_pretrained(folder), tokenizers.load(folder)
    for messages in (ASKED, TALK, SYSTEM):
        if template == GEMMA and messages == SYSTEM:
            continue
        for prompt in (True, False):
            text = published.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.chat(messages, prompt) == text
            ids = published.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
            assert ours.encode(text) == ids


def test_special_tokens_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokens: Any = {
        "extra_special_tokens": {"video_token": "<0x01>"},
        "pad_token": {"__type": "AddedToken", "content": "<0x02>"},
    }
    template = "{{ bos_token }} {{ pad_token }} {{ video_token }} {{ mask_token }}"
    folder = public.write(tmp_path / "model", "fallback", chat_template=template, **tokens)
    published, ours = transformers.PreTrainedTokenizerFast.from_pretrained(folder), tokenizers.load(folder)
    assert ours.chat(ASKED) == published.apply_chat_template(ASKED, tokenize=False)
    assert ours.encode("<0x01> x") == published.encode("<0x01> x", add_special_tokens=False)


def test_where_the_template_comes_from(tmp_path):
    folder = public.write(tmp_path / "model", "byte level")
    expected = "<|from|>user\nHi<|to|>\n<|from|>assistant\n"
    messages = [{"role": "user", "content": "Hi"}]
    model = tokenizers.load(folder)
    assert model.chat(messages) == expected
    assert model.encode(expected)[:1] == model.encode("<|from|>")  # markers are read as the special tokens they are
    config = json.loads((folder / "tokenizer_config.json").read_text())
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": several}))
    assert tokenizers.load(folder).chat(messages) == "yes"
    (folder / "chat_template.jinja").write_text("{{ eos_token }}{{ unk_token }}")  # a file goes before the field
    assert tokenizers.load(folder).chat(messages) == "<|to|>"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": None}))
    with pytest.raises(ValueError, match="no chat template"):
        tokenizers.load(folder).chat(messages)


# what the templates of Llama 3.1 (date_string) and 3.2 (strftime_now) print
DATED = "{{ date_string }}, {{ strftime_now('%d %b %Y') }}, {{ strftime_now('%Y-%m-%d %H:%M') }}"


def test_the_date_is_that_of_the_config_and_stays_with_the_tokenizer(tmp_path):
    folder = public.write(tmp_path / "model", "byte level", chat_template=DATED)
    assert tokenizers.load(folder).chat([]) == "26 Jul 2024, 26 Jul 2024, 2024-07-26 00:00"
    config = schema.default()
    config.tokenizer.update({"path": str(folder), "date": "2025-01-02"})
    model = programs.make_tokenizer(resolve.run(config))
    assert model.chat([]) == "02 Jan 2025, 02 Jan 2025, 2025-01-02 00:00"
    (tmp_path / "tokenizer.model").write_bytes(model.serialized)  # as in a work directory
    for again in (tokenizers.load(model.serialized), tokenizers.load(tmp_path), pickle.loads(pickle.dumps(model))):
        assert again == model and again.chat([]) == model.chat([])
    assert tokenizers.load(model.serialized, "2030-12-31").chat([]).startswith("31 Dec 2030")
    config.tokenizer.date = "tomorrow"
    with pytest.raises(ValueError, match=r"config\.tokenizer: date='tomorrow': must be a date such as '2024-07-26'"):
        resolve.check(config)


def test_templates_see_every_special_token(tmp_path):
    template = "{{ bos_token }} {{ image_token }} {{ video_token }} {{ additional_special_tokens }} {{ add_bos_token }}"
    folder = public.write(
        tmp_path / "model",
        "fallback",
        chat_template=template,
        add_bos_token=True,
        image_token={"__type": "AddedToken", "content": "<0x00>"},
        extra_special_tokens={"video_token": "<0x01>"},
        additional_special_tokens=["<0x02>"],
    )
    model = tokenizers.load(folder)
    assert model.chat([]) == "<s> <0x00> <0x01> ['<0x02>'] "
    assert [model.pieces()[i] for i in model.encode("<0x00><0x01><0x02>")] == [None] * 3  # they are special tokens
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "image_token": {"a": 1}}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: image_token is \{'a': 1\}, expected a text"):
        tokenizers.load(folder)


@pytest.mark.parametrize("space", ["first", "legacy"])
def test_a_reply_is_what_the_whole_conversation_says(space, tmp_path):
    # Llama 2 puts a space in front of the reply, here as the template does it; CHATML trims and ends with a marker
    llama = "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}"
    llama += "{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
    model = tokenizers.load(public.write(tmp_path / "model", "fallback", space, chat_template=llama))
    prompt, reply = tokenizers.exchange(model, [{"role": "user", "content": "the cat"}], "sat")
    assert [*prompt, *reply] == model.encode("[INST] the cat [/INST] sat </s>")
    assert reply[-1] == model.eos and model.decode(reply) == "sat "
    model = tokenizers.load(public.write(tmp_path / "chatml", "byte level"))
    prompt, reply = tokenizers.exchange(model, TALK[:1], "Yes.")
    assert reply == model.encode("Yes.<|to|>")
    # a template that opens a thought in the prompt, and leaves it out of finished messages
    think = public.CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    model = tokenizers.load(public.write(tmp_path / "think", "byte level", chat_template=think))
    prompt, reply = tokenizers.exchange(model, TALK[:1], "Yes.")
    assert prompt == model.encode(model.chat(TALK[:1])) and reply == model.encode("Yes.<|to|>")
    for text in ("", "to", "|"):  # nothing, and what the end of the template has too
        assert tokenizers.exchange(model, TALK[:1], text)[1] == model.encode(f"{text}<|to|>")


def test_sample_asks_as_the_task_does(tmp_path):
    folder = public.write(tmp_path / "model", "byte level")
    path = questions.write(tmp_path / "set")
    task = gsm8k.gsm8k(path, chat=(("system", "Be brief."), ("user", "1?"), ("assistant", "#### 1")))
    model, opening = tokenizers.load(folder), environments.opening(task)
    shown = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "#### 1"}]
    brief, long = ({"role": "system", "content": text} for text in ("Be brief.", "Think."))

    def ids(text, chat=None, system="", opening=opening):
        return sample._prompt(model, opening, text, chat, system)

    def expected(*messages):
        return model.encode(model.chat(messages))

    assert ids("Hi", chat=False) == ids("Hi", opening=None) == model.prompt("Hi")
    hi = {"role": "user", "content": "Hi"}
    assert ids("Hi") == expected(brief, *shown, hi)
    assert ids("Hi", system="Think.") == expected(long, *shown, hi)
    assert ids("Hi", system="Think.", opening=None) == expected(long, hi)
    assert ids("Hi", chat=True, opening=None) == expected(hi)
    assert ids(TALK) == ids(TALK, chat=False) == expected(*TALK)  # several turns, by the template
    assert ids(SYSTEM, system="Think.") == expected(long, *ASKED)
    (tmp_path / "talk.json").write_text(json.dumps(TALK))
    assert sample._messages(str(tmp_path / "talk.json")) == TALK
    for text in ("{", '"hi"', '[{"role": "user"}]'):
        (tmp_path / "talk.json").write_text(text)
        with pytest.raises(ValueError, match=r"--messages=.*talk\.json: not a JSON list of"):
            sample._messages(str(tmp_path / "talk.json"))


@pytest.mark.full
def test_sample_applies_the_filters_of_the_run():
    program = tiny.program(sampler__top_k=1)
    params = program.steps[0].begin(None, program.key).params["policy"]
    greedy = sample.complete(program, params, "3+4=", temperature=0.0)
    same = sample.complete(program, params, "3+4=")  # the run's top_k leaves one token
    assert {c["text"] for c in same} == {c["text"] for c in greedy} and len({c["text"] for c in greedy}) == 1
    assert len({c["text"] for c in sample.complete(program, params, "3+4=", top_k=0)}) > 1
    assert {c["text"] for c in sample.complete(program, params, "3+4=", top_k=0, top_p=1e-6)} == {same[0]["text"]}
    with pytest.raises(ValueError, match=r"top_p=2: must be"):
        sample.complete(program, params, "3+4=", top_p=2)
    with pytest.raises(ValueError, match="no chat template"):
        sample.complete(program, params, "3+4=", chat=True)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "chat template: roles must alternate"),
        ("{% if %}", "chat template: Expected an expression"),
        ("{{ messages.__class__.__mro__ }}", "chat template: access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "chat template: access to attribute 'append' of"),
        ("{% set ns = namespace(_a=1) %}", "chat template: a namespace cannot hold '_a'"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "chat template: a namespace cannot hold '__class__'"),
        ("{{ messages + 1 }}", "chat template: can only concatenate"),
        ("{{ 1 / 0 }}", "chat template: division by zero"),
        ("{{ range(10 ** 6) | list }}", "chat template: Range too big"),
        ("{{ 10 ** 9 ** 9 }}", r"chat template: \*\*: a result above 1,000,000"),
        ("{{ 'x' * 10000000 }}", r"chat template: \*: a result above 1,000,000"),
        pytest.param(
            "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
            "chat template: loops of more than 1,000,000 passes",
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_templates_may_not_do(template, words):
    with pytest.raises(ValueError, match=words):
        chat.render(template, [], False, {})
