"""Prompts about a short text: questions that it answers, summaries, copies, corrections."""

from random import Random

from wedlm.adapters.prompts_texts import make_text

ASK_QUESTION = [
    "{q}",
    "{q}",
    "{q} Answer from the text.",
    "{q} Answer in one sentence.",
    "{q} Answer with as few words as possible.",
]
LISTS = [
    "List all numbers in this text.",
    "List every name in this text.",
    "List all names of people and places in this text.",
    "List every time, day and date in this text.",
    "Find all nouns in the first sentence of this text.",
    "Which facts does this text state? Write a bulleted list.",
    "Write down all verbs of this text.",
    "How many sentences has this text?",
    "Which words of this text begin with a capital letter?",
    "Write three questions that this text answers.",
    "Make a table of the numbers in this text and their meaning.",
    "Is this text a letter, a report or a story? Give a reason.",
    "What is this text about?",
]
SUMMARIES = [
    "Summarize this text in one sentence.",
    "Summarise this text.",
    "Summarize this text in two sentences.",
    "Give me the main points of this text as a list.",
    "Write a headline for this text.",
    "Shorten this text to half of its length.",
    "What is the most important message of this text?",
    "Write a short summary for a child.",
    "Summarize this text in at most ten words.",
    "Rewrite this text in your own words.",
    "Rephrase this text in simple English.",
    "Rewrite this text in a more formal style.",
    "Rewrite this text in a friendly tone.",
    "Rewrite this text as an e-mail to a friend.",
    "Rewrite this text in the past tense.",
    "Rewrite this text as a news report.",
    "Rewrite this text as bullet points.",
    "Write one more paragraph that continues this text.",
    "Turn this text into a short dialogue.",
]
COPIES = [
    "Repeat this text word for word.",
    "Repeat this text exactly.",
    "Copy this text without any change.",
    "Write this text again, each sentence on a line of its own.",
    "Write this text as a numbered list of its sentences.",
    "Put this text into quotation marks and change nothing else.",
    "Write this text in capital letters.",
    "Write this text in lower case.",
    "Repeat the last sentence of this text.",
    "Repeat the first sentence of this text, then the rest of it.",
    "Write the sentences of this text in reverse order.",
    "Format this text in Markdown, with a heading of your choice.",
    "Put this text into an HTML paragraph.",
]
REPLACEMENTS = [
    "In this text, replace {old} by {new}. Change nothing else.",
    "Write this text again with {new} instead of {old}.",
    "Change {old} to {new} in this text and repeat the rest as it is.",
    "Put the word {old} in bold in this text, with two stars on each side.",
]
CORRECTIONS = [
    "Correct the spelling of this text.",
    "Correct the mistakes in this text.",
    "Fix the typos in this text and change nothing else.",
    "There are some typing errors in this text. Please write it without them.",
    "Proofread this text.",
    "Correct this text and list the words that you changed.",
]
NEW_WORDS = "Ruby Marlow Hilltown Sunday forty twelve river table otter music".split()


def with_text(random: Random, request: str, sentences: list[str]) -> str:
    """A request with a text behind or before it."""
    text = " ".join(sentences)
    return random.choice(
        [
            f"{request}\n\n{text}",
            f"{request}\n\n{text}",
            f"{text}\n\n{request}",
            f'{request}\n\n"{text}"',
            f"{request}\n\nText: {text}",
        ]
    )


def mistyped(random: Random, word: str) -> str:
    """The word with two neighbouring letters exchanged, a letter doubled, or a letter left out."""
    place = random.randrange(1, len(word) - 2)
    return random.choice(
        [
            word[:place] + word[place + 1] + word[place] + word[place + 2 :],
            word[:place] + word[place] + word[place:],
            word[:place] + word[place + 1 :],
        ]
    )


def draw_extraction(random: Random) -> tuple[str, str]:
    text = make_text(random)
    request = random.choice(LISTS)
    if random.random() < 0.75:
        request = random.choice(ASK_QUESTION).format(q=random.choice(text.questions))
    return " ".join(text.sentences), with_text(random, request, text.sentences)


def draw_summary(random: Random) -> tuple[str, str]:
    sentences = make_text(random).sentences
    return " ".join(sentences), with_text(random, random.choice(SUMMARIES), sentences)


def draw_copying(random: Random) -> tuple[str, str]:
    sentences = make_text(random).sentences
    key, way = " ".join(sentences), random.randrange(3)
    if way == 0:
        return key, with_text(random, random.choice(COPIES), sentences)
    if way == 1:
        words = [word for word in key.split() if word.isalnum() and len(word) > 2]
        request = random.choice(REPLACEMENTS).format(
            old=f'"{random.choice(words)}"', new=f'"{random.choice(NEW_WORDS)}"'
        )
        return key, with_text(random, request, sentences)
    words = key.split()
    long_words = [place for place, word in enumerate(words) if word.isalpha() and len(word) > 3]
    for place in random.sample(long_words, min(len(long_words), random.randint(2, 5))):
        words[place] = mistyped(random, words[place])
    return key, with_text(random, random.choice(CORRECTIONS), [" ".join(words)])
