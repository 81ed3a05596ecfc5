"""Prompts about words and sentences: translations, meanings, forms, orders."""

from random import Random

from wedlm.adapters.prompts_phrases import items

LANGUAGES = ["French", "Spanish", "German", "Italian", "Portuguese", "Dutch", "French", "Spanish", "German"]
WHO = items("""
I; We; My sister; My neighbour; The teacher; The children; Our guests; The old man; A young woman; The doctor
Two friends; My parents; The baker; Everyone; The students; The driver; Her brother; The cook; The tourists
A policeman
""")
DID = items("""
visited the museum; bought fresh bread; missed the last train; found a small key; painted the kitchen
waited for the bus; lost the map; opened all the windows; wrote a long letter; watched the stars
repaired the old radio; planted three trees; forgot the umbrella; asked for the bill; swam in the lake
read the newspaper; cooked a soup; took many pictures; slept very badly; laughed at the joke; climbed the tower
cleaned the garage; borrowed a ladder; learned a new song; walked along the river; told an old story; fed the ducks
""")
WHEN = items("""
yesterday; last night; in the morning; on Sunday; before lunch; after work; in the rain; during the holidays; at noon
two days ago; last summer; at the weekend; in the evening; once again; early in the day; with great care; in silence
for the first time
""")
SAYINGS = items("""
Where is the nearest station?; I would like a cup of coffee, please.; How much does this cost?
The weather is nice today.; Could you speak more slowly?; My name is Julia and I am from Canada.
We have a reservation for two people.; What time is it?; I do not understand the question.; Have a good journey!
Is there a pharmacy near here?; The cat sleeps on the red sofa.; She speaks three languages.
They will arrive tomorrow at noon.; I have lost my passport.; Can you help me, please?; The soup is too hot.
It is never too late to learn.; Happy birthday!; Please turn left at the church.; I am allergic to nuts.
The shop is closed on Mondays.; He works in a hospital.; We need more time.; This book changed my life.
Do you like music?
""")
MEANINGS = items("""
ambiguous; benevolent; candid; diligent; eloquent; frugal; gregarious; humble; inevitable; jubilant; keen; lucid
meticulous; nostalgic; obscure; pragmatic; quaint; resilient; sceptical; tedious; unanimous; vivid; whimsical
zealous; abundant; brittle; cautious; dubious; elaborate; feasible; genuine; hostile; impartial; jeopardy; kinship
legacy; mediocre; novice; obsolete; paradox; quarrel; rehearse; scarce; tangible; utter; vague; weary; yield
anticipate; bargain; compromise; deadline; endeavour; fragile; gratitude; hesitate; imply; justify; linger; mandatory
neglect; optimistic; persuade; reluctant; subtle; thrive; urgent; versatile; withdraw; courage; serendipity; empathy
integrity; wisdom; curiosity; patience; trust; ambition; jealousy; solitude; stubborn; generous; clumsy
break the ice; a piece of cake; once in a blue moon; hit the nail on the head; under the weather
cost an arm and a leg; spill the beans; let the cat out of the bag; bite the bullet; the last straw; on cloud nine
pull someone's leg; a storm in a teacup; burn the midnight oil
""")
THINGS = items("""
lemon; hammer; violin; tiger; cloud; bread; window; river; carpet; pepper; mirror; castle; rocket; garden; button
candle; ladder; monkey; pencil; basket; island; engine; feather; kettle; blanket; orange; tunnel; forest; bridge
puzzle; cherry; anchor; magnet; velvet; walnut
""")
VERBS = items("""
go; see; take; write; begin; choose; drive; eat; fall; forget; give; grow; hide; know; lie; ride; ring; rise; run
shake; sing; speak; swim; teach
""")
NOUNS = items("""
child; mouse; tooth; foot; knife; leaf; wolf; sheep; city; box; hero; potato; crisis; analysis; cactus; person; goose
shelf; fish; baby; bus
""")


def sentence(random: Random) -> str:
    if random.random() < 0.3:
        return random.choice(SAYINGS)
    return f"{random.choice(WHO)} {random.choice(DID)} {random.choice(WHEN)}."


def translation(random: Random) -> str:
    language, text = (
        random.choice(LANGUAGES),
        " ".join(sentence(random) for _ in range(random.choice([1, 1, 1, 2, 3]))),
    )
    return random.choice(
        [
            f"Translate into {language}: {text}",
            f'How do you say "{text}" in {language}?',
            f'Translate this to {language}: "{text}"',
            f"What is this in {language}? {text}",
            f"Translate the following into {language} and explain the words:\n\n{text}",
        ]
    )


def meaning(random: Random) -> str:
    word = random.choice(MEANINGS)
    return random.choice(
        [
            f'What does "{word}" mean?',
            f'Define "{word}".',
            f'Explain the meaning of "{word}" and use it in a sentence.',
            f'Use "{word}" in three different sentences.',
            f'Give me two words or phrases that mean the same as "{word}".',
            f'What is the opposite of "{word}"?',
            f'When would I say "{word}"?',
        ]
    )


def forms(random: Random) -> str:
    verb, noun, text = random.choice(VERBS), random.choice(NOUNS), sentence(random)
    things = random.sample(THINGS, random.randint(3, 5))
    nouns, verbs = ", ".join(random.sample(NOUNS, 5)), ", ".join(random.sample(VERBS, 4))
    return random.choice(
        [
            f'What is the past tense of "{verb}"?',
            f'Conjugate the verb "{verb}" in the present tense.',
            f"Write these verbs in the past tense: {verbs}.",
            f'What is the plural of "{noun}"?',
            f"Write the plural of each of these words: {nouns}.",
            f"Put this sentence into the future tense: {text}",
            f"Turn this sentence into a question: {text}",
            f"Write the opposite of this sentence: {text}",
            f"Name the subject and the verb of this sentence: {text}",
            f"How many words has this sentence? {text}",
            f"Rewrite this sentence more politely: {text}",
            f"Make this sentence longer by adding details: {text}",
            f"Write a sentence that uses the words {', '.join(things[:-1])} and {things[-1]}.",
        ]
    )


def orders(random: Random) -> str:
    words = random.sample(THINGS, random.randint(4, 9))
    listed, word = ", ".join(words), random.choice(words)
    return random.choice(
        [
            f"Sort these words alphabetically: {listed}.",
            f"Sort these words by their length: {listed}.",
            f"Write these words in reverse order: {listed}.",
            f"Which of these words has the most letters: {listed}?",
            f"Write these words in capital letters: {listed}.",
            f"Write these words as a bulleted list: {listed}.",
            f"Group these words by their first letter: {listed}.",
            f"Sort these words into groups that you name yourself: {listed}.",
            f"Find a rhyme for each of these words: {listed}.",
            f"Which word does not belong with the others, and why: {listed}?",
            f"Describe each of these things in one short sentence: {listed}.",
            f"Write these words as a Python list of strings: {listed}.",
            f'Spell the word "{word}" backwards.',
            f'How many letters has the word "{word}", and which of them are vowels?',
            f'Write an acrostic poem for the word "{word}".',
            f'Make up a riddle whose answer is "{word}".',
        ]
    )


def draw(random: Random) -> tuple[str, str]:
    text = random.choice([translation, translation, meaning, forms, orders])(random)
    return text, text
