from __future__ import annotations

import pytest

from workers.cleaning import strip_c, used_code


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("a // b\nc", "a c"),
        ("a /* b \n b */ c", "a c"),
        ("a // b \\\n b\nc", "a c"),
        ('a "// b" c', 'a "" c'),
        ('a "\\" b" c', 'a "" c'),
        ("a '\"' c", "a c"),
        ("a\n#if 0\nb\n#endif\nc", "a c"),
        ("a\n#if 0\nb\n#else\nc\n#endif\nd", "a c d"),
        ("a\n#if 1\nb\n#elif 1\nc\n#else\nd\n#endif\ne", "a b e"),
        ("a\n#if 0\n#if 1\nb\n#endif\nb\n#endif\nc", "a c"),
        ("a\n#if UNKNOWN\nb\n#else\nc\n#endif", "a b c"),
        ("#define ON 0\n#if ON\nb\n#endif\nc", "#define ON 0 c"),
        ("#define ON\n#ifndef ON\nb\n#endif\nc", "#define ON c"),
        ("a\n#endif\nb", "a b"),
        ("a\n#else\nb", "a b"),
    ],
)
def test_strip(source: str, kept: str):
    assert strip_c(source).split() == kept.split()


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("void k() { a; } void other() { b; }", "() { a; }"),
        ("void f() { b; } void k() { f(); }", "() { f(); } () { b; }"),
        ("void f() { f(); } void k() { f(); }", "() { f(); } () { f(); }"),
        ("void k() { if (0) { b; } else { c; } }", "() { else { c; } }"),
        ("void k() { if (0) b; c; }", "() { c; }"),
        ("#define N 4\nvoid k() { a[N]; }", "() { a[4]; }"),
        ("#define M(x, y) y x\nvoid k() { M(f(1, 2), b); M; }", "() { b f(1, 2); M; }"),
        ("__attribute__((noinline)) void k(int a) { a; }", "(int a) { a; }"),
        ("void k() { a; ", "() { a; "),
    ],
)
def test_used_code(source: str, kept: str):
    assert used_code(source, ("k",)).split() == kept.split()


def test_a_macro_that_grows_without_end_is_cut():
    bomb = "#define a a a a a a a a a a a a a a a a\nvoid k() { a; }"
    assert len(used_code(bomb, ("k",))) < 1 << 25
