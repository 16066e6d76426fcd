"""Verifiers and the worker processes that run them."""

import subprocess
import sys

import pytest

from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import answers, equality, judging, mathematics
from tests.environments.verifiers import grammar
from tests.environments.verifiers.rewards_cases import outcomes


@pytest.mark.parametrize(
    ("completion", "target", "outcome"),
    [
        ("48 / 2 = 24\n#### 72", "72", "correct"),
        ("#### 71", "72", "wrong"),
        ("#### 5\nno, wait\n#### 72\nDone, 3 steps.", "72", "correct"),  # last mark, its line only
        ("#### 72\n#### 5", "72", "wrong"),
        ("####72", "72", "correct"),
        ("#### $1,200.", "1200", "correct"),
        ("#### 1200", "1,200", "correct"),
        ("#### -$3.50", "-3.5", "correct"),
        ("#### .5", "0.50", "correct"),
        ("#### 3", "-3", "wrong"),
        ("#### 100000000000000000000000000001", "100000000000000000000000000002", "wrong"),  # equal as floats
        ("#### 1/2", "0.5", "correct"),
        ("#### $\\frac{1}{2}$", "0.5", "correct"),
        ("#### 72 clips", "72", "correct"),
        ("#### 71 clips", "72", "wrong"),
        ("the answer is 72", "72", "unparseable"),  # no mark
        ("72 ####", "72", "unparseable"),  # nothing after it
        ("#### \n", "72", "unparseable"),
        ("#### many", "72", "unparseable"),
        ("", "72", "unparseable"),
    ],
)
def test_numeric_answer(completion, target, outcome):
    verdict = mathematics.numeric_answer(completion, target)
    assert {name: x for name, x in verdict.items() if name != "answer"} == {
        "reward": 1.0 if outcome == "correct" else 0.0,
        "format": 0.0 if outcome == "unparseable" else 1.0,
        "outcome": outcome,
    }


@pytest.mark.parametrize(
    ("completion", "target", "outcome"),
    [
        (r"so \boxed{\frac12}", r"\frac{1}{2}", "correct"),
        (r"\boxed{0.5}", r"\frac{1}{2}", "correct"),
        (r"\boxed{\frac{\sqrt{2}}{2}} is it", r"\frac{1}{\sqrt{2}}", "correct"),
        (r"\boxed{3}, no, \boxed{1,000}", "1000", "correct"),
        (r"\fbox{7}", "7.0", "correct"),
        (r"\boxed 7.", "7", "correct"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", "correct"),
        (r"\boxed{\text{Friday}}", r"\text{Friday}", "correct"),
        (r"\boxed{\text{Monday}}", r"\text{Friday}", "wrong"),
        (r"\boxed{(0,1)}", "[0,1)", "wrong"),
        (r"\boxed{3} then \boxed{4}", "3", "wrong"),
        (r"\boxed{30}", "30_8", "correct"),  # the question asks for the base
        (r"\boxed{36_8}", "30", "correct"),
        (r"\boxed{30_9}", "30_8", "wrong"),
        (r"\boxed{30_8}", "30", "wrong"),
        (r"\boxed{24}", "30_8", "wrong"),
        (r"\boxed{0.\overline{36}}", r"\frac{4}{11}", "correct"),
        (r"\boxed{2.\overline{4}}", r"\frac{22}{7}", "wrong"),
        (r"\boxed{|A \cup B| = 4}", "4", "correct"),
        (r"\boxed{|x| = 4}", "4", "wrong"),
        (r"\boxed{\textbf{(B)}\ 27}", "27", "correct"),
        (r"\boxed{\textbf{(B)}\ 27}", "28", "wrong"),
        ("7", "7", "unparseable"),
        (r"\boxed{7", "7", "unparseable"),
        (r"\boxed{}", "7", "unparseable"),
    ],
)
def test_boxed_answer(completion, target, outcome):
    verdict = mathematics.boxed_answer(completion, target)
    assert verdict["outcome"] == outcome
    assert (verdict["reward"], verdict["format"]) == (outcome == "correct", outcome != "unparseable")


CHAT = ("marked", "boxed", "stated", "bold")


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        ("**72**", "correct"),
        ("So she sold **72 clips** in all.", "correct"),
        ("**Total: $72.**", "correct"),
        ("**Answer:** 72", "correct"),
        ("### Final answer: 72", "correct"),
        ("The answer is $72$.", "correct"),
        ("the final answer is:\n\n\\[72\\]\n\nGood luck!", "correct"),
        (r"The final answer is $\boxed{72}$.", "correct"),
        (r"\boxed{72 clips}", "correct"),
        ("#### 72\n\n**73**", "correct"),  # the format that the task asks for goes before the others
        ("#### Step 72\n**71 clips**", "wrong"),  # a heading is no mark
        ("The answer is -72.", "wrong"),
        ("The answer is 0.72.", "wrong"),
        ("The answer is 72.5.", "wrong"),
        ("The answer is 72,000.", "wrong"),
        (r"The answer is $\frac{72}{5}$.", "wrong"),
        ("**72** or **73**", "wrong"),
        # what changes the number, or takes it back
        ("The answer is not 72.", "unparseable"),
        ("The answer is between 71 and 72.", "unparseable"),
        ("The answer is 72 or 73.", "unparseable"),
        ("The answer is 72 million.", "unparseable"),
        ("The answer is 72/5.", "unparseable"),
        ("The answer is 72 - x.", "unparseable"),
        (r"The answer is 72 \pi.", "unparseable"),
        ("The answer is 72. Wait, it is 73.", "unparseable"),
        ("The answer is **72**... no: 73.", "unparseable"),
        ("**Step 72: add**", "unparseable"),
        ("**72. Add the clips**", "unparseable"),
        ("**72.** Add the clips.", "unparseable"),
        ("The answer is 72π.", "unparseable"),
        ("The answer is 72½.", "unparseable"),
        ("The answer is 72 plus three.", "unparseable"),
        ("#### 72\n#### Note", "correct"),
        ("#### \u221272", "wrong"),
        ("She sold 72 clips.", "unparseable"),
        ("72", "unparseable"),
    ],
)
def test_answers_as_models_write_them(completion, outcome):
    assert mathematics.numeric_answer(completion, "72", CHAT)["outcome"] == outcome


@pytest.mark.parametrize("text", ["#### 3{}x1", "**3{}", "The answer is 3{}x"])
def test_reading_an_answer_takes_linear_time(text):
    assert mathematics.numeric_answer(text.format(" " * 10**6), "72", CHAT)["outcome"] != "correct"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("48 - 24 = 24", "24"),
        ("(-5)", "-5"),
        ("$1,200.", "$1,200"),
        ("3x4=12", "12"),
        ("of 7.50, or .5.", ".5"),
        ("", ""),
    ],
)
def test_the_last_number(completion, answer):
    assert answers.read(completion, ("last",))[1] == answer


def test_formulas_in_prose():
    formats = answers.formats(None, "boxed", several=True)
    assert formats == ("boxed", "marked", "stated", "bold")
    for text in (r"The answer is $\frac12$.", r"**\(0.5\)**", r"#### \frac{1}{2}", "The answer is 0.5"):
        assert mathematics.boxed_answer(text, r"\frac{1}{2}", formats)["outcome"] == "correct"
        assert mathematics.boxed_answer(text, r"\frac{1}{3}", formats)["outcome"] == "wrong"
        assert mathematics.boxed_answer(text, r"\frac{1}{2}")["outcome"] == "unparseable"


@pytest.mark.parametrize("target", ["", "$$", r"\,"])
def test_a_reference_that_cannot_be_read_is_an_error(target):
    with pytest.raises(ValueError, match="reference"):
        mathematics.numeric_answer(r"#### 2\sqrt{2}", target)


ALGEBRA = [  # reference, right forms, wrong forms
    (
        "p - q",
        ["-q+p", "p-q", "(p-q)", "-(q-p)", "p + (-q)", "$p-q$"],
        ["p + q", "p/q", "pq", "q - p", "p", "q", "P+q", "p*q", "p^q"],
    ),
    ("pq", ["qp", "p q", "p \\cdot q", "p*q"], ["p+q", "p/q", "p-q", "p^q"]),
    (
        "2ab",
        ["2ba", "ab \\cdot 2", "2 a b", "2a \\cdot b"],
        ["2", "2a", "2b", "2ac", "2abc", "ab", "2 cm", "3ab", "2(a+b)"],
    ),
    ("3xy", ["3yx", "3x y"], ["3", "3xz", "3x", "3x+y"]),
    ("a^2 + 2ab + b^2", ["(a+b)^2", "b^2+2ab+a^2"], ["a^2+2ac+b^2", "a^2 + b^2", "a^2+2ab-b^2", "a^2 - 2ab + b^2"]),
    ("x - y + z", ["z-y+x", "x+z-y"], ["x+y+z", "xyz", "x-y-z", "x y z"]),
    ("ab - c", [], ["abc", "ab+c", "ab/c", "a-bc"]),
    ("a b", ["ba", "ab"], ["a+b", "a-b"]),
    ("AB - CD", [], ["AB+CD", "ABCD"]),
    ("x + 2yz", ["2yz+x"], ["x+2", "x+2y", "x + 2zw"]),
    ("x-axis", ["x axis", "\\text{x-axis}"], ["y-axis", "x+axis"]),
    ("\\text{no}", ["no", "No."], ["on", "yes"]),
    ("\\frac{p}{q}", ["p/q"], ["pq", "p+q", "q/p", "p-q"]),
    ("-q", ["-1q"], ["q", "+q"]),
    (
        "1",
        [
            "\\implies x = 1",
            "2x = 2 \\implies x = 1",
            "x-1=0 \\Rightarrow x = 1",
            "1 \\checkmark",
            "1\\ \\checkmark",
            "x = \\phantom{0}1",
            "\\phantom{-}1",
            "1\\hphantom{0}",
        ],
        ["1 \\implies x = 2", "\\checkmark", "1\\phantom{2}3"],
    ),
    (
        "27",
        ["27\\text{ (integer)}", "27{.}0", "27 \\; \\checkmark", "\uff12\uff17", "27_{10}"],
        [
            "27\\text{k}",
            "27_{7}",
            "27_7",
            "27k",
            "27_{8}",
            "27\\text{ K}",
            "27\\text{bn}",
            "27\\text{ (not an integer)}",
            "27M",
        ],
    ),
    (
        "1.5",
        ["1{.}5", "\\nicefrac{3}{2}", "\\sfrac32", "\uff11\uff0e\uff15", "\\nicefrac32"],
        ["15", "\\nicefrac{2}{3}"],
    ),
    ("\\frac{3}{4}", ["\\nicefrac{3}{4}", "\\tfrac34", "3/4", "0.75", "75\\%"], ["75"]),
    (
        "5",
        ["5", "5.0", "5 cm", "5\\text{ m}"],
        ["5\\%", "5%", "5 percent", "5\\text{ percent}", "0.05", "500\\%x", "5\\text{ per cent}"],
    ),
    ("5\\%", ["5\\%", "5%", "5 percent", "0.05", "5"], ["6\\%", "50"]),
    ("0.05", ["5\\%", "5 \\text{ percent}"], ["5"]),
    ("2pq", ["2 q p"], ["2", "2pr", "2p"]),
    ("4 cm", ["4", "4\\text{ cm}"], ["4k", "5 cm"]),
    ("xyz", ["x y z", "zyx", "x \\cdot y \\cdot z"], ["x+y+z", "xy-z", "xy"]),
    ("\\text{even}", ["Even"], ["odd", "e+v+e+n"]),
    ("n - 1", ["-1+n"], ["n+1", "n1"]),
    ("e - 1", ["-1+e"], ["e+1"]),
    ("t", ["t"], ["2t", "-t", "T+t"]),
]


@pytest.mark.parametrize(("reference", "right", "wrong"), ALGEBRA, ids=[row[0] for row in ALGEBRA])
def test_letters_are_variables_and_marks_are_presentation(reference, right, wrong):
    assert [text for text in right if equality.compare(text, reference) != "correct"] == []
    assert [text for text in wrong if equality.compare(text, reference) == "correct"] == []


def test_a_percent_sign_is_a_unit_where_golds_have_none():
    for text, target, number, boxed in (
        (r"\boxed{20\%}", "20", "correct", "wrong"),
        (r"\boxed{20\%}", "0.2", "correct", "correct"),
        (r"\boxed{2\%}", "20", "wrong", "wrong"),
        (r"\boxed{0.2}", "20", "wrong", "wrong"),
        (r"\boxed{20}", r"20\%", "correct", "correct"),
    ):
        assert mathematics.numeric_answer(text, target, ("boxed",))["outcome"] == number, (text, target)
        assert mathematics.boxed_answer(text, target)["outcome"] == boxed, (text, target)


def test_equal_answers_have_one_number():
    def numbers(*texts):
        return [mathematics.boxed_answer(rf"\boxed{{{text}}}", "1")["answer"] for text in texts]

    assert len({*numbers("1/2", "0.5", r"\frac{1}{2}", "$0.50$")}) == 1
    assert len({*numbers("x^2", "x", "2", "-2", "1,000")}) == 5
    assert numbers("1,000") == numbers("1000") and max(numbers("1000", "x")) < 2**24


def test_rewritings_are_paid_and_corruptions_are_not():
    """The whole grammar on one reference of each kind.

    ``python -m tests.environments.verifiers.grammar`` measures it on many.
    """
    every = grammar.references(None, len(grammar.TEMPLATES))[-len(grammar.TEMPLATES) - 4 :]
    assert {r.kind for r in every} == {"number", *grammar.TEMPLATES}
    failed = [case for case in grammar.measure(every, ("boxed",)) if (case[-1] == "correct") != (case[3] == "right")]
    assert failed == []


@pytest.mark.full
def test_no_answer_pays_for_every_reference_and_hostile_ones_are_judged_in_time(judge):
    every = grammar.references(None, 2 * len(grammar.TEMPLATES))
    assert grammar.universal(every) == []
    one = [*{r.kind: r.text for r in every}.values()]  # of each kind
    answered = [f"\\boxed{{{text}}}" for text in grammar.HOSTILE for _ in one]
    with judging.Verifiers(mathematics.boxed_answer, VerifierConfig(workers=2, timeout=5.0)) as verifiers:
        scored = verifiers.submit(answered, one * len(grammar.HOSTILE)).result()
    assert set(outcomes(scored)) <= {"WRONG", "UNPARSEABLE"} and scored.errors == []


@pytest.mark.full
def test_a_broken_library_fails_when_workers_start(tmp_path, monkeypatch):
    (tmp_path / "math_verify.py").write_text("def parse(*_, **__): return []")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        pytest.raises(ValueError, match="math-verify does not work here"),
        judging.Verifiers(mathematics.boxed_answer, VerifierConfig(workers=1)),
    ):
        pass


def test_workers_code_imports_no_jax():
    code = (
        "import sys; from rljax.environments.verifiers import code, rewards\n"
        "from rljax.environments.workers import worker; from rljax.environments.worlds.host import instances\n"
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


MATRIX = r"\begin{pmatrix} %s \end{pmatrix}"


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        *[
            (MATRIX % answer, MATRIX % reference, right)
            for answer, reference, right in [
                (r"1 \\ 2 \\ 3", r"1 \\ 23", False),
                (r"5 \\ 12", r"51 \\ 2", False),
                (r"3 \\ 4", "34", False),
                (r"1\\2", r"1 \\ 2", True),
                (r"1/2 \\ 3", r"\frac{1}{2} \\ 3", True),
                (r"1 & 2 \\ 3 & 4", r"1&2\\3&4", True),
            ]
        ],
        ("(2,100)", "(2, 100)", True),
        ("(5,100]", "(5, 100]", True),
        (r"\{1,200\}", r"\{1, 200\}", True),
        ("x=1,y=200", "(1,200)", True),
        ("(1 234, 5)", "(1234, 5)", True),
        ("(2,100)", "2100", False),
        ("2,000(1.05)^3 = 2,315.25", "2315.25", True),
        (r"\left(\frac{1}{2}\right) 2,000 = 1,000", "1000", True),
        ("1,000(x+1)", "1000(x+1)", True),
        ("(0, 10,000)", "(0,10000)", True),
        ("[0, 1,000,000]", "[0,1000000]", True),
        (r"(-\infty, 1,000)", r"(-\infty,1000)", True),
        ("(0,1000)", "(0, 1,000)", True),
        ("1,000; 2,000", "1000;2000", True),
        ("(1,000)", "1000", True),
        (r"(10,000\pi)", r"10000\pi", True),
        ("(12,345)", "12345", False),
        ("12,345", "12345", True),
        ("1 5", "15", False),
        ("12 12", "1212", False),
        ("1 000", "1000", True),
        (r"2 \sqrt 3", r"2\sqrt3", True),
        (r"2x+y \le 3", r"2x+y \leq 3", True),
        (r"x^2+y^2 \leqslant 4", r"x^2+y^2 \leq 4", True),
        (r"x \neq 2", r"x \ne 2", True),
        (r"x \le 2", r"x \ge 2", False),
        (r"\frac 1 2", "1/2", True),
        (r"\log_2 8", "3", True),
    ],
)
def test_commas_spaces_and_rows_separate_numbers(answer, reference, right):
    assert (equality.compare(answer, reference) == "correct") == right


@pytest.mark.parametrize(
    "text", ["The answer is 20%.", r"The answer is $20\%$.", r"The answer is 20\%.", "So **20%**."]
)
def test_a_percentage_in_a_sentence_is_one(text):
    right = [mathematics.boxed_answer(text, target, ("stated", "bold"))["reward"] for target in ("0.2", "20", "20%")]
    assert right == [1.0, 0.0, 1.0]
    assert mathematics.numeric_answer(text, "20", ("stated", "bold"))["reward"] == 1.0
