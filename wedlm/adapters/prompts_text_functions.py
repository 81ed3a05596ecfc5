"""Functions of texts, words and dictionaries that prompts ask to complete."""

from itertools import groupby


def count_vowels(text: str) -> int:
    """Return the number of vowels in the text."""
    return sum(c in "aeiou" for c in text)


def longest_word(text: str) -> str:
    """Return the longest word of the text. Of several equally long words return the first."""
    return max(text.split(), key=len)


def reverse_words(text: str) -> str:
    """Return the text with its words in reverse order."""
    return " ".join(text.split()[::-1])


def reverse_each_word(text: str) -> str:
    """Return the text with the letters of each word reversed. The words keep their places."""
    return " ".join(w[::-1] for w in text.split())


def initials(text: str) -> str:
    """Return the first letters of all words in upper case."""
    return "".join(w[0].upper() for w in text.split())


def remove_vowels(text: str) -> str:
    """Return the text without its vowels."""
    return "".join(c for c in text if c not in "aeiou")


def swap_ends(text: str) -> str:
    """Return the text with its first and last character exchanged."""
    return text[-1] + text[1:-1] + text[0]


def is_palindrome(text: str) -> bool:
    """Return True if the text reads the same from both ends. Spaces do not count."""
    return text.replace(" ", "") == text.replace(" ", "")[::-1]


def most_common_letter(text: str) -> str:
    """Return the letter that occurs most often. Of several return the first in the alphabet."""
    return max(sorted(set(text) - {" "}), key=text.count)


def run_lengths(text: str) -> list[tuple[str, int]]:
    """Return each run of equal characters as a pair of the character and its length."""
    return [(c, len(list(g))) for c, g in groupby(text)]


def word_lengths(text: str) -> list[int]:
    """Return the lengths of the words of the text."""
    return [len(w) for w in text.split()]


def capitalize_words(text: str) -> str:
    """Return the text with a capital letter at the start of each word."""
    return text.title()


def snake_case(text: str) -> str:
    """Return the words of the text joined by underscores."""
    return "_".join(text.split())


def camel_case(text: str) -> str:
    """Join the words of the text. Each word but the first begins with a capital letter."""
    return text.split()[0] + "".join(w.title() for w in text.split()[1:])


def letters_in_order(text: str) -> str:
    """Return the different letters of the text in alphabetical order."""
    return "".join(sorted(set(text) - {" "}))


def has_double_letter(text: str) -> bool:
    """Return True if two neighbouring characters are equal."""
    return any(x == y for x, y in zip(text, text[1:], strict=False))


def shift_letters(text: str, shift: int) -> str:
    """Move each letter so many places along the alphabet, from z on to a. Spaces stay."""
    return "".join(c if c == " " else chr((ord(c) - 97 + shift) % 26 + 97) for c in text)


def long_words(text: str, length: int) -> list[str]:
    """Return the words of the text that are longer than length."""
    return [w for w in text.split() if len(w) > length]


def shorten(text: str, length: int) -> str:
    """Return the text cut to the given length, with three dots behind it if something was cut off."""
    return text if len(text) <= length else text[:length] + "..."


def every_nth_character(text: str, step: int) -> str:
    """Return every character whose index is a multiple of step."""
    return text[::step]


def count_words(text: str) -> dict[str, int]:
    """Return how often each word of the text occurs."""
    return {w: text.split().count(w) for w in text.split()}


def by_first_letter(words: list[str]) -> dict[str, list[str]]:
    """Group the words by their first letter."""
    return {w[0]: [v for v in words if v[0] == w[0]] for w in words}


def by_length(words: list[str]) -> list[str]:
    """Return the words sorted by their length, words of equal length in alphabetical order."""
    return sorted(words, key=lambda w: (len(w), w))


def common_prefix(words: list[str]) -> str:
    """Return the longest text that all words begin with."""
    first = words[0]
    return next(first[:n] for n in range(len(first), -1, -1) if all(word.startswith(first[:n]) for word in words))


def shortest_and_longest(words: list[str]) -> tuple[str, str]:
    """Return the shortest and the longest word, the first of them where several have that length."""
    return min(words, key=len), max(words, key=len)


def join_with_and(words: list[str]) -> str:
    """Join the words with commas, and the last two with the word and."""
    return ", ".join(words[:-1]) + " and " + words[-1]


def words_with(words: list[str], letter: str) -> list[str]:
    """Return the words that contain the letter."""
    return [w for w in words if letter in w]


def total_length(words: list[str]) -> int:
    """Return the number of letters of all words together."""
    return sum(map(len, words))


def number_words(words: list[str]) -> list[str]:
    """Put the number of each word, from 1 on, a dot and a space before it."""
    return [f"{i}. {w}" for i, w in enumerate(words, 1)]


def pad_words(words: list[str]) -> list[str]:
    """Fill the words with dots on their right until all are as long as the longest."""
    return [w.ljust(max(map(len, words)), ".") for w in words]


def acronym(words: list[str]) -> str:
    """Return the first letters of the words in upper case, with a dot behind each."""
    return "".join(w[0].upper() + "." for w in words)


def total_stock(stock: dict[str, int]) -> int:
    """Return the sum of all values."""
    return sum(stock.values())


def best_seller(stock: dict[str, int]) -> str:
    """Return the key with the largest value, the first of them in the alphabet."""
    return max(sorted(stock), key=stock.get)


def keys_below(stock: dict[str, int], limit: int) -> list[str]:
    """Return the keys whose value is below limit, sorted."""
    return sorted(x for x in stock if stock[x] < limit)


def swap_keys_and_values(stock: dict[str, int]) -> dict[int, list[str]]:
    """Return for each value the sorted list of its keys."""
    return {v: sorted(k for k in stock if stock[k] == v) for v in stock.values()}


def sorted_by_value(stock: dict[str, int]) -> list[tuple[str, int]]:
    """Return the pairs of key and value, the largest value first. Equal values are sorted by key."""
    return sorted(stock.items(), key=lambda p: (-p[1], p[0]))
