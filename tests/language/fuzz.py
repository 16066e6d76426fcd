"""Fuzzed config strings, drawn from a seed: valid strings with mutations that have broken parsers."""

import random

VALID = {
    "algorithm": (
        "grpo()",
        "grpo(high=0.28, kl=linear(0.1, 0.0, steps=10))",
        "dapo(overlong=(8, 2))",
        "ppo(critic_epochs=2, critic_optimizer='adam(1e-3)')",
        "cispo(low=inf, high=4.0)",
        "gspo",
        "experiments.example_pieces.pieces.tapered_rloo(power=0.5)",
    ),
    "task": (
        "arithmetic(operands=2, digits=1, operators='+-')",
        "countdown(numbers=3, highest=10)",
        "gsm8k(path='nowhere')",
        "arithmetic(prompt_length=9, slip=0.1)",
    ),
    "phase.main.optimizer": (
        "adamw(learning_rate=1e-3, weight_decay=0.0)",
        "sgd(linear_schedule(1.0, 0.0, 5)) | clip(1.0)",
        "muon(0.01, beta=0.95)",
        "chain(adam(1e-3), scale(0.5))",
    ),
    "seam.penalty": ("+ kl('k3', linear(0.01, 0.0, 100))", "where('wrong', chain(entropy(0.1)), kl())", "none"),
    "seam.advantage": ("center_by_group() | whiten()", "gae(gamma=0.9)", "role_baseline(2)"),
    "seam.source": ("dynamic(3)", "partial(segment=2, oversample=2)", "replay(share=0.5)"),
    "seam.reward": ("affine(2.0, limit=inf)", "overlong(8, 2)", "repetition(ngram=4)"),
}

NUMBERS = (
    *("0", "-1", "1e999", "-1e999", "nan", "-nan", "inf", "-inf", "1e308", "9" * 30, "9" * 5000, "0x" + "f" * 8000),
    *("1j", "10**10**10", "1 << 9999", "True", "None", "...", "2**63", "-(2**31)", "0b1", "1_0", "00", "1.", ".5e-400"),
)
TOKENS = (
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        "=",
        "|",
        "+",
        "*",
        "**",
        ".",
        ":",
        ";",
        "@",
        "->",
        ":=",
        "\\",
        "'",
        '"',
        "'''",
    ),
    *(
        "lambda: 0",
        "lambda x=grpo(): x",
        "(y := grpo())",
        "f'{grpo()}'",
        "*(1, 2)",
        "**{'high': 1}",
        "yield",
        "await x",
    ),
    *("[x for x in ()]", "x if y else z", "not x", "a < b < c", "{1: 2}", "{[]: 1}", "{{}}", "b'\\xff'", "'\\N{DASH}'"),
    *(
        "\0",
        "\ud800",
        "\udfff",
        "\x1b[31m",
        "\x07",
        "\u202e",
        "\ufeff",
        "\n",
        "\r",
        "\t",
        "\x0c",
        "\u2028",
        "\uff3f",
        "\uff4f\uff53",
    ),
    *(
        "os.system('x')",
        "__import__('os')",
        "().__class__",
        "grpo()()",
        "a.b.c.d()",
        "None.x()",
        "1 .real()",
        "#",
        "''",
    ),
    *(
        "'\\ud800'",
        "'\\x1b[2J'",
        "'" + "a" * 3000 + "'",
        "é",
        "\U0001d524rpo",
        "grpo" * 500,
        "1if x else y",
        "'\\d'",
        "print()",
    ),
)


def strings(seed: int, count: int) -> list[tuple[str, str]]:
    """Return pairs of a field and a string.

    Args:
      seed: of the draws.
      count: number of pairs.
    """
    draw = random.Random(seed)
    fields = [(field, text) for field, texts in VALID.items() for text in texts]
    out = []
    for _ in range(count):
        field, text = draw.choice(fields)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
            text = draw.choice(_MUTATIONS)(draw, text)
        out.append((field, text))
    return out


def _insert(draw, text):
    at = draw.randint(0, len(text))
    return text[:at] + draw.choice(TOKENS) + text[at:]


def _number(draw, text):
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    at = draw.choice(digits) if digits else draw.randint(0, len(text))
    return text[:at] + draw.choice(NUMBERS) + text[at + 1 :]


def _argument(draw, text):
    return text.replace("(", f"({draw.choice(NUMBERS + TOKENS)}, ", 1)


def _cut(draw, text):
    at = draw.randint(0, len(text))
    return text[:at] + text[at + draw.randint(1, 8) :]


def _twice(draw, text):
    a, b = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
    return text[:b] + text[a:b] * draw.choice((1, 2, 50)) + text[b:]


def _deep(draw, text):
    depth = draw.choice((10, 60, 150, 1000, 20_000))
    start, end = draw.choice(
        (("(", ")"), ("[", "]"), ("chain(", ")"), ("-", ""), ("not ", ""), ("a.", ""), ("x(", ")"))
    )
    at = draw.choice((0, text.find("(") + 1))
    return text[:at] + start * depth + text[at:] + end * depth


def _wide(draw, text):
    item = draw.choice(("1,", "'a',", "grpo(),", "1 | ", "kl() | ", "(),", "nan,", "x=1, "))
    return f"{text[: text.find('(') + 1] or 'grpo('}{item * draw.choice((100, 1000, 100_000))})"


def _noise(draw, text):
    return "".join(chr(draw.randrange(0x110000)) for _ in range(draw.choice((1, 20, 300))))


_MUTATIONS = (
    _insert,
    _insert,
    _insert,
    _number,
    _number,
    _argument,
    _argument,
    _cut,
    _cut,
    _twice,
    _deep,
    _wide,
    _noise,
)
