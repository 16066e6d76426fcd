# ruff: noqa: E501  (a rule is a line)
r"""A second set of rules for ``tests.environments.verifiers.grammar``, written without knowledge of the verifiers' code: the group "fresh".

A rule is a format string in the fields that ``_fields`` computes from the reference, or is left out where it does not apply.
"""

import cmath
import fractions
import math
import re
from collections.abc import Iterator
from typing import Any

Fraction = fractions.Fraction

RIGHT = {
    "number": r"""
        **${a}$ apples** | {a}~\text{{apples}} | \text{{{a} apples}} | \text{{\${a}}} | **{a} apples**
        {a}\ \text{{mph}} | {a}\text{{ m/s}} | {a}\,\mathrm{{cm^2}} | {a}\text{{ cm}}^{{3}} | {a} cm² | {a} m^2 | {a}\text{{cm}} | {a} \text{{ sq. ft.}}
        \approx {a} | \text{{Janet has }} {a} \text{{ eggs}} | She has {a} eggs. | The answer is {a} | The final answer is **{a}**. | Answer: {a}
        \mathbf{{\${a}}} | £{a} | {a} € | {a}\text{{ USD}} | ₹{a} | {a} cents | \$ {a}\text{{ per hour}} | \${a}/\text{{hour}} | ${a}/day
        \textbf{{{a} apples}} | {{\color{{blue}}{a}}} | \textcolor{{red}}{{{a}}} | \color{{red}}{{{a}}} | \boldsymbol{{{a}}} | \bm{{{a}}} | \large {a}
        \quad {a} | {a}\! | {a} \quad | m+n = {a} | a + b + c = {a} | AB = {a} | \lvert AB \rvert = {a} | \text{{Area}} = {a} | \text{{Total cost}} = \${a}
        S_{{10}} = {a} | f(3) = {a}. | N={a} | {a} = x | x=\boxed{{{a}}} | \{{{a}\}} | x \in \{{{a}\}} | {a}_{{10}} | {a}\degree | {a} \text{{ degrees}}
        {a}°C | {a}^\circ\text{{F}} | {a}^{{\circ}}\mathrm{{C}} | {a} in total | a total of {a} | exactly {a} | {a} apples left | {a} more apples
        {a} years old | {a} miles per hour | {a} pages per day | {a} kg. | {a} h | $\${a}$ | $\mathbf{{{a}}}$ | ${a} \text{{ apples}}$ | \({a}\) apples
        `{a}` apples | \text{{The total is }} {a}. | {a}\text{{ in.}} | \text{{${a}$}} | <b>{a}</b> | Final Answer: ${a}$ | \text{{approximately }} {a}
    """,
    "integer": r"""
        \${n}.00 | {n}.00 \text{{ dollars}} | {n}.000 | \frac{{{twice}}}{{2}} | {less5} + 5 = {n} | \frac{{{twice}}}{{2}} = {n} | {twice}/2 = {n}
        \sqrt{{{square}}} | {thrice} \div 3 = {n} | {n:03} | {u} | {half1} + {half2} = {n} | {plus9} - 9 = {n} eggs | {plus9} - 9
        1 \times {n} = {n} | {n}.0\text{{ cm}} | {times10} \times 10^{{-1}} | {twice} \times 0.5 | {twice} \times 50\% = {n}
    """,
    "large": r"""
        \${h}{{,}}{t} | {n:,}.00 | \${n:,}.00 | \${h}{{,}}{t}.00 | {h}\text{{,}}{t} | {h}{{,}}{t} \text{{ dollars}} | US\${n:,} | {n:,}~\text{{km}} | {n:,} people
        \text{{{n:,}}} | {n:,} \text{{ ways}} | {mantissa} \times 10^{{{exponent}}} | **\${n:,}** | x = {h},{t} | \text{{\${n:,}}} | \mathbf{{{n:,}}} | {h}\,{t}\text{{ m}}
    """,
    "fraction": r"""
        x = {s}\frac{{{m}}}{{{d}}} | x={s}\dfrac{{{m}}}{{{d}}}. | {t} \text{{ hours}} | {t} = {s}\frac{{{m2}}}{{{d2}}} | ({p}/{d}) | {{{p} \over {d}}} | {s}\cfrac{{{m}}}{{{d}}}
        {p} \cdot \frac{{1}}{{{d}}} | \frac{{1}}{{{d}}} \cdot {m0} | P(A) = {t} | {t} \approx {three} | {s}\dfrac {{{m}}}{{{d}}} | \frac{{{neg}}}{{-{d}}} | \text{{The fraction is }} {t}
        {t} \text{{ or }} {s}{mixed} | {t} = {s}{mixed} | {s}{w} {r}/{d} | {s}{w}\,\tfrac{{{r}}}{{{d}}} | {percent}\% | {p}/{d} = {t} | \frac{{{p}\cdot 2}}{{{d} \cdot 2}} | {p}/{d} cups
        \text{{Probability: }} {t} | m = {p}/{d} | $x = {t}$ | {t}\text{{ cm}}^2 | {s}{{{m}}}/{{{d}}} | {s}\left(\frac{{{m}}}{{{d}}}\right)
    """,
    "radical": r"""
        {t} \text{{ cm}} | x = {t} | {k}\times\sqrt{{{n}}} | {k} * sqrt({n}) | {k}√{n} | \sqrt{{{k2} \cdot {n}}} | \sqrt{{{k2}}}\sqrt{{{n}}} | {k} \cdot {n}^{{\frac{{1}}{{2}}}} | {k}\sqrt[2]{{{n}}}
        \frac{{{twok}\sqrt{{{n}}}}}{{2}} | {t} \approx {three} | \sqrt{{{k2n}}} = {t} | AB = {t} | ({t}) | {k}{{\sqrt{{{n}}}}} | \frac{{{k}}}{{2}}\sqrt{{{fourn}}} | {k}\,\sqrt{{{n}}} | {t} \text{{ square units}}
        \frac{{{k}\sqrt{{{fourn}}}}}{{2}} | {k}\cdot\sqrt {digit} | {k}\sqrt{{{n}}}\text{{ m}} | d = {t}. | {k}({n})^{{0.5}} | \sqrt{{{n}}} \times {k}
    """,
    "pi": r"""
        {k} \times \pi | A = {t} | V = {k} \pi | \pi({k}) | {k}\,\pi | {k}{{\pi}} | \frac{{{twok}\pi}}{{2}} | {t} \approx {three} | ({k})\pi | {t}\text{{ square inches}}
        {k} pi | {k} * \pi | {t}\text{{ rad}} | \text{{Area}} = {t} | \frac{{{k}}}{{2}} \cdot 2\pi | {t}\text{{ cm}}^3 | {k}π cm² | {t} \text{{ units}} | {k}\cdot\pi\text{{ in}}^2 | {t}.
    """,
    "power": r"""
        {t} \text{{ ways}} | ({b})^{e} | \left({b}\right)^{{{e}}} | N = {t} | {v} \text{{ ways}} | {t} = {v} | {product} | \frac{{{b}^{{{e1}}}}}{{{b}}} | {b}^{{{e1}}}/{b} | {b}^{{{d}}} \cdot {b}
        {v}.0 | {b}{sup} | {t} = {v:,} | {v} = {t} | a = {v} | {v:,} total | {b} ^ {e} | {b}^{{{e}}}. | \text{{There are }} {v} | ({b}^{{{e}}})
    """,
    "complex": r"""
        ({t}) | \left({t}\right) | {a}+{b}\mathrm{{i}} | z_1 = {t} | w = {a} + {b}i | {a} - (-{b})i | {b} i + {a} | {a} + {b} \times i | \frac{{{a2}+{b2}i}}{{2}} | {a} + {b}\sqrt{{-1}}
        i({b} - {a}i) | {a} + {b} i | {a}+i{b}. | z = {b}i + {a} | {t} = {b}i + {a} | {a} + ({b})i | {a}+{b}\,i | {a}.0 + {b}.0i | {a}+{b}\cdot i | \text{{z = }} {t}
    """,
    "polynomial": r"""
        x^{{2}} + {p} x + {q} | (x + {r})(x + {s}) | (x+{s})(x+{r}) | x² + {p}x + {q} | x^2+{p}\cdot x+{q} | {q} + x^2 + {p}x | g(x) = {t} | \left(x + {r}\right)\left(x + {s}\right) | 1x^2+{p}x+{q}
        (x+{r})(x+{s}) = {t} | \text{{The polynomial is }} {t} | x*x + {p}*x + {q} | x^2-(-{p})x+{q} | \left(x+\frac{{{p}}}{{2}}\right)^2 - \frac{{{disc}}}{{4}} | x^2 + {r}x + {s}x + {q} | x^{{2}}+{p}x+{q}.
        {p}x + {q} + x^2 | (x+{r})\times(x+{s}) | \frac{{2x^2+{p2}x+{q2}}}{{2}} | Q(x) = x^{{2}} + {p}x + {q}
    """,
    "point": r"""
        ({a},-{b}) | \left({a},-{b}\right) | (x,y)=({a},-{b}) | x = {a}, y = -{b} | A = ({a},-{b}) | A({a}, -{b}) | ({a}, {minus}{b}) | \text{{({a}, -{b})}} | ({a},\ -{b}) | (\,{a},\,-{b}\,) | (\frac{{{a2}}}{{2}}, -{b})
        (x, y) = \left({a}, -{b}\right) | \bigl({a},-{b}\bigr) | \text{{The point }} ({a}, -{b}) | x = {a} \text{{ and }} y = -{b} | the vertex is ({a}, -{b}) | \left( {a}, \, -{b} \right) | ({a}.00, -{b}.00) | ({a}, -\frac{{{b2}}}{{2}})
    """,
    "interval": r"""
        {ineq} | \{{x \mid {ineq}\}} | \{{x : {ineq}\}} | x\in\left{l}{a},{c}\right{e} | \left{l}{a},{c}\right{e}. | {l}{a},\ {c}{e} | {l}{a}, {cu}{e} | {reverse} | \text{{Range: }}{t} | y \in {t} | {l}\frac{{{a2}}}{{2}}, {c}{e}
        x∈{t} | {l}{a},{c}{e} | \text{{The interval is }} {t} | {inequ} | {l} {a} , {c} {e} | $x \in {t}$ | D = {t} | \bigl{l}{a}, {c}\bigr{e}
    """,
    "solutions": r"""
        x = {a}, x = {b}, x = {c} | x = {a}, {b}, \text{{ or }} {c} | x={a} \text{{ or }} x={b} \text{{ or }} x={c} | x_1 = {a}, x_2 = {b}, x_3 = {c} | \left\{{ {c}, {a}, {b} \right\}} | {a} \text{{ or }} {b} \text{{ or }} {c}
        {b}, {a}, {c} | {a},\ {b},\ {c} | {a},\, {b},\, {c} | \text{{The solutions are }} {a}, {b}, {c} | ${a}$, ${b}$, ${c}$ | ${a}$, ${b}$, and ${c}$ | x = {a},\quad x = {b},\quad x = {c} | x = {a}, {b}, and {c} | x \in \{{{c},{b},{a}\}}
        n = {a}, {b}, {c}. | \{{{a}.0, {b}, {c}\}} | x = {c} or x = {b} or x = {a} | {a}, {b} and {c} | {a}, \frac{{{b2}}}{{2}}, {c}
    """,
    "word": r"""
        {w}. | \textit{{{w}}} | {upper} | \textsf{{{w}}} | \text{{{w}.}} | $\text{{{w}}}$ | \operatorname{{{w}}} | \underline{{\text{{{w}}}}} | \text{{\textbf{{{w}}}}} | Answer: {w} | _{w}_ | \texttt{{{w}}} | The answer is {w}
        \text{{Answer: {w}}} | **{w}**. | \mathbf{{\text{{{w}}}}} | \mathit{{{w}}} | \text{{"{w}"}} | \emph{{{w}}} | \mathsf{{{w}}}
    """,
    "choice": r"""
        {c}. | \text{{Option {c}}} | Option {c} | \textbf{{({c})}} | \mathrm{{({c})}} | \textbf{{({c})}}\ 12 | Choice ({c}) | \text{{Answer: {c}}} | The answer is {c} | The answer is ({c}). | [{c}] | {c}) 12 | (\text{{{c}}}) | (\mathbf{{{c}}})
        \textbf{{({c}) }} \frac{{1}}{{2}} | \text{{({c}) }} 12 | \mathbf{{{c}}} | \text{{choice }} {c} | \textbf{{{c}}} | ({c}) | \mathrm{{{c}}}. | \textbf{{({c})}} \, 3\sqrt{{2}} | Option ({c})
    """,
    "equation": r"""
        y={a}x+{b} | y = {a} x + {b}. | {a}x - y + {b} = 0 | {a}x - y = -{b} | y - {b} = {a}x | \text{{The line }} y = {a}x+{b} | y = {a}x + \frac{{{b2}}}{{2}} | y = {a}(x + \frac{{{b}}}{{{a}}}) | -{a}x + y = {b} | 3y = {a3}x + {b3}
        {a}x + {b} - y = 0 | y-{a}x = {b} | x = \frac{{y - {b}}}{{{a}}} | y\; =\; {a}x+{b} | \text{{Line: }} y={a}x+{b} | y = ({a}x + {b}) | $y = {a}x+{b}$. | 0 = {a}x + {b} - y | y = \left({a}\right)x + {b}
    """,
}

WRONG = {
    "number": r"""
        \pm {a} | {a}k | {a} \text{{ hundred}} | {a}\text{{ billion}} | {a} \times 10^{{3}} | {a} \cdot 10^{{-2}} | {a} \text{{ or }} -{a}5 | at least {a} | \text{{at most }} {a} | more than {a} | \text{{less than }} {a} | \ge {a} | > {a} | < {a}
        2 \cdot {a} | {a}\pi | {a} i | {a}y | {a} + C | {a} + \frac{{1}}{{3}} | \frac{{{a}}}{{100}} | x + 3 = {a} | 2x = {a} | x - 5 = {a} | x^2 + 1 = {a} | {a} < x | \text{{cannot be }} {a} | anything but {a} | \text{{not equal to }} {a} | \text{{isn't }} {a}
        {a} \text{{ is incorrect}} | {a} is not the answer | twice {a} | double {a} | one less than {a} | {a} less than x | {a} plus 1 | {a} minus 1 | square root of {a} | {a} times 3 | \lvert x \rvert = {a} | -{a}.5 | 3 \times {a} | {a} ft 3 in | {a} hours 30 minutes
        {a} minutes and 30 seconds | \${a} and 50 cents | {a} out of 1000 | {a} apples and 6.5 oranges | x = {a}, y = 3.5 | half of {a} apples | \text{{a third of }} {a} | {a} \text{{ and }} 6.5 | \text{{either }} {a} \text{{ or }} 5.5 | {a}, or maybe 5.5 | {a} (or 5.5) | 5.5 (or {a})
        I think {a}, but it could be 5.5 | x = {a} \text{{ or }} x = 5.5 | from {a} to 99999 | \text{{not }} x = {a} | It is not {a}. | {a} \text{{ more than }} x | \{{{a}, 5.5\}} | \le {a} | {a} \le x \le 99999 | \text{{no solution except }} {a} | {a} \cup 5.5 | never {a}
    """,
    "integer": r"""
        {up} | {down} | {up} apples | \${down} | {u_neg} | ({neg}) | -\${nneg} | {times10} | {n}0 dollars | {hundredth} | {swapped} | {slip} | {doubled} | {n}, {up} | {n} \text{{ and }} {up} | \{{{n}, {up}\}} | ({n}, {up}) | {n} or {up} | x = {n}, y = {up}
        {n}-{up} | between {down} and {up} | \approx {up} | about {down} | \frac{{{twice1}}}{{2}} | {n}\frac{{1}}{{4}} | \sqrt{{{square1}}} | {less5} + 6 | {down} = {n} | {n} = {up} | {n}.1 | {n}.01 | {down}.99 | {n},5 | {n}.{n}2 | {up} - 1 = {up} | {less5} + 6 = {n} | {n} + {n} + 1 = {n}
        {n} or maybe {up} | a_1 = {n}, a_2 = {up} | {n} \text{{ is wrong; it is }} {up} | {n} \to {up} | {n} \implies {up} | {up} \neq {n} | {twice}/2 = {up} | \frac{{{twice}}}{{2}} + 1 | {n} apples, {up} oranges | {n} + 1 | {up}.0 | {n}\text{{ to }}{up} | {n}/{up}5 | {up}\text{{ cm}}
    """,
    "large": r"""
        {h} | {h}{{,}}{t}{{,}}000 | {h},{t}0 | {h}.{t} | {h},{t_} | \${h}{{,}}{t}1 | {mantissa} \times 10^{{{exponent1}}} | {n:,}k | {n:,} \text{{ thousand}} | {mantissa} | \frac{{{n}}}{{1000}} | {h}, {t_} | {h} and {t_}
    """,
    "fraction": r"""
        {sinv}\frac{{{d}}}{{{m}}} | {flip}\frac{{{m}}}{{{d}}} | {s}\frac{{{m}}}{{{d1}}} | {s}\frac{{{m1}}}{{{d}}} | {t} + 1 | {p}, {d} | {p}:{d1} | {two} | {flip}{mixed} | {t}x | {t}\pi | {s}\frac{{\sqrt{{{m}5}}}}{{{d}}} | {t} \text{{ or }} \frac{{{d}}}{{7}} | \pm {t} | {wrongpercent}\% | {t}, \frac{{1}}{{2}}
        x > {t} | {t} = {s}\frac{{{m1}}}{{{d1}}} | {t} \approx 17.5 | 1 - ({t}) + 9 | \text{{not }} {t} | {p} {d} | {s}{m}{d} | {s}{w1}\frac{{{r}}}{{{d}}} | \frac{{{p}}}{{{d}}}^3 | \sqrt{{{m}/{d}}} + 1 | 1/({p}/{d1}) | {p}/{d}/2 | at least {t}
    """,
    "radical": r"""
        {k}+\sqrt{{{n}}} | {k}\sqrt{{{n1}}} | {k1}\sqrt{{{n}}} | -{t} | \pm {t} | \sqrt{{{kn}}} | {k}\sqrt[3]{{{n}}} | {kn} | {t} + 1 | {two} | {k}/\sqrt{{{n}}} | {k2n} | \frac{{\sqrt{{{n}}}}}{{{k}}} | {t}i | {t}\pi | {t} \text{{ or }} {k} | x^2 = {k2n} | \sqrt{{{k2n1}}} | {k}\sqrt{{{n}}}x | {t} = {k1}\sqrt{{{n}}} | {k}, {n} | > {t}
    """,
    "pi": r"""
        {k} | {k}+\pi | {k}\pi^2 | \frac{{{k}}}{{\pi}} | {k1}\pi | -{t} | \frac{{{k22}}}{{7}} | {twok}\pi | {t} + 1 | \pi^{{{k}}} | {t} i | {t}\sqrt{{2}} | {k}^{{\pi}} | \frac{{{t}}}{{180}} | 0, {t} | {t}n | {two} | \pm {t} | {k} \text{{ cm}}^2 | {t} = {k1}\pi | {t} \text{{ or }} {k} | \frac{{\pi}}{{{k}}} | at most {t}
    """,
    "power": r"""
        {b}^{{{e1}}} | {b}^{{{d}}} | {b}^{{-{e}}} | -{t} | {v1} | {t} - 1 | {t}x | {b}^{{n}} | {b}, {e} | ({t})^2 | {t} = {v1} | {b}^{{{e}}}, {b} | {b}_{{{e}}} + 1 | 2 \cdot {t} | {t}\pi | \log_{{{b}}} {v} + 100 | {v}0 | {t} + {t} | {b}^{{{e}}} \text{{ or }} {v1} | \frac{{1}}{{{v}}} | > {t} | {v}!
    """,
    "complex": r"""
        {a}-{b}i | -{a}+{b}i | -({t}) | {a}+{b} | {a} | {b}i | {a}+{b1}i | ({a}+{b})i | \sqrt{{{norm}}} | {a} \pm {b}i | {t}, {a}-{b}i | {a}+{b}x | \lvert {t} \rvert | {a1}+{b}i | {t} \text{{ or }} {b}i | {a}{b}i | {a}+{b}i^2 | {t} + 1 | {a}+{b}\pi | ({t})^2 | {b}+{a}i - 1
    """,
    "polynomial": r"""
        x^2-{p}x+{q} | x^2+{p}x-{q} | x^2+{p}x+{q1} | x^2+{p1}x+{q} | x^3+{p}x+{q} | 2x^2+{p}x+{q} | x^2+{p}x | (x-{r})(x-{s}) | (x+{r})(x+{q1}) | {t}, x^2 | -({t}) | \frac{{{t}}}{{x}} | x = -{r}, -{s} | x^2 + {pq} | (x+{r})^2 + 50 | ({t})^2 | x^2+{p}+{q}x + 1 | x^2+{p}xy+{q} | {t} \text{{ or }} x^2 | {pq1} | (x+{r})+(x+{s})
    """,
    "point": r"""
        (-{b}, {a}) | ({a}, {b}) | (-{a}, -{b}) | (-{a}, {b}) | ({a1}, -{b}) | ({a}, -{b1}) | ({a}, -{b}, 0) | [{a}, -{b}] \cup [50, 51] | \{{{a}, -{b}, 7\}} | x=-{b}, y={a} | ({a}, -{b}), ({b}, {a}) | ({a}, -{b}) \text{{ or }} ({b}, {a}) | ({a})(-{b}) | ({a}, -{b}] | (0, 0) | \frac{{{a}}}{{-{b}}} | (x, y) | \neq ({a}, -{b}) | {a} | x = {a} | ({a}x, -{b}) | ({a}.1, -{b}) | not ({a}, -{b})
    """,
    "interval": r"""
        {lflip}{a}, {c}{e} | {l}{a}, {c}{eflip} | {l}{a1}, {c}{e} | {l}{a}, 77{e} | {l}{c}, {a}{e} | {t} \cup [88, 89] | (-\infty, {a}] | \{{{a}, 77\}} | {a} | x > 77 | x \in \mathbb{{R}} | {l}-{a}, {c}{e} | x < {a} | x = {a} | \mathbb{{R}} \setminus {t} | ({t})^c | {l}{a}.5, {c}{e} | x \notin {t} | {wrongineq} | {t} \text{{ or }} (0, 1) | {l}0, {c}{e}
    """,
    "solutions": r"""
        {a}, {b}, {c1} | {a}, {b}, -{c} | {a}, {b} | {a}, {b}, {c}, 0 | {sum} | {product} | {a}, {a}, {b} | {a}-{c} | {a} \le x \le {c} | [{a}, {c}] | x = {a} | {a} < {b} < {c} | \pm {a}, {b}, {c} | {a} \text{{ or }} {b} | not {a}, {b}, {c} | {a}+{b}, {c} | x = {a}, y = {b} | x \neq {a}, {b}, {c} | \{{{a}, {c}\}} | {a}, {b}, {c}, \ldots | {a}, {b}, {c1} or {c} | {a}, {b}.5, {c} | {a}{b}{c} | {a}, {b}, x
    """,
    "word": r"""
        not {w} | \text{{not {w}}} | {w} or Monday | {w} and Sunday | either {w} or Monday | \text{{neither }} {w} \text{{ nor Monday}} | {first} | {backwards} | \text{{yes}} | the day after {w} | isn't {w} | all but {w} | {cut} | {w}{w} | un{w} | odd | \text{{{w} or both}} | non-{w} | \text{{It is not {w}}} | \text{{{w}, Monday}} | anything except {w} | 7
    """,
    "choice": r"""
        {o} | ({o}) | \text{{({o})}} | {c} or {o} | {c}, {o} | not {c} | ({c}) and ({o}) | {c}{o} | \text{{({c}) or ({o})}} | all of the above | all except {c} | either ({c}) or ({o}) | F | {o} (not {c}) | {number} | anything but {c} | {c}, {o}, F | \textbf{{({o})}}\ 12 | Option {o} | \text{{Options {c} and {o}}} | {o}{c} | neither {c} nor {o} | The answer is not {c} | ({c})({o})
    """,
    "equation": r"""
        y = {a}x - {b} | y = -{a}x + {b} | y = {a}x + {b1} | y = {a1}x + {b} | y = {a}x | y = {a}x^2 + {b} | y > {a}x + {b} | y \neq {a}x + {b} | -y = {a}x + {b} | y = \frac{{x}}{{{a}}} + {b} | y = {a}(x + {b}) + 1 | 2y = {a}x + {b} | {t}, y = 0 | {a}x + {b} = 0 | y = {a} | {a}x + y + {b} = 0 | y \ge {a}x + {b} | {t} \text{{ or }} y = 0 | x = {a}y + {b} | {a}x + {b} = 1 | y^2 = {a}x + {b} | not {t}
    """,
}  # fmt: skip


def _integer(n: int) -> dict[str, Any]:
    digits, minus = str(abs(n)), "-" if n < 0 else ""
    slip = minus + digits[:-1] + str((int(digits[-1]) + 3) % 10)
    swapped = minus + digits[:-2] + digits[:-3:-1] if digits[-1] != digits[-2:-1] else minus + digits + "3"
    exponent = len(digits) - 1
    return {
        **{"a": n, "n": n, "twice": 2 * n, "thrice": 3 * n, "square": n * n, "square1": n * n + 1, "less5": n - 5},
        **{"up": n + 1, "down": n - 1, "twice1": 2 * n + 1, "plus9": n + 9, "half1": n // 2, "half2": n - n // 2},
        **{"times10": 10 * n, "u": str(n).replace("-", "\u2212"), "neg": -n, "slip": slip},
        **{"hundredth": n / 100, "swapped": swapped, "doubled": minus + digits[0] + digits},
        **{
            "u_neg": f"\u2212{n}" if n > 0 else abs(n),
            **({"nneg": n} if n > 0 else {}),
            "exponent": exponent,
            "exponent1": exponent + 1,
        },
        **{"mantissa": f"{minus}{digits[0]}.{digits[1:] or 0}", "h": f"{minus}{abs(n) // 1000:,}", "t": digits[-3:]},
        **({"t_": int(digits[-3:])} if int(digits[-3:]) < 100 else {}),
    }


def _fields(kind: str, t: str, value: Any) -> dict[str, Any]:
    """Return the fields that the rules of a kind use."""
    ints = [int(x) for x in re.findall(r"\d+", t)]
    out: dict[str, Any] = {"t": t}
    if isinstance(value, complex):
        out |= {"two": f"{value.real:.2f}", "three": f"{value.real:.3f}"}
    if kind == "fraction":
        n, d = value.numerator, value.denominator
        m, s, flip = abs(n), "-" if n < 0 else "", "" if n < 0 else "-"
        whole, rest = divmod(m, d)
        out |= {"p": n, "d": d, "m": m, "s": s, "m2": 2 * m, "d2": 2 * d, "m0": f"({n})" if n < 0 else n, "neg": -n}
        out |= {"sinv": s, "flip": flip, "d1": d + 1, "m1": m + 1, "three": f"{n / d:.3f}", "r": rest, "w1": whole + 1}
        out |= {"wrongpercent": round(100 * n / d) + 3}
        if whole:
            out |= {"w": whole, "mixed": f"{whole}\\frac{{{rest}}}{{{d}}}"}
        out |= {"percent": f"{float(100 * value):g}"} if 1000 % d == 0 else {"two": f"{n / d:.2f}"}
    elif kind == "radical":
        k, n = ints
        out |= {"k": k, "n": n, "k1": k + 1, "n1": n + 2, "k2": k * k, "kn": k * n, "k2n": k * k * n, "twok": 2 * k}
        out |= {"digit": n if n < 10 else f"{{{n}}}", "fourn": 4 * n, "k2n1": k * k * n + 1}
    elif kind == "pi":
        k = ints[0]
        out |= {"k": k, "k1": k + 1, "twok": 2 * k, "k22": 22 * k}
    elif kind == "power":
        b, e = ints
        out |= {
            "b": b,
            "e": e,
            "e1": e + 1,
            "d": e - 1,
            "v": b**e,
            "v1": b**e + 1,
            "product": r" \times ".join([str(b)] * e),
        }
        out["sup"] = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[e]
    elif kind == "complex":
        a, b = ints
        out |= {"a": a, "b": b, "a2": 2 * a, "b2": 2 * b, "a1": a + 1, "b1": b + 1, "norm": a * a + b * b}
    elif kind == "polynomial":
        _, p, q = ints
        root = math.isqrt(p * p - 4 * q)
        out |= {"p": p, "q": q, "p2": 2 * p, "q2": 2 * q, "p1": p + 1, "q1": q + 1, "pq": p + q, "pq1": 1 + p + q}
        out |= {"r": (p - root) // 2, "s": (p + root) // 2, "disc": p * p - 4 * q}
    elif kind == "point":
        a, b = ints
        out |= {"a": a, "b": b, "a2": 2 * a, "b2": 2 * b, "a1": a + 1, "b1": b + 1, "minus": "\u2212"}
    elif kind == "interval":
        a, c = t[1:-1].split(", ")
        left, less = {"(": ("<", ">"), "[": (r"\le", r"\ge")}[t[0]], {")": ("<", ">"), "]": (r"\le", r"\ge")}[t[-1]]
        out |= {
            "a": a,
            "c": c,
            "l": t[0],
            "e": t[-1],
            "a2": 2 * int(a),
            "a1": int(a) + 1,
            "cu": c.replace(r"\infty", "\u221e"),
        }
        if "infty" in c:
            out |= {"ineq": f"x {left[1]} {a}", "reverse": f"{a} {left[0]} x", "wrongineq": f"x > {a}"}
        else:
            out |= {"ineq": f"{a} {left[0]} x {less[0]} {c}", "reverse": f"{c} {less[1]} x {left[1]} {a}"}
            out |= {"wrongineq": f"{a} < x < {c}", "eflip": {"]": ")", ")": "]"}[t[-1]]}
        out |= {
            "inequ": out["ineq"].replace(r"\le", "\u2264").replace(r"\ge", "\u2265"),
            "lflip": {"[": "(", "(": "["}[t[0]],
        }
    elif kind == "solutions":
        a, b, c = ints
        out |= {"a": a, "b": b, "c": c, "c1": c + 1, "b2": 2 * b, "sum": a + b + c, "product": a * b * c}
    elif kind == "word":
        w = t[6:-1]
        out |= {"w": w, "upper": w.upper(), "first": w[0], "backwards": w[::-1], "cut": w[:-1]}
    elif kind == "choice":
        c = t[7]
        out |= {"c": c, "o": "BCDEA"["ABCDE".index(c)], "number": "ABCDE".index(c) + 1}
    elif kind == "equation":
        a, b = ints
        out |= {"a": a, "b": b, "a3": 3 * a, "b3": 3 * b, "b2": 2 * b, "a1": a + 1, "b1": b + 1}
    return out


def _write(rules: dict[str, str], kind: str, text: str, value: Any) -> Iterator[tuple[str, str]]:
    kinds, fields = [kind], _fields(kind, text, value)
    if kind == "number":
        fields = {"a": text.replace(",", "")}
        if value.denominator == 1:
            kinds += ["integer"] + (["large"] if abs(value) >= 1000 else [])
            fields = _integer(int(value))
    for each in kinds:
        for rule in re.split(r"\s*(?: \| |\n)\s*", rules[each].strip()):
            try:
                yield f"fresh {each}: {rule}", rule.format(**fields)
            except KeyError:  # a rule for other references of this kind
                continue


def rewritings(kind: str, text: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of each fresh rule and a text with the value of the reference."""
    for name, written in _write(RIGHT, kind, text, value):
        if not (name.endswith((r"\sqrt{{{square}}}", "{n:03}")) and value < 0):
            yield name, written


def corruptions(kind: str, text: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of each fresh rule and a text that has not the value of the reference."""
    for name, written in _write(WRONG, kind, text, value):
        if not (kind == "number" and value in (-1, 0, 1)) and not (written == text or _same(written, value)):
            yield name, written


def _same(written: str, value: Any) -> bool:
    try:
        return value is not None and cmath.isclose(complex(written.replace("\u2212", "-")), complex(value))
    except ValueError:
        return False
