"""Checks an answer to a word problem: solves the problem sentence by sentence and follows the steps of the answer."""

import re
from collections import Counter

STEP = re.compile(r"[A-Z][a-z]+: ([0-9]{1,6}) ([+\-*/]) ([0-9]{1,6}) = ([0-9]{1,6})")
N = r"(\d+)"

# Patterns of a sentence or a part of it, each with the new amount as a function of the old one and the numbers.
READINGS = [
    # Prices.
    (
        rf"costs {N} dollars and each \w+ costs {N} dollars\. \w+ buys {N} \w+ and {N} ",
        lambda _, p, q, n, m: n * p + m * q,
    ),
    (rf"buys {N} \w+ for {N} dollars each and {N} \w+ for {N} dollars each", lambda _, n, p, m, q: n * p + m * q),
    (rf"costs {N} dollars\. \w+ buys {N} \w+ and pays with {N}", lambda _, p, n, m: m - n * p),
    (rf"buys {N} \w+ for {N} dollars each and pays with {N}", lambda _, n, p, m: m - n * p),
    (rf"with {N} dollars\. \w+ buys {N} \w+ at {N} dollars each", lambda _, m, n, p: m - n * p),
    # Shares.
    (rf"keeps {N} and shares the rest equally among {N}", lambda old, b, n: (old - b) / n),
    (rf"takes {N} of them, and {N} children share the others equally", lambda old, b, n: (old - b) / n),
    (rf"sorts {N} \w+\. {N} are broken\. The good ones go into {N}", lambda _, a, b, n: (a - b) / n),
    # Two people together.
    (rf"has {N} times as many \w+ as \w+, who has {N}", lambda _, k, a: a + k * a),
    (rf"has {N} more \w+ than \w+, who has {N}", lambda _, b, a: a + a + b),
    (rf"has {N} fewer \w+ than \w+, who has {N}", lambda _, b, a: a + a - b),
    (rf"has {N} times as many\b", lambda old, k: old + k * old),
    (rf"has {N} more than", lambda old, b: old + old + b),
    (rf"has {N} fewer than", lambda old, b: old + old - b),
    # An amount several times.
    (rf"reads {N} pages a day for {N} days", lambda old, n, d: old - n * d),
    (rf"For {N} days \w+ reads {N} pages", lambda old, d, n: old - n * d),
    (rf"{N} km a day for {N} days", lambda _, n, d: n * d),
    (rf"{N} km every day for {N} days", lambda _, n, d: n * d),
    (rf"saves {N} dollars a week for {N} weeks", lambda _, n, d: n * d),
    (rf"for {N} weeks \w+ puts {N} dollars", lambda _, d, n: n * d),
    (rf"{N} rows of trees with {N} trees", lambda _, m, n: m * n),
    (rf"{N} rows of {N} trees", lambda _, m, n: m * n),
    (rf"{N} (?:bag|basket|box|jar|pack|tray)e?s,? (?:with|and there are) {N}", lambda _, m, n: m * n),
    # Changes of the amount.
    (rf"(?:finds|buys|gives (?:him|her)|gets) {N} more", lambda old, n: old + n),
    (rf"and then {N} km more", lambda old, n: old + n),
    (rf"another {N}", lambda old, n: old + n),
    (rf"{N} get off and {N} get on", lambda old, b, c: old - b + c),
    (rf"{N} people leave the bus and {N} enter", lambda old, b, c: old - b + c),
    (rf"(?:gives|loses|sells|takes|spends|takes out|breaks) {N} (?:to|of|away|dollars)", lambda old, n: old - n),
    (rf"{N} trees are cut down", lambda old, n: old - n),
    # The first amount.
    (rf"(?:has|owns|There are|of|with) {N} (?:people|pages|[a-z]+s\b)", lambda _, a: a),
]


def solution(prompt: str) -> int | None:
    """The solution of a problem, or None if the text contains a number that no reading explains."""
    amount, place = None, 0
    while re.search(r"\d", prompt[place:]):
        matches = [(re.compile(pattern).search(prompt, place), new_amount) for pattern, new_amount in READINGS]
        # The reading that explains the next number. If there are several, the first of the list explains most numbers.
        match, new_amount = min(matches, key=lambda item: item[0].start(1) if item[0] else len(prompt))
        if match is None or re.search(r"\d", prompt[place : match.start(1)]):
            return None
        amount, place = new_amount(amount, *map(int, match.groups())), match.end()
    return amount


def is_true(left: int, sign: str, right: int, result: int) -> bool:
    return {
        "+": left + right == result,
        "-": left - right == result,
        "*": left * right == result,
        "/": result * right == left,
    }[sign]


def check(prompt: str, answer: str) -> bool:
    """Whether all steps are true and use every given number and every result but the last, which is the solution."""
    *lines, last = answer.split("\n")
    steps = [STEP.fullmatch(line) for line in lines]
    if not steps or not all(steps) or len(set(lines)) < len(lines):
        return False
    unused = Counter(int(number) for number in re.findall(r"\d+", prompt))
    known = set(unused)
    for step in steps:
        left, sign, right, result = int(step[1]), step[2], int(step[3]), int(step[4])
        if not is_true(left, sign, right, result) or not {left, right} <= known:
            return False
        known.add(result)
        unused -= Counter([left, right])  # drops what falls to zero or below: a number may be used again
        unused[result] += 1
    return unused == Counter([result]) and last == f"Answer: {result}" and solution(prompt) == result
