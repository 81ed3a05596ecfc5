"""Templates of Python code, with the changes that each of them allows and a mistake that may be put into it."""

from typing import NamedTuple

from wedlm.adapters.prompts_phrases import items

# Things that a program may hold: the plural, the singular, and for records the names of a text and a number in them.
NUMBERS = items("""
prices price; scores score; weights weight; temperatures temperature; distances distance; ages age; amounts amount
points point; salaries salary; heights height; durations duration; speeds speed; costs cost; readings reading
marks mark; votes vote
""")
WORDS = items("""
names name; words word; cities city; titles title; lines line; tags tag; colors color; files file; labels label
messages message; countries country; songs song; animals animal; fruits fruit; keys key; subjects subject
emails email; sentences sentence
""")
RECORDS = items("""
users user name age; products product title price; books book author pages; orders order customer total
cars car brand speed; players player nickname score; students student surname grade; rooms room label seats
films film genre rating; trips trip place days
""")


class Code(NamedTuple):
    """A template of a function. `$many` and `$one` are names of things, `$result` a variable, `$number` a constant."""

    names: list[str]
    code: str
    requests: str  # changes that this code allows beside those of all code
    mistake: tuple[str, str]  # a right part and the wrong one in its place


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
    Code(
        RECORDS,
        """
def total_$number_field($many):
    $result = 0
    for $one in $many:
        $result += $one["$number_field"]
    return $result
""",
        """
Use sum with a generator expression
Count only those whose $text_field is not empty
Return the average instead of the total
Use get, so that a missing $number_field counts as zero
""",
        ("    return $result", "        return $result"),
    ),
    Code(
        RECORDS,
        """
def ${many}_by_$text_field($many):
    $result = {}
    for $one in $many:
        $result[$one["$text_field"]] = $one
    return $result
""",
        """
Turn the loop into a dictionary comprehension
Use the $number_field as the key
Raise a ValueError if a $text_field occurs twice
Keep a list for each $text_field
""",
        ('$result[$one["$text_field"]] = $one', '$result[$one] = $one["$text_field"]'),
    ),
    Code(
        RECORDS,
        """
def print_$many($many):
    for $one in $many:
        print($one["$text_field"] + " - " + str($one["$number_field"]))
""",
        """
Use an f-string
Print a number before each line
Return the lines as a list instead of printing them
Print only those whose $number_field is above $number
""",
        ('str($one["$number_field"])', '$one["$number_field"]'),
    ),
    Code(
        RECORDS,
        """
def update_$noun($many, $text_field, $number_field):
    for $one in $many:
        if $one["$text_field"] == $text_field:
            $one["$number_field"] = $number_field
            return True
    return False
""",
        """
Raise a KeyError instead of returning False
Update all of them, not only the first
Return the changed dictionary instead of True
Refuse a negative $number_field
""",
        ("== $text_field", "!= $text_field"),
    ),
    Code(
        RECORDS,
        """
import json

def save_$many($many, path):
    with open(path, "w") as file:
        json.dump($many, file)

def load_$many(path):
    with open(path) as file:
        return json.load(file)
""",
        """
Write the file with an indentation of $number
Return an empty list if the file does not exist
Use pathlib
Save as CSV instead of JSON
""",
        ('open(path, "w")', "open(path)"),
    ),
    Code(
        NUMBERS,
        """
def split_$many($many, limit=$number):
    low = []
    high = []
    for $one in $many:
        if $one < limit:
            low.append($one)
        else:
            high.append($one)
    return low, high
""",
        """
Use two list comprehensions
Change the default of limit to $other
Return a dictionary with the keys low and high
Add a third list for values equal to limit
""",
        ("high.append($one)", "low.append($one)"),
    ),
    Code(
        NUMBERS,
        """
def running_$many($many):
    $result = []
    total = 0
    for $one in $many:
        total += $one
        $result.append(total)
    return $result
""",
        """
Use itertools.accumulate
Make it a generator
Return running averages instead
Start with $number instead of 0
""",
        ("    total = 0\n    for $one in $many:\n", "    for $one in $many:\n        total = 0\n"),
    ),
    Code(
        NUMBERS,
        """
def pairs_of_$many($many, target):
    $result = []
    for i in range(len($many)):
        for j in range(i + 1, len($many)):
            if $many[i] + $many[j] == target:
                $result.append(($many[i], $many[j]))
    return $result
""",
        """
Use itertools.combinations
Make it faster with a set
Return only the first pair
Return the indices instead of the values
""",
        ("range(i + 1, len($many))", "range(i, len($many))"),
    ),
    Code(
        NUMBERS,
        """
def has_duplicate_$many($many):
    for i, first in enumerate($many):
        for second in $many[i + 1:]:
            if first == second:
                return True
    return False
""",
        """
Use a set instead of the two loops
Return the first duplicate instead of True
Use any
Allow a difference of $number between equal values
""",
        ("[i + 1:]", "[i:]"),
    ),
    Code(
        WORDS,
        """
def shorten_$many($many, length=$number):
    $result = []
    for $one in $many:
        if len($one) > length:
            $one = $one[:length] + "..."
        $result.append($one)
    return $result
""",
        """
Change the default length to $other
Turn the loop into a list comprehension
Put the number of left-out letters behind the dots
Raise a ValueError for a negative length
""",
        ("$one[:length]", "$one[length:]"),
    ),
    Code(
        WORDS,
        """
def find_$many($many, part):
    matches = []
    for index, $one in enumerate($many):
        if part in $one:
            matches.append(index)
    return matches
""",
        """
Return the texts instead of the indices
Ignore upper and lower case
Turn the loop into a list comprehension
Return only the first match, or None
""",
        ("part in $one", "$one in part"),
    ),
    Code(
        WORDS,
        """
def write_$many($many, path):
    file = open(path, "w")
    for $one in $many:
        file.write($one + "\\n")
    file.close()
""",
        """
Use a with statement
Append to the file instead of replacing it
Write the lines in alphabetical order
Return the number of lines that were written
""",
        ('open(path, "w")', "open(path)"),
    ),
    Code(
        WORDS,
        """
def replace_in_$many($many, old, new):
    for i in range(len($many)):
        $many[i] = $many[i].replace(old, new)
    return $many
""",
        """
Return a new list and leave the argument as it is
Use enumerate
Turn the loop into a list comprehension
Replace only the first occurrence
""",
        ("$many[i] = $many[i]", "$many[i]"),
    ),
    Code(
        WORDS,
        """
def compare_$many(first, second):
    only_first = [$one for $one in first if $one not in second]
    only_second = [$one for $one in second if $one not in first]
    return only_first, only_second
""",
        """
Use sets
Return the common ones too
Sort both lists
Return a dictionary instead of two lists
""",
        ("in second if $one not in first", "in second if $one in first"),
    ),
]
