"""Programs and tests in the forms that published sets have; each program passes its tests."""

POINT = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int
    y: int

    def __add__(s, o):
        return Point(s.x + o.x, s.y + o.y)

    def __mul__(s, k):
        return Point(s.x * k, s.y * k)

    def __rmul__(s, k):
        return s * k

    def __str__(s):
        return f'({s.x}, {s.y})'

    def __len__(s):
        return 2

    def __getitem__(s, i):
        return (s.x, s.y)[i]

    def __contains__(s, v):
        return v in (s.x, s.y)

    def __lt__(s, o):
        return s.x < o.x

    def __abs__(s):
        return (s.x ** 2 + s.y ** 2) ** 0.5

    def __hash__(s):
        return hash((s.x, s.y))

    def __bool__(s):
        return bool(s.x or s.y)

def mid(a, b):
    return Point((a.x + b.x) // 2, (a.y + b.y) // 2)
"""

CASES = {  # program, tests
    "attributes": (
        POINT,
        """
        p = Point(1, 2)
        assert p.x == 1 and p.y == 2
        p.x = 5
        assert p.x == 5
        """,
    ),
    "eq dataclass": (
        POINT,
        """
        assert Point(1, 2) == Point(1, 2)
        assert Point(1, 2) != Point(1, 3)
        assert mid(Point(0, 0), Point(2, 4)) == Point(1, 2)
        """,
    ),
    "operators": (
        POINT,
        """
        assert Point(1, 2) + Point(1, 1) == Point(2, 3)
        assert Point(1, 2) * 3 == Point(3, 6)
        assert 3 * Point(1, 2) == Point(3, 6)
        assert Point(1, 2) < Point(2, 0)
        assert sorted([Point(3, 1), Point(1, 1)])[0].x == 1
        assert abs(Point(3, 4)) == 5
        """,
    ),
    "str len item in": (
        POINT,
        """
        p = Point(1, 2)
        assert str(p) == '(1, 2)'
        assert repr(p) == 'Point(x=1, y=2)'
        assert len(p) == 2
        assert p[1] == 2
        assert 2 in p and 7 not in p
        assert f'{p}' == '(1, 2)'
        assert not Point(0, 0)
        """,
    ),
    "hash set": (
        POINT,
        """
        assert len({Point(1, 2), Point(1, 2), Point(2, 2)}) == 2
        assert {Point(1, 2): 3}[Point(1, 2)] == 3
        """,
    ),
    "isinstance": (
        POINT
        + """
class P3(Point):
    pass
""",
        """
        p = P3(1, 2)
        assert isinstance(p, Point) and isinstance(p, P3) and (not isinstance(3, Point))
        assert issubclass(P3, Point)
        assert type(p).__name__ == 'P3' and p.__class__.__name__ == 'P3'
        assert type(p) is P3 and type(p) == P3
        assert hasattr(p, 'x') and (not hasattr(p, 'zzz'))
        """,
    ),
    "in place": (
        """
        def sort(a):
            a.sort()

        def add(d, k):
            d[k] = 1

        def rot(m):
            m[0][0] = 9
        """,
        """
        a = [3, 1, 2]
        sort(a)
        assert a == [1, 2, 3]
        assert sort(a) is None
        """,
        """
        d = {}
        add(d, 'a')
        assert d == {'a': 1}
        """,
        """
        r = [1, 2]
        m = [r, [3]]
        rot(m)
        assert m == [[9, 2], [3]] and r == [9, 2]
        """,
    ),
    "same list": (
        """
        def f(a):
            a.append(1)
            return a
        """,
        """
        a = []
        assert f(a) is a
        assert a == [1]
        """,
    ),
    "callbacks": (
        """
        def apply(f, *a):
            return f(*a)

        def mapped(f, xs):
            return [f(x) for x in xs]

        def compose(*fs):

            def g(x):
                for f in fs:
                    x = f(x)
                return x
            return g
        """,
        "assert apply(lambda x, y: x * y, 3, 4) == 12",
        """
        assert mapped(str, [1, 2]) == ['1', '2']
        assert mapped(len, ['a', 'bc']) == [1, 2]
        """,
        """
        def inc(x):
            return x + 1
        assert compose(inc, inc)(3) == 5
        """,
        """
        import math
        assert mapped(math.sqrt, [4.0]) == [2.0]
        """,
    ),
    "decorator": (
        """
        import functools

        def twice(f):

            @functools.wraps(f)
            def g(*a, **k):
                return f(*a, **k) * 2
            return g
        """,
        """
        @twice
        def five():
            return 5
        assert five() == 10
        assert five.__name__ == 'five'
        """,
    ),
    "memoize": (
        """
        def memoize(f):
            cache = {}

            def g(x):
                if x not in cache:
                    cache[x] = f(x)
                return cache[x]
            g.cache = cache
            return g
        """,
        """
        calls = []

        @memoize
        def f(x):
            calls.append(x)
            return x * x
        assert f(3) == 9 and f(3) == 9 and (calls == [3])
        """,
    ),
    "globals": (
        """
        COUNT = 0
        NAMES = ['a']

        class A:
            pass

        def inc():
            global COUNT
            COUNT += 1
        """,
        """
        assert COUNT == 0
        inc()
        assert COUNT == 1
        assert NAMES == ['a'] and NAMES[0] == 'a'
        """,
    ),
    "decimal": (
        """
        from decimal import Decimal
        from fractions import Fraction

        def f(x):
            return Decimal(x) * 2

        def g(a, b):
            return Fraction(a, b)
        """,
        """
        from decimal import Decimal
        assert f('1.10') == Decimal('2.20')
        assert isinstance(f('1'), Decimal)
        """,
        """
        from fractions import Fraction
        assert g(1, 3) + Fraction(1, 6) == Fraction(1, 2)
        assert g(1, 2) == 0.5
        """,
    ),
    "dates": (
        """
        import datetime

        def f(d, n):
            return d + datetime.timedelta(days=n)

        def g(a, b):
            return b - a
        """,
        """
        from datetime import date, datetime, timedelta
        assert f(date(2024, 2, 28), 2) == date(2024, 3, 1)
        assert g(datetime(2024, 1, 1), datetime(2024, 1, 2, 3)) == timedelta(days=1, hours=3)
        assert f(date(2024, 1, 1), 0).year == 2024
        """,
    ),
    "deque": (
        """
        from collections import deque, Counter, OrderedDict, defaultdict, namedtuple
        P = namedtuple('P', 'x y')

        def f(n):
            return deque(range(n), maxlen=3)

        def c(s):
            return Counter(s)

        def d():
            r = defaultdict(list)
            r['a'].append(1)
            return r

        def p():
            return P(1, 2)
        """,
        """
        from collections import deque, Counter
        assert f(5) == deque([2, 3, 4]) and f(5).popleft() == 2
        """,
        "assert c('aab') == Counter('aab') and c('aab').most_common(1) == [('a', 2)]",
        "assert d() == {'a': [1]}",
        "assert p().x == 1 and p() == (1, 2)",
    ),
    "enum": (
        """
        import enum

        class Color(enum.Enum):
            RED = 1
            BLUE = 2

        def other(c):
            return Color.BLUE if c is Color.RED else Color.RED
        """,
        """
        assert Color.RED.value == 1 and Color.RED.name == 'RED'
        assert other(Color.RED) == Color.BLUE
        assert other(Color.RED) is Color.BLUE
        assert Color(1) is Color.RED and Color['RED'] == Color.RED
        assert [c.name for c in Color] == ['RED', 'BLUE']
        assert len(Color) == 2
        """,
    ),
    "linked": (
        """
        class ListNode:

            def __init__(s, val=0, next=None):
                s.val = val
                s.next = next

        def rev(h):
            p = None
            while h:
                h.next, p, h = (p, h, h.next)
            return p
        """,
        """
        n = ListNode(1, ListNode(2, ListNode(3)))
        r = rev(n)
        out = []
        while r:
            out.append(r.val)
            r = r.next
        assert out == [3, 2, 1]
        assert n.next is None
        """,
    ),
    "linked, test's class": (
        """
        def rev(h):
            p = None
            while h:
                h.next, p, h = (p, h, h.next)
            return p
        """,
        """
        class ListNode:

            def __init__(s, val=0, next=None):
                s.val = val
                s.next = next
        n = ListNode(1, ListNode(2, ListNode(3)))
        r = rev(n)
        out = []
        while r:
            out.append(r.val)
            r = r.next
        assert out == [3, 2, 1]
        assert n.next is None
        """,
    ),
    "tree, test builds": (
        """
        class TreeNode:

            def __init__(s, v, l=None, r=None):
                s.val, s.left, s.right = (v, l, r)

        def depth(t):
            return 0 if t is None else 1 + max(depth(t.left), depth(t.right))
        """,
        """
        def build(xs):
            return TreeNode(xs[0], TreeNode(xs[1]), TreeNode(xs[2], TreeNode(4)))
        assert depth(build([1, 2, 3])) == 3
        assert depth(None) == 0
        """,
    ),
    "unittest": (
        POINT
        + """
class Neg(ValueError):
    pass

def root(x):
    if x < 0:
        raise Neg('neg')
    return x ** 0.5
""",
        """
        import unittest

        class TestRoot(unittest.TestCase):

            def setUp(self):
                self.p = Point(1, 2)

            def test_a(self):
                self.assertEqual(root(4), 2.0)

            def test_b(self):
                with self.assertRaises(ValueError):
                    root(-1)
                self.assertRaises(Neg, root, -1)

            def test_c(self):
                self.assertEqual(self.p, Point(1, 2))
                self.assertIsInstance(self.p, Point)
                self.assertAlmostEqual(root(2), 1.41421356)
        if __name__ == '__main__':
            unittest.main()
        """,
    ),
    "custom exception": (
        """
        class Low(Exception):

            def __init__(s, m, code):
                super().__init__(m)
                s.code = code

        class Acc:

            def __init__(s):
                s.b = 0

            def take(s, n):
                if n > s.b:
                    raise Low('low', 7)
        """,
        """
        try:
            Acc().take(5)
            assert False
        except Low as e:
            assert str(e) == 'low' and e.code == 7
        """,
        """
        try:
            Acc().take(5)
            ok = False
        except Exception as e:
            ok = True
        assert ok
        """,
    ),
    "builtin exceptions": (
        """
        def f(x):
            if x == 0:
                raise ZeroDivisionError('z')
            if x == 1:
                raise KeyError('k')
            raise TypeError('t')
        """,
        """
        try:
            f(1)
            assert False
        except KeyError as e:
            assert e.args == ('k',)
        """,
        """
        for x, k in ((0, ZeroDivisionError), (2, TypeError)):
            try:
                f(x)
                assert False
            except k:
                assert True
        """,
    ),
    "prints": (
        """
        def hi(n):
            print('hi', n)
        """,
        """
        import io, contextlib
        b = io.StringIO()
        with contextlib.redirect_stdout(b):
            hi(3)
        assert b.getvalue() == 'hi 3\\n'
        """,
        """
        import sys, io
        old = sys.stdout
        sys.stdout = io.StringIO()
        hi(1)
        got = sys.stdout.getvalue()
        sys.stdout = old
        assert got.strip() == 'hi 1'
        """,
    ),
    "asyncio": (
        """
        import asyncio

        async def f(x):
            await asyncio.sleep(0.01)
            return x * 2
        """,
        """
        import asyncio
        assert asyncio.run(f(4)) == 8
        """,
        """
        import asyncio

        async def main():
            return await asyncio.gather(f(1), f(2))
        assert asyncio.run(main()) == [2, 4]
        """,
    ),
    "generator": (
        """
        def count(n=0):
            while True:
                yield n
                n += 1
        """,
        """
        import itertools
        assert list(itertools.islice(count(), 3)) == [0, 1, 2]
        """,
        """
        g = count(5)
        assert next(g) == 5 and next(g) == 6
        """,
    ),
    "context": (
        """
        class T:

            def __init__(s):
                s.log = []

            def __enter__(s):
                s.log.append('in')
                return s

            def __exit__(s, *a):
                s.log.append('out')
                return False
        """,
        """
        with T() as t:
            assert t.log == ['in']
        assert t.log == ['in', 'out']
        """,
    ),
    "static class methods": (
        """
        class A:
            n = 0

            @staticmethod
            def s(x):
                return x + 1

            @classmethod
            def c(cls):
                return cls()

            @property
            def p(self):
                return 5
        """,
        """
        assert A.s(1) == 2 and A.n == 0 and isinstance(A.c(), A) and (A().p == 5)
        A.n = 3
        assert A().n == 3
        """,
    ),
    "inherits list": (
        """
        class Stack(list):

            def push(s, x):
                s.append(x)

            def peek(s):
                return s[-1]
        """,
        """
        s = Stack()
        s.push(1)
        s.push(2)
        assert s.peek() == 2 and len(s) == 2
        assert s == [1, 2]
        assert list(s) == [1, 2]
        """,
    ),
    "pytest style": (
        """
        def f(x):
            return x + 1
        """,
        """
        def test_one():
            assert f(1) == 2

        def test_two():
            assert f(2) == 3
        """,
    ),
    "solution import": (
        """
        def f(x):
            return x + 1
        """,
        """
        from solution import f

        def test_one():
            assert f(1) == 2
        """,
    ),
    "iterate objects": (
        """
        class R:

            def __init__(s, n):
                s.n = n

            def __iter__(s):
                return iter(range(s.n))
        """,
        """
        assert list(R(3)) == [0, 1, 2] and sum(R(4)) == 6
        assert [x for x in R(2)] == [0, 1]
        assert tuple(zip(R(2), R(2))) == ((0, 0), (1, 1))
        """,
    ),
    "setitem del": (
        """
        class D:

            def __init__(s):
                s.d = {}

            def __setitem__(s, k, v):
                s.d[k] = v

            def __getitem__(s, k):
                return s.d[k]

            def __delitem__(s, k):
                del s.d[k]

            def __contains__(s, k):
                return k in s.d
        """,
        """
        d = D()
        d['a'] = 1
        assert d['a'] == 1 and 'a' in d
        del d['a']
        assert 'a' not in d
        try:
            d['a']
            assert False
        except KeyError:
            pass
        """,
    ),
    "closures": (
        """
        def counter():
            n = 0

            def inc():
                nonlocal n
                n += 1
                return n
            return inc
        """,
        """
        c = counter()
        assert c() == 1 and c() == 2 and callable(c)
        """,
    ),
    "copy": (
        """
        class A:

            def __init__(s):
                s.x = [1]
        """,
        """
        import copy
        a = A()
        b = copy.deepcopy(a)
        b.x = [2]
        assert a.x == [1] and b.x == [2]
        """,
    ),
    "chained": (
        """
        class B:

            def __init__(s):
                s.parts = []

            def add(s, x):
                s.parts.append(x)
                return s

            def build(s):
                return ' '.join(s.parts)
        """,
        """
        b = B()
        assert b.add('a').add('b').build() == 'a b'
        assert b.add('c') is b
        """,
    ),
    "event": (
        """
        class E:

            def __init__(s):
                s.h = []

            def on(s, f):
                s.h.append(f)

            def fire(s, *a):
                for f in s.h:
                    f(*a)
        """,
        """
        got = []
        e = E()
        e.on(got.append)
        e.on(lambda x: got.append(x * 2))
        e.fire(3)
        assert got == [3, 6]
        """,
    ),
    "sort key": (
        """
        def best(xs, key=None, reverse=False):
            return sorted(xs, key=key, reverse=reverse)
        """,
        """
        assert best(['aa', 'b'], key=len) == ['b', 'aa']
        assert best([1, 2], reverse=True) == [2, 1]
        assert best([{'a': 2}, {'a': 1}], key=lambda d: d['a'])[0] == {'a': 1}
        """,
    ),
    "test subclass": (
        """
        class Base:

            def area(self):
                raise NotImplementedError
        """,
        """
        try:
            Base().area()
            assert False
        except NotImplementedError:
            pass
        """,
    ),
    "matrix": (
        """
        class M:

            def __init__(s, r):
                s.r = r

            def __matmul__(s, o):
                return M([[sum((a * b for a, b in zip(x, c))) for c in zip(*o.r)] for x in s.r])

            def __eq__(s, o):
                return s.r == o.r

            def __neg__(s):
                return M([[-a for a in x] for x in s.r])
        """,
        """
        assert M([[1, 2]]) @ M([[3], [4]]) == M([[11]])
        assert (-M([[1]])).r == [[-1]]
        a = M([[1]])
        assert a.r[0][0] == 1
        """,
    ),
    "iadd": (
        """
        class V:

            def __init__(s, x):
                s.x = x

            def __iadd__(s, o):
                s.x += o.x if isinstance(o, V) else o
                return s
        """,
        """
        v = V(1)
        w = v
        v += 2
        assert w.x == v.x == 3 and v is w
        """,
    ),
    "dunder dict": (
        """
        class A:

            def __init__(s):
                s.a = 1
        """,
        "assert A().__dict__ == {'a': 1} and vars(A()) == {'a': 1}",
    ),
    "kwargs": (
        """
        def f(*args, sep='-', **kw):
            return sep.join(args) + ''.join((f'{k}{v}' for k, v in kw.items()))
        """,
        "assert f('a', 'b', sep='+', z=1) == 'a+bz1'",
    ),
    "bytes complex": (
        """
        def f(b):
            return b[::-1]

        def g(z):
            return z * 1j
        """,
        "assert f(b'ab') == b'ba' and g(1 + 0j) == 1j and (f(bytearray(b'ab')) == bytearray(b'ba'))",
    ),
    "slice": (
        """
        class S:

            def __getitem__(s, i):
                return list(range(10))[i]
        """,
        "assert S()[2:5] == [2, 3, 4] and S()[-1] == 9",
    ),
    "object list": (
        POINT,
        """
        ps = [Point(2, 0), Point(1, 0)]
        assert [p.x for p in sorted(ps, key=lambda p: p.x)] == [1, 2]
        assert max(ps).x == 2
        assert ps[0] in ps
        """,
    ),
    "modified object arg": (
        POINT
        + """
def shift(p):
    p.x += 1
""",
        """
        p = Point(1, 2)
        shift(p)
        assert p.x == 2
        """,
    ),
    "objects in list arg": (
        POINT
        + """
def xs(ps):
    return [p.x for p in ps]

def firsts(d):
    return {k: v[0] for k, v in d.items()}
""",
        """
        assert xs([Point(1, 2), Point(3, 4)]) == [1, 3]
        assert firsts({'a': [Point(1, 2)]}) == {'a': Point(1, 2)}
        """,
    ),
    "mock": (
        """
        def fetch(client):
            return client.get('x')['a']
        """,
        """
        from unittest.mock import Mock
        c = Mock()
        c.get.return_value = {'a': 4}
        assert fetch(c) == 4
        c.get.assert_called_once_with('x')
        """,
    ),
    "input": (
        """
        def ask():
            return int(input()) + 1
        """,
        """
        from unittest.mock import patch
        with patch('builtins.input', return_value='4'):
            assert ask() == 5
        """,
    ),
    "threads": (
        """
        import threading

        class C:

            def __init__(s):
                s.n = 0
                s.l = threading.Lock()

            def inc(s):
                with s.l:
                    s.n += 1
        """,
        """
        import threading
        c = C()
        ts = [threading.Thread(target=c.inc) for _ in range(3)]
        [t.start() for t in ts]
        [t.join() for t in ts]
        assert c.n == 3
        """,
    ),
    "tuple of objects": (
        POINT
        + """
def two():
    return (Point(1, 2), [Point(3, 4)])
""",
        """
        a, b = two()
        assert a.x == 1 and b[0].y == 4 and ((a, b) == (Point(1, 2), [Point(3, 4)]))
        """,
    ),
}
