"""Functions of numbers that prompts ask to complete; their own bodies give the results of the examples."""

from itertools import accumulate, groupby
from math import gcd, prod


def count_even(numbers: list[int]) -> int:
    """Return how many of the numbers are even."""
    return sum(x % 2 == 0 for x in numbers)


def sum_of_odd(numbers: list[int]) -> int:
    """Return the sum of the odd numbers."""
    return sum(x for x in numbers if x % 2)


def largest_gap(numbers: list[int]) -> int:
    """Return the largest difference of two neighbours in the list, or 0 if there are none."""
    return max((abs(x - y) for x, y in zip(numbers, numbers[1:], strict=False)), default=0)


def running_total(numbers: list[int]) -> list[int]:
    """Return a list whose entry i is the sum of the first i + 1 numbers."""
    return list(accumulate(numbers))


def running_maximum(numbers: list[int]) -> list[int]:
    """Return for each place the largest number up to this place."""
    return list(accumulate(numbers, max))


def differences(numbers: list[int]) -> list[int]:
    """Return the differences of each number and the one before it."""
    return [y - x for x, y in zip(numbers, numbers[1:], strict=False)]


def is_increasing(numbers: list[int]) -> bool:
    """Return True if every number is larger than the one before it."""
    return all(x < y for x, y in zip(numbers, numbers[1:], strict=False))


def second_largest(numbers: list[int]) -> int:
    """Return the second largest of the different numbers. There are at least two of them."""
    return sorted(set(numbers))[-2]


def without_duplicates(numbers: list[int]) -> list[int]:
    """Return the numbers without repetitions, in the order of their first occurrence."""
    return list(dict.fromkeys(numbers))


def only_once(numbers: list[int]) -> list[int]:
    """Return the numbers that occur exactly once, in their order."""
    return [x for x in numbers if numbers.count(x) == 1]


def alternating_sum(numbers: list[int]) -> int:
    """Add the first number, subtract the second, add the third, and so on."""
    return sum(numbers[::2]) - sum(numbers[1::2])


def count_peaks(numbers: list[int]) -> int:
    """Return how many numbers are larger than both of their neighbours. The ends of the list do not count."""
    return sum(x < y > z for x, y, z in zip(numbers, numbers[1:], numbers[2:], strict=False))


def move_zeros(numbers: list[int]) -> list[int]:
    """Return the list with all zeros moved to its end. The other numbers keep their order."""
    return sorted(numbers, key=lambda x: x == 0)


def pair_sums(numbers: list[int]) -> list[int]:
    """Return the sums of the first and last number, the second and last but one, and so on.

    A number in the middle is left out.
    """
    return [numbers[i] + numbers[-1 - i] for i in range(len(numbers) // 2)]


def split_by_sign(numbers: list[int]) -> tuple[list[int], list[int]]:
    """Return two lists: the numbers below zero, and all the others."""
    return [x for x in numbers if x < 0], [x for x in numbers if x >= 0]


def index_of_largest(numbers: list[int]) -> int:
    """Return the index of the largest number. If it occurs several times, return the first index."""
    return numbers.index(max(numbers))


def every_second(numbers: list[int]) -> list[int]:
    """Return every second number, beginning with the first."""
    return numbers[::2]


def longest_run(numbers: list[int]) -> int:
    """Return the length of the longest run of equal neighbours."""
    return max((len(list(g)) for _, g in groupby(numbers)), default=0)


def range_of_values(numbers: list[int]) -> int:
    """Return the difference of the largest and the smallest number."""
    return max(numbers) - min(numbers)


def squares_of_positive(numbers: list[int]) -> list[int]:
    """Return the squares of the numbers above zero."""
    return [x * x for x in numbers if x > 0]


def closest_to_zero(numbers: list[int]) -> int:
    """Return the number that is closest to zero. Of two equally close numbers return the positive one."""
    return min(numbers, key=lambda x: (abs(x), -x))


def rank_of_each(numbers: list[int]) -> list[int]:
    """Return for each number how many numbers of the list are smaller."""
    return [sum(y < x for y in numbers) for x in numbers]


def best_profit(prices: list[int]) -> int:
    """Buy on one day and sell on a later day. Return the largest possible profit, or 0 if there is none."""
    return max((y - x for i, x in enumerate(prices) for y in prices[i:]), default=0)


def larger_than(numbers: list[int], limit: int) -> list[int]:
    """Return the numbers that are larger than limit."""
    return [x for x in numbers if x > limit]


def count_below(numbers: list[int], limit: int) -> int:
    """Return how many numbers are smaller than limit."""
    return sum(x < limit for x in numbers)


def clip_all(numbers: list[int], limit: int) -> list[int]:
    """Return the numbers, where each number above limit is replaced by limit."""
    return [min(x, limit) for x in numbers]


def rotate_left(numbers: list[int], steps: int) -> list[int]:
    """Move the first number to the end of the list, steps times, and return the list."""
    return numbers[steps % len(numbers) :] + numbers[: steps % len(numbers)]


def chunks(numbers: list[int], size: int) -> list[list[int]]:
    """Split the list into lists of the given size. The last one may be shorter."""
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]


def smallest_numbers(numbers: list[int], count: int) -> list[int]:
    """Return the smallest numbers, so many as count says, in rising order."""
    return sorted(numbers)[:count]


def has_pair_with_sum(numbers: list[int], target: int) -> bool:
    """Return True if two numbers at different places add up to target."""
    return any(x + y == target for i, x in enumerate(numbers) for y in numbers[i + 1 :])


def window_sums(numbers: list[int], width: int) -> list[int]:
    """Return the sums of all runs of width neighbours."""
    return [sum(numbers[i : i + width]) for i in range(len(numbers) - width + 1)]


def multiples_of(numbers: list[int], divisor: int) -> list[int]:
    """Return the numbers that divisor divides without remainder."""
    return [x for x in numbers if x % divisor == 0]


def repeat_each(numbers: list[int], times: int) -> list[int]:
    """Return a list in which each number occurs so many times in a row."""
    return [x for x in numbers for _ in range(times)]


def insert_between(numbers: list[int], value: int) -> list[int]:
    """Put value between each two neighbours of the list."""
    return [y for x in numbers for y in (x, value)][:-1]


def first_above(numbers: list[int], limit: int) -> int:
    """Return the index of the first number above limit, or -1 if there is none."""
    return next((i for i, x in enumerate(numbers) if x > limit), -1)


def common_items(first: list[int], second: list[int]) -> list[int]:
    """Return the different numbers that are in both lists, in rising order."""
    return sorted(set(first) & set(second))


def interleave(first: list[int], second: list[int]) -> list[int]:
    """Take numbers from both lists in turns. Stop when the shorter list ends."""
    return [x for pair in zip(first, second, strict=False) for x in pair]


def dot_product(first: list[int], second: list[int]) -> int:
    """Return the sum of the products of numbers at the same place. The lists have equal lengths."""
    return sum(x * y for x, y in zip(first, second, strict=False))


def merge_sorted(first: list[int], second: list[int]) -> list[int]:
    """Return all numbers of both lists in rising order."""
    return sorted(first + second)


def missing_items(first: list[int], second: list[int]) -> list[int]:
    """Return the numbers of the first list that the second list does not contain."""
    return [x for x in first if x not in second]


def digit_sum(n: int) -> int:
    """Return the sum of the digits of n."""
    return sum(map(int, str(n)))


def digit_product(n: int) -> int:
    """Return the product of the digits of n."""
    return prod(map(int, str(n)))


def reverse_digits(n: int) -> int:
    """Return the number whose digits are those of n from right to left."""
    return int(str(n)[::-1])


def divisors(n: int) -> list[int]:
    """Return all positive divisors of n in rising order."""
    return [d for d in range(1, n + 1) if n % d == 0]


def is_perfect_square(n: int) -> bool:
    """Return True if n is the square of an integer."""
    return round(n**0.5) ** 2 == n


def count_ones(n: int) -> int:
    """Return how many ones the binary form of n has."""
    return bin(n).count("1")


def collatz_steps(n: int) -> int:
    """Halve n if it is even, else triple it and add one. Return after how many steps it is 1."""
    return 0 if n == 1 else 1 + collatz_steps(n // 2 if n % 2 == 0 else 3 * n + 1)


def even_digits(n: int) -> int:
    """Return how many digits of n are even."""
    return sum(d in "02468" for d in str(n))


def sum_up_to(n: int) -> int:
    """Return the sum of all numbers from 1 to n that 3 or 5 divides."""
    return sum(x for x in range(1, n + 1) if x % 3 == 0 or x % 5 == 0)


def prime_factors(n: int) -> list[int]:
    """Return the prime factors of n in rising order, each as often as it occurs."""
    smallest = next((d for d in range(2, n + 1) if n % d == 0), None)
    return [] if smallest is None else [smallest, *prime_factors(n // smallest)]


def to_base(n: int, base: int) -> str:
    """Return n written in the given base, which is from 2 to 9."""
    return str(n) if n < base else to_base(n // base, base) + str(n % base)


def is_multiple(n: int, m: int) -> bool:
    """Return True if m divides n without remainder."""
    return n % m == 0


def common_divisor(n: int, m: int) -> int:
    """Return the largest number that divides both n and m."""
    return gcd(n, m)


def minutes_to_clock(minutes: int) -> str:
    """Return the time of day that is so many minutes after midnight, as HH:MM."""
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


def transpose(rows: list[list[int]]) -> list[list[int]]:
    """Return the matrix whose rows are the columns of the given one."""
    return [list(c) for c in zip(*rows, strict=True)]


def row_sums(rows: list[list[int]]) -> list[int]:
    """Return the sum of each row."""
    return [sum(r) for r in rows]


def column_maxima(rows: list[list[int]]) -> list[int]:
    """Return the largest number of each column."""
    return [max(c) for c in zip(*rows, strict=True)]


def flatten(rows: list[list[int]]) -> list[int]:
    """Return all numbers of the rows in one list."""
    return [x for r in rows for x in r]


def diagonal_sum(rows: list[list[int]]) -> int:
    """Return the sum of the numbers on the diagonal from the top left."""
    return sum(rows[i][i] for i in range(min(len(rows), len(rows[0]))))


def mirror_rows(rows: list[list[int]]) -> list[list[int]]:
    """Return the matrix with each row reversed."""
    return [r[::-1] for r in rows]
