"""Host worlds as tokens: replies between turns, the task of a class, demonstrations."""

import json
import re
import time

import numpy as np
import pytest

from rljax.config import files, resolve
from rljax.data import conversations, tokenizers
from rljax.environments import worlds
from rljax.environments.config import VerifierConfig
from rljax.environments.worlds.host import Observation, limited, records, task
from tests.data import test_public_tokenizer as public
from tests.support import talking, tiny

TOOL = {"type": "function", "function": {"name": "the", "description": "cat", "parameters": {}}}
ASKED = ({"role": "system", "content": "the"}, {"role": "user", "content": "the cat"})
LLAMA = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}"
    "{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TOOLS = (  # a template that names the tools first, and wraps the answers of tools in messages of the user
    "{% if tools %}{{ '<|from|>system\n' + (tools | tojson) + '<|to|>\n' }}{% endif %}"
    "{% for m in messages %}{% set role = 'user' if m.role == 'tool' else m.role %}"
    "{% set said = '[' + m.content + ']' if m.role == 'tool' else m.content %}"
    "{{ '<|from|>' + role + '\n' + said + '<|to|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|from|>assistant\n' }}{% endif %}"
)
FORGETS = TOOLS.replace("for m in messages", "for m in messages[-3:]")
BARE = TOOLS.replace("said + '<|to|>\n'", "said + '\n'")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a function from a template to a tokenizer."""
    made = {}

    def make(template, kind="byte level"):
        if template not in made:
            folder = tmp_path_factory.mktemp("tokenizer") / "files"
            made[template] = tokenizers.load(public.write(folder, kind, chat_template=template))
        return made[template]

    return make


@pytest.mark.parametrize(
    ("template", "kind"), [(TOOLS, "byte level"), (public.CHATML, "byte level"), (LLAMA, "fallback")]
)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_row_is_the_text_of_the_whole_conversation(template, kind, role, model):
    if template == LLAMA and role == "tool":
        pytest.skip("the template knows two roles")
    tokenizer = model(template, kind)
    writer = conversations.writer(tokenizer, tools=(TOOL,))
    so_far = [ASKED[1]]
    row = writer.prompt(so_far)
    for said, reply in (("cat", "the"), ("a cat\nthe", ""), ("", "the  cat")):
        so_far += [{"role": "assistant", "content": said}, {"role": role, "content": reply}]
        turn = writer.turn(said)
        assert turn[-1] in tokenizer.stop and not set(turn[:-1]) & set(tokenizer.stop)
        row += [*turn, *writer.between(so_far[-1:])]
        assert row == tokenizer.encode(tokenizer.chat(so_far, tools=[TOOL]))  # tokens as one text has them
        unstopped = writer.between(so_far[-1:], stopped=False)  # the turn was cut, and ends with a forced stop token
        between = writer.between(so_far[-1:])
        assert unstopped[-len(between) - 1 :] == [turn[-1], *between]
        written = "".join(text for text, _ in tokenizers.visible(tokenizer, unstopped[: -len(between)]))
        assert written.strip() == tokenizer.special()[turn[-1]]
    writer.check(ASKED[1:], (role,))


def test_tools_are_shown_once_and_several_messages_stand_together(model):
    writer = conversations.writer(model(TOOLS), tools=(TOOL,))
    assert '"name": "the"' in writer._text(ASKED[1:]) and writer.prompt(ASKED[1:])[-1] == writer.between([])[-1]
    both = writer.between([{"role": "tool", "content": "cat"}, {"role": "user", "content": "the"}])
    text = "\n<|from|>user\n[cat]<|to|>\n<|from|>user\nthe<|to|>\n<|from|>assistant\n"
    assert both == model(TOOLS).encode(text)


def test_templates_that_do_not_write_turn_by_turn_are_named(model):
    with pytest.raises(
        ValueError, match=r"after 1 turns answered by role 'tool'.*differently than turn by turn, from tok"
    ):
        conversations.writer(model(FORGETS)).check([*ASKED, ASKED[1]], ("tool",))
    with pytest.raises(ValueError, match="ends a turn of the assistant with none of the tokenizer's stop tokens"):
        conversations.writer(model(BARE)).between([])
    with pytest.raises(ValueError, match="no chat template"):
        conversations.writer(tokenizers.make("bytes", ()), template=True)


def test_plain_text_is_written_as_it_is():
    tokenizer = tokenizers.make("bytes", ())
    writer = conversations.writer(tokenizer)
    assert writer.prompt(ASKED) == tokenizer.prompt("the\nthe cat")
    assert writer.turn("é") == [*tokenizer.encode("é"), tokenizer.eos]
    assert writer.between([ASKED[0]]) == tokenizer.encode("the") == writer.between([ASKED[0]], stopped=False)
    assert writer.between([]) == []


# --- the task -------------------------------------------------------------------------------------


def test_a_class_by_its_path_is_a_task():
    count = task.world("tests.support.talking:Count", max_turns=3, turn_length=2, reply_length=1)
    assert worlds.on_host(count) and not worlds.in_turns(count) and count.name == "count"
    assert (count.size("train"), count.size("heldout")) == (18, 2) and count.example(19, "train") == 1
    assert not set(count.problems["train"]) & set(count.problems["heldout"])
    assert set("Count to +0123456789:") - {"0", "4", "5", "6", "7", "8", "9"} <= set("".join(count.corpus()))
    tokenizer = tokenizers.make("bytes", ())
    bound = count.bind(tokenizer)
    assert bound.prompt_length == 16 and bound.completion_length == 3 * 2 + 2 * 1
    prompts = bound.prompts(np.array([0, 1]), "train")
    assert [tokenizer.decode(row[mask > 0]) for row, mask in zip(prompts.token, prompts.mask, strict=True)] == [
        "Count to 2:",
        "Count to 3:",
    ]
    token, mask = bound.demonstrations(np.array([1, 0]), "train")
    assert tokenizer.decode(token[0]) == "1+2+3" and tokenizer.decode(token[1]) == "1+2"
    np.testing.assert_array_equal(mask, [[1, 1, 0, 1, 1, 0, 1, 1], [1, 1, 0, 1, 1, 0, 0, 0]])
    assert bound.opening(records.opening("Count to 2:")) == tokenizer.prompt("Count to 2:")
    assert (
        bound.opening(records.opening("x" * 17)) is None and bound.opening(records.Begun.failed("crashed", "e")) is None
    )
    assert bound.reply(records.observation(Observation("+"), "user")) == tokenizer.encode("+")
    assert bound.reply(records.observation(Observation("++"), "user")) is None


def test_a_reply_that_is_too_long_is_cut_where_the_class_says_so(model):
    bound = task.host_world(talking.Cuts, reply_length=30, turn_length=9).bind(model(TOOLS))
    full = bound.reply(records.observation(Observation("the"), "tool"))
    for words in ("the cat " * 50, "éé" * 50):
        ids = bound.reply(records.observation(Observation(words), "tool"))
        assert len(full) < len(ids) <= 30 and ids[-5:] == full[-5:]  # it still opens the next turn
    with pytest.raises(ValueError, match="reply_length=3: the chat template alone writes"):
        task.host_world(talking.Cuts, reply_length=3).bind(model(TOOLS))


def test_rows_of_a_file_are_examples_and_may_hold_conversations(tmp_path):
    said = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n, "messages": said}) + "\n" for n in range(40)))
    made = task.host_world(talking.Echo, {"turns": 2}, str(path), heldout=0.3, turn_length=4, reply_length=4)
    assert made.size("train") + made.size("heldout") == 40 and made.example(0, "train")["messages"] == said
    token, mask = made.bind(tokenizers.make("bytes", ())).demonstrations(np.array([0]), "heldout")
    assert mask[0].tolist()[:6] == [1, 1, 0, 1, 1, 0] and bytes(t for t in token[0][:5] if t < 256)
    with pytest.raises(ValueError, match=r"'echo' has no demonstrations: its class has no method expert"):
        task.host_world(talking.Echo).bind(tokenizers.make("bytes", ())).demonstrations(np.array([0]), "train")


@pytest.mark.parametrize("name", ["Count", "Cuts", "Awaited"])
def test_demonstrations_of_methods_that_are_inherited_or_awaited(name):
    tokenizer = tokenizers.make("bytes", ())
    made = task.world(f"tests.support.talking:{name}", turn_length=4, reply_length=4, chat=False).bind(tokenizer)
    token, mask = made.demonstrations(np.array([0, 1]), "train")
    assert [
        tokenizer.decode(row[: int(m.nonzero()[0][-1]) + 1].tolist()) for row, m in zip(token, mask, strict=True)
    ] == ["1+2", "1+2+3"]
    assert {*"Count to 2:1+"} <= {*"".join(made.corpus())}


@pytest.mark.parametrize("where", ["the constructor", "reset()", "step()", "expert()", "corpus()"])
def test_whatever_hangs_is_ended_and_named(where):
    with limited.within(VerifierConfig(timeout=0.3)):
        made = task.world("tests.support.talking:Stuck", {"where": where}, turn_length=4, reply_length=4)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=f"'stuck' .*{re.escape(where)}: no answer after 0.3 s .verifier.timeout"):
        list(made.corpus())
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(("how", "words"), [("eat", "MemoryError"), ("die", "a worker exited with status 3")])
def test_a_demonstration_has_the_memory_and_the_process_of_a_step(how, words):
    with limited.within(VerifierConfig(memory=8.0)):
        made = task.world(
            "tests.support.talking:Stuck", {"where": "expert()", "how": how}, turn_length=4, reply_length=4
        )
    with pytest.raises(ValueError, match=rf"train problem 0. has no demonstration: expert\(\): {words}"):
        list(made.corpus())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("world('tests.support.talking:Cont')", "Did you mean 'Count'"),
        ("world('tests.support.talking:PID')", "no class 'PID'"),
        ("world('tests.support.talking')", "is not MODULE:CLASS"),
        ("world('no_such_module:A')", "cannot be imported"),
        ("world('tests.support.talking:Echo', arguments={'turn': 3})", "cannot be constructed: TypeError"),
        ("world('tests.support.talking:Echo', max_turns=0)", "max_turns=0: must be 1 or more"),
        ("world('tests.support.talking:Echo', turn_length=9, completion_length=8)", "a turn has up to 9 tokens"),
        ("world('tests.support.talking:Echo', heldout=1.5)", "heldout=1.5"),
    ],
)
def test_mistakes_of_a_config_are_named(call, words):
    config = tiny.config()
    with pytest.raises(ValueError) as caught:
        files.override(config, "task", call)
        resolve.phases(config)
    assert words in str(caught.value) and "\n" not in str(caught.value)
