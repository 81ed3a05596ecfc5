"""Sequences of numbers, up and down with steps. The question leaves no choice of answer."""

from random import Random

SMALL_STEPS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
LARGE_STEPS = [11, 12, 15, 20, 25, 30, 40, 50, 100]
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()

UP_TO = [
    "Count from {first} to {last} in steps of {step}.",
    "Count up from {first} to {last} by {step}.",
    "Start at {first} and add {step} until you reach {last}.",
    "List the numbers from {first} to {last}, adding {step} each time.",
    "Go from {first} up to {last} in steps of {step}.",
    "Write the sequence from {first} to {last} with a step of {step}.",
    "Which numbers do I pass if I go from {first} to {last} in steps of {step}?",
    "Please count by {step} from {first} to {last}.",
]
DOWN_TO = [
    "Count down from {first} to {last} in steps of {step}.",
    "Count backwards from {first} to {last} by {step}.",
    "Start at {first} and subtract {step} until you reach {last}.",
    "List the numbers from {first} to {last}, subtracting {step} each time.",
    "Go from {first} down to {last} in steps of {step}.",
    "Write the falling sequence from {first} to {last} with a step of {step}.",
    "Which numbers do I pass if I go down from {first} to {last} in steps of {step}?",
    "Please count down by {step} from {first} to {last}.",
]
NUMBER_UP = [
    "Write {number} numbers, starting at {first} and adding {step} each time.",
    "Give me {number} numbers that start at {first} and go up by {step}.",
    "Begin with {first} and keep adding {step}: {number} numbers, please.",
]
NUMBER_DOWN = [
    "Write {number} numbers, starting at {first} and subtracting {step} each time.",
    "Give me {number} numbers that start at {first} and go down by {step}.",
    "Begin with {first} and keep subtracting {step}: {number} numbers, please.",
]
CONTINUE = [
    "Continue the sequence {shown} with {number} more numbers.",
    "What are the next {number} numbers after {shown}?",
    "{shown}: write the next {number} numbers of this sequence.",
    "Here is a sequence: {shown}. Give me {number} more numbers.",
]
MULTIPLES = [
    "List the multiples of {step} from {first} to {last}.",
    "Which multiples of {step} lie between {first} and {last}, both included?",
]
IN_WORDS = [" Write the numbers in words.", " Answer in words.", " Use words, not digits."]
LARGEST_IN_WORDS = 99
MOST_TO_COUNT = 8  # numbers that a question asks for by how many they are


def in_words(number: int) -> str:
    if number < 20:
        return ONES[number]
    tens, ones = divmod(number, 10)
    return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")


def draw(random: Random) -> tuple[str, str, str]:
    step = random.choice(SMALL_STEPS if random.random() < 0.75 else LARGE_STEPS)
    number = min(random.randint(5, 16) if random.random() < 0.85 else random.randint(17, 30), 900 // step + 1)
    span = step * (number - 1)
    low = random.randint(0, 999 - span) if random.random() < 0.3 else random.randint(0, max(99 - span, 20))
    rising = random.random() < 0.6
    sequence = list(range(low, low + span + 1, step)) if rising else list(range(low + span, low - 1, -step))
    key = f"{sequence[0]} {sequence[1] - sequence[0]}"

    form = random.random()
    write = in_words if max(sequence) <= LARGEST_IN_WORDS and random.random() < 0.2 else str
    slots = {"first": write(sequence[0]), "last": write(sequence[-1]), "step": write(step)}
    num_shown = random.randint(3, 4)
    if form < 0.2 and 2 <= number - num_shown <= MOST_TO_COUNT:
        slots = {"shown": ", ".join(map(str, sequence[:num_shown])), "number": str(number - num_shown)}
        template, sequence = random.choice(CONTINUE), sequence[num_shown:]
    elif form < 0.35 and number <= MOST_TO_COUNT:
        template, slots["number"] = random.choice(NUMBER_UP if rising else NUMBER_DOWN), str(number)
    elif form < 0.5 and rising and low and low % step == 0 and step > 1:
        template = random.choice(MULTIPLES)
    else:
        template = random.choice(UP_TO if rising else DOWN_TO)
    prompt = template.format(**slots)
    if max(sequence) <= LARGEST_IN_WORDS and random.random() < 0.1:
        return prompt + random.choice(IN_WORDS), ", ".join(map(in_words, sequence)), key
    return prompt, ", ".join(map(str, sequence)), key
