"""Prompts about Python code: to change it, or to explain it. The code is made from templates, with varying names."""

from random import Random
from string import Template
from typing import NamedTuple

from wedlm.adapters.prompts_explanations import items

# Plural and singular of things that a program may hold, and a name for a total of them.
NUMBERS = [
    tuple(words.split())
    for words in items("""
prices price; scores score; weights weight; temperatures temperature; distances distance; ages age; amounts amount
points point; salaries salary; heights height; durations duration; speeds speed; costs cost; readings reading
marks mark; votes vote
""")
]
WORDS = [
    tuple(words.split())
    for words in items("""
names name; words word; cities city; titles title; lines line; tags tag; colors color; files file; labels label
messages message; countries country; songs song; animals animal; fruits fruit; keys key; subjects subject
emails email; sentences sentence
""")
]
RECORDS = [
    tuple(words.split())
    for words in items("""
users user name age; products product title price; books book author pages; orders order customer total
cars car brand speed; players player nickname score; students student surname grade; rooms room label seats
films film genre rating; trips trip place days
""")
]
RESULTS = items("result; total; output; answer; value; res; found; collected; out; acc")
SHORT = items("x; y; n; k; v; e; tmp; foo; item; val")
BETTER = items(
    "entry; current; element; outcome; selection; summary; collection; final; count; candidate; limit; amount; data; rest"
)


class Code(NamedTuple):
    """A template of a function. `$many` and `$one` are names of things, `$result` a variable, `$number` a constant."""

    names: list[tuple[str, ...]]
    code: str
    requests: str = ""  # changes that this code allows beside those of all code
    mistake: tuple[str, str] | None = None  # a right part and the wrong one in its place


CODES = [
    Code(
        NUMBERS,
        """
def total_$many($many):
    $result = 0
    for $one in $many:
        $result += $one
    return $result
""",
        """
Use sum instead of the loop
Return the average instead of the total
Skip negative values
""",
        ("+= $one", "= $one"),
    ),
    Code(
        NUMBERS,
        """
def average_$noun($many):
    if not $many:
        return 0
    return sum($many) / len($many)
""",
        """
Raise a ValueError instead of returning 0
Round the value to two decimal places
Return the median instead
""",
        ("if not $many", "if $many"),
    ),
    Code(
        NUMBERS,
        """
def high_$many($many):
    $result = []
    for $one in $many:
        if $one > $number:
            $result.append($one)
    return $result
""",
        """
Turn the loop into a list comprehension
Replace the number $number by an argument
Change the limit to $other
Return the low ones instead
""",
        ("$result.append($one)\n    return", "$result.append($one)\n        return"),
    ),
    Code(
        NUMBERS,
        """
def largest_$noun($many):
    $result = $many[0]
    for $one in $many[1:]:
        if $one > $result:
            $result = $one
    return $result
""",
        """
Use max instead of the loop
Return the smallest instead of the largest
Return None for an empty list
Return the index too
""",
        ("$one > $result", "$one < $result"),
    ),
    Code(
        NUMBERS,
        """
def count_$many($many, limit=$number):
    $result = 0
    for $one in $many:
        if $one >= limit:
            $result += 1
    return $result
""",
        """
Change the default of limit to $other
Count those below the limit instead
Use sum with a generator expression
Remove the default value
""",
        ("+= 1", "+= $one"),
    ),
    Code(
        NUMBERS,
        """
def scale_$many($many, factor):
    $result = []
    for i in range(len($many)):
        $result.append($many[i] * factor)
    return $result
""",
        """
Loop over the values instead of the indices
Turn the loop into a list comprehension
Give factor the default value $number
""",
        ("range(len($many))", "range(len($many) + 1)"),
    ),
    Code(
        NUMBERS,
        """
def normalize_$many($many):
    smallest = min($many)
    largest = max($many)
    return [($one - smallest) / (largest - smallest) for $one in $many]
""",
        """
Turn the comprehension into a loop
Handle the case that all values are equal
Scale the values to the range from 0 to $number
""",
        ("($one - smallest)", "$one - smallest"),
    ),
    Code(
        NUMBERS,
        """
def ${noun}_changes($many):
    $result = []
    previous = None
    for $one in $many:
        if previous is not None:
            $result.append($one - previous)
        previous = $one
    return $result
""",
        """
Use zip instead of the variable previous
Return absolute differences
Make it a generator
""",
        ("is not None", "is None"),
    ),
    Code(
        WORDS,
        """
def longest_$noun($many):
    $result = ""
    for $one in $many:
        if len($one) > len($result):
            $result = $one
    return $result
""",
        """
Use max with a key
Return the shortest instead
Return the length too
Return all of the longest ones
""",
        ("> len($result)", "> $result"),
    ),
    Code(
        WORDS,
        """
def count_$many($many):
    counts = {}
    for $one in $many:
        if $one in counts:
            counts[$one] += 1
        else:
            counts[$one] = 1
    return counts
""",
        """
Use collections.Counter
Use dict.get instead of the if
Ignore upper and lower case
Return only those that occur twice or more
""",
        ("counts[$one] = 1", "counts[$one] = 0"),
    ),
    Code(
        WORDS,
        """
def unique_$many($many):
    seen = set()
    $result = []
    for $one in $many:
        if $one not in seen:
            seen.add($one)
            $result.append($one)
    return $result
""",
        """
Ignore upper and lower case
Use a dictionary instead of the set and the list
Make it a generator
Return the repeated ones instead
""",
        ("$one not in seen", "$one in seen"),
    ),
    Code(
        WORDS,
        """
def ${many}_with_prefix($many, prefix="$letter"):
    return [$one for $one in $many if $one.startswith(prefix)]
""",
        """
Turn the comprehension into a loop
Remove the default value
Check the end instead of the start
Use filter instead of the comprehension
""",
        ("startswith(prefix)", "endswith(prefix)"),
    ),
    Code(
        WORDS,
        """
def print_$many($many):
    number = 1
    for $one in $many:
        print(number, $one)
        number = number + 1
""",
        """
Use enumerate
Start at $number
Print a dot behind each number
Return a list of lines instead of printing
""",
        ("    number = number + 1", "number = number + 1"),
    ),
    Code(
        WORDS,
        """
def clean_$many($many):
    $result = []
    for $one in $many:
        $one = $one.strip().lower()
        if $one != "":
            $result.append($one)
    return sorted($result)
""",
        """
Keep the order instead of sorting
Turn the loop into a list comprehension
Remove duplicates too
Sort in descending order
""",
        ("$one.strip().lower()", "$one.strip.lower()"),
    ),
    Code(
        WORDS,
        """
def join_$many($many, separator=", "):
    text = ""
    for $one in $many:
        if text:
            text += separator
        text += $one
    return text
""",
        """
Use str.join
Change the default separator to a semicolon
Put quotes around each part
Put each part on a line of its own
""",
        ("text += $one", "text = $one"),
    ),
    Code(
        WORDS,
        """
def group_$many($many):
    groups = {}
    for $one in $many:
        letter = $one[0]
        groups.setdefault(letter, []).append($one)
    return groups
""",
        """
Use defaultdict
Group by length instead of the first letter
Sort each group
Skip empty strings
""",
        ("setdefault(letter, [])", "get(letter, [])"),
    ),
    Code(
        WORDS,
        """
def read_$many(path):
    file = open(path)
    $result = []
    for line in file:
        $result.append(line.strip())
    file.close()
    return $result
""",
        """
Use a with statement
Use pathlib
Skip blank lines
Return an empty list if the file is missing
Return only the first $number lines
""",
        ("    file.close()\n    return $result", "    return $result\n    file.close()"),
    ),
    Code(
        RECORDS,
        """
def ${noun}_with_most_$number_field($many):
    best = None
    for $one in $many:
        if best is None or $one["$number_field"] > best["$number_field"]:
            best = $one
    return best
""",
        """
Use max with a key
Return the smallest instead
Return only the $text_field
Return the $number best ones
""",
        ("best is None or", "best is None and"),
    ),
    Code(
        RECORDS,
        """
def filter_$many($many, minimum=$number):
    $result = []
    for $one in $many:
        if $one["$number_field"] >= minimum:
            $result.append($one["$text_field"])
    return $result
""",
        """
Turn the loop into a list comprehension
Change the default of minimum to $other
Return the whole dictionaries
Add an argument maximum
""",
        (">= minimum", "< minimum"),
    ),
    Code(
        RECORDS,
        """
def sort_$many($many):
    return sorted($many, key=lambda $one: $one["$number_field"])
""",
        """
Sort in descending order
Sort by $text_field instead
Use operator.itemgetter
Return only the first $number
Sort the list in place
""",
        ("key=lambda $one: ", "key="),
    ),
    Code(
        RECORDS,
        """
class $Class:
    def __init__(self, $text_field, $number_field=$number):
        self.$text_field = $text_field
        self.$number_field = $number_field

    def describe(self):
        return self.$text_field + ": " + str(self.$number_field)
""",
        """
Make it a dataclass
Add a method __repr__
Use an f-string
Change the default value to $other
Add a method that compares two of them by $number_field
""",
        ("str(self.$number_field)", "self.$number_field"),
    ),
    Code(
        RECORDS,
        """
class $ClassList:
    def __init__(self):
        self.$many = []

    def add(self, $one):
        self.$many.append($one)

    def find(self, $text_field):
        for $one in self.$many:
            if $one.$text_field == $text_field:
                return $one
        return None
""",
        """
Add a method remove
Add a method __len__
Raise a KeyError if nothing is found
Keep a dictionary instead of the list
""",
        ("                return $one\n        return None", "                return $one\n            return None"),
    ),
    Code(
        NUMBERS,
        """
def add_tax($one, rate=0.$number):
    tax = $one * rate
    $result = $one + tax
    return round($result, 2)
""",
        """
Change the rate to 0.$other
Return the tax too
Refuse a negative $one
Write the function in one line
""",
        ("$one + tax", "$one - tax"),
    ),
    Code(
        NUMBERS,
        """
def grade(score):
    if score >= $other:
        return "good"
    elif score >= $number:
        return "fair"
    else:
        return "poor"
""",
        """
Add a level excellent above the others
Remove the elif and else that are not needed
Use a match statement or a table
Raise a ValueError for a negative score
""",
        ("score >= $other", "score <= $other"),
    ),
    Code(
        NUMBERS,
        """
def countdown(start=$number):
    while start > 0:
        print(start)
        start -= 1
    print("Done")
""",
        """
Use a for loop with range
Count up instead of down
Wait a second after each number
Return a list instead of printing
""",
        ("start -= 1", "start += 1"),
    ),
    Code(
        NUMBERS,
        """
def factorial(n):
    if n == 0:
        return 1
    return n * factorial(n - 1)
""",
        """
Use a loop instead of recursion
Raise a ValueError for a negative n
Cache the results
Use math.prod
""",
        ("factorial(n - 1)", "factorial(n)"),
    ),
    Code(
        WORDS,
        """
def is_palindrome($one):
    left = 0
    right = len($one) - 1
    while left < right:
        if $one[left] != $one[right]:
            return False
        left += 1
        right -= 1
    return True
""",
        """
Compare with the reversed string instead
Ignore spaces
Ignore upper and lower case
Use a for loop
""",
        ("len($one) - 1", "len($one)"),
    ),
    Code(
        NUMBERS,
        """
def find_$noun($many, target):
    low = 0
    high = len($many) - 1
    while low <= high:
        middle = (low + high) // 2
        if $many[middle] == target:
            return middle
        if $many[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1
""",
        """
Use the module bisect
Return None instead of -1
Make it recursive
Raise a ValueError if the target is missing
""",
        ("low = middle + 1", "low = middle"),
    ),
    Code(
        NUMBERS,
        """
import random

def random_$many(size):
    $result = []
    for i in range(size):
        $result.append(random.randint(1, $number))
    return $result
""",
        """
Turn the loop into a list comprehension
Change the largest number to $other
Add an argument seed
Use numpy
""",
        ("range(size)", "size"),
    ),
]
CHANGES = [
    "Rename the variable {name} to {new} in this code.",
    "Rename {name} to {new}.",
    "In this code, call the variable {new} instead of {name}.",
    "Add a docstring to this code.",
    "Add a short docstring.",
    "Document this code with docstrings that name arguments and results.",
    "Add type hints to this code.",
    "Add type annotations and change nothing else.",
    "Add comments to this code.",
    "Make this code shorter without changing what it does.",
    "Make this code easier to read.",
    "Add a check of the arguments that raises a ValueError.",
    "Add a main block that shows how to use this code.",
    "Write two tests for this code with pytest.",
    "Rewrite this code in JavaScript.",
    "Replace every name in this code that is not clear by a better one.",
]
SPECIFIC = [
    "{change}.",
    "{change}.",
    "Please change this code: {change}.",
    "Edit the code as follows. {change}.",
    "{change}. Show the whole code.",
]
MISTAKES = [
    "This code has a bug. Find it and fix it.",
    "Fix the bug in this code.",
    "What is wrong with this code? Correct it.",
    "My code does not do the right thing. Can you correct it?",
    "Find the mistake and write the corrected code.",
]
REFORMATS = [
    "Format this code according to PEP 8.",
    "Clean up the formatting of this code.",
    "Reformat this code with four spaces of indentation and spaces around operators.",
]
EXPLANATIONS = [
    "Explain this code.",
    "Explain this code line by line.",
    "What does this code do?",
    "What does this function do? Answer in one sentence.",
    "Describe in plain words, for a beginner, how this code works.",
    "Explain the purpose of each variable in this code.",
    "What is the running time of this code?",
    "Is there anything you would improve in this code?",
    "Write a short comment that summarises this code.",
    "Which errors can this code raise, and when?",
    "Give an example call of this code and its result.",
    "I am learning Python. Can you walk me through this code?",
    "Suggest a better name for this function and say why.",
    "How would I test this code?",
    "Write pseudocode for this code.",
    "What happens in this code for empty input?",
    "Review this code.",
    "Explain what could go wrong with this code.",
]


class Snippet(NamedTuple):
    """A piece of code that was made from a template."""

    code: str
    requests: list[str]
    broken: str
    names: list[str]  # variables that may be renamed


def snippet(random: Random) -> Snippet:
    template = random.choice(CODES)
    many, one, *fields = random.choice(template.names)
    number = random.randint(2, 9) * random.choice([1, 5, 10])
    values = {
        "many": many,
        "noun": one,
        "one": one if random.random() < 0.75 else random.choice(SHORT),
        "result": random.choice(RESULTS),
        "number": str(number),
        "other": str(number + random.randint(1, 40)),
        "letter": random.choice("abcdefgmprst"),
        "text_field": fields[0] if fields else "",
        "number_field": fields[1] if fields else "",
        "Class": one.capitalize(),
        "ClassList": one.capitalize() + "List",
    }
    code = template.code.strip("\n")
    names = [values[name] for name in ("many", "one", "result") if "$" + name in code and not fields]
    right, wrong = template.mistake

    def fill(text: str) -> str:
        return Template(text).substitute(values)

    return Snippet(
        fill(code), [fill(request) for request in items(template.requests)], fill(code.replace(right, wrong)), names
    )


def with_code(random: Random, request: str, code: str) -> str:
    """A request with code behind or before it, fenced or not."""
    way = random.randrange(4)
    if way == 0:
        return f"```python\n{code}\n```\n\n{request}"
    return f"{request}\n\n```python\n{code}\n```" if way < 3 else f"{request}\n\n{code}"


def squeezed(random: Random, code: str) -> str:
    """The code with its blanks around operators taken away, or with other indentation."""
    if random.random() < 0.5:
        code = code.replace("    ", " " * random.choice([1, 2, 3]))
    for sign in (" = ", " += ", " + ", " - ", " > ", " >= ", ", "):
        if random.random() < 0.8:
            code = code.replace(sign, sign.strip())
    return code


def draw_change(random: Random) -> tuple[str, str]:
    drawn = snippet(random)
    way, code = random.randrange(10), drawn.code
    if way < 4:
        request = random.choice(SPECIFIC).format(change=random.choice(drawn.requests))
    elif way == 4:
        request, code = random.choice(MISTAKES), drawn.broken
    elif way == 5:
        request, code = random.choice(REFORMATS), squeezed(random, code)
    else:
        new = random.choice([name for name in BETTER if name not in code])
        requests = [text for text in CHANGES if drawn.names or "{name}" not in text]
        request = random.choice(requests).format(name=random.choice(drawn.names or [""]), new=new)
    return drawn.code, with_code(random, request, code)


def draw_explanation(random: Random) -> tuple[str, str]:
    drawn = snippet(random)
    return drawn.code, with_code(random, random.choice(EXPLANATIONS), drawn.code)
