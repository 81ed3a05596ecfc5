"""Prompts that ask for free texts: essays, stories, letters, poems, dialogues."""

from random import Random

from wedlm.adapters.prompts_phrases import items

TOPICS = items("""
the value of friendship; why we should protect forests; the history of bread; life in a big city; the future of work
learning from mistakes; the importance of sleep; how music brings people together; the role of libraries
why travel is good for us; the invention of writing; the benefits of sport; reading in the age of screens
the beauty of mathematics; what makes a good teacher; artificial intelligence in daily life; clean water for everyone
the way cities change; the meaning of home; why honesty matters; the history of the bicycle; cooking as an art
the influence of the weather on our mood; how to use time well; the importance of voting; space travel
bees and farming; the four seasons; small acts of kindness; the power of curiosity
growing up with brothers and sisters; public transport; the art of listening; the sea; why people keep pets
the story of coffee; winter sports; the role of money; memories; good design; open source software; privacy online
the advantages of learning languages; museums; healthy food in schools; the night sky; traditions
the history of the postal service; silence
""")
HEROES = items("""
a lighthouse keeper; a young fox; a retired detective; a shy robot; a baker; two sisters; a lost dog; a clockmaker
a girl who loves maps; an old sailor; a dragon who is afraid of fire; a violinist; a boy with a red kite
a talking cat; a librarian; a gardener; a taxi driver; a snail; a king without a crown; a young inventor
a mountain guide; a ghost; a bus driver; a penguin; a tired knight; a nurse on night shift
""")
PLOTS = items("""
finds a strange letter; gets lost in a snowstorm; discovers a hidden door; makes an unlikely friend
has to keep a secret; loses something precious; learns to be brave; travels to a distant island
hears a voice in the night; wins a contest by accident; wakes up in another century; helps a stranger
breaks a promise; finds a lantern that never goes out; misses the last train; builds a boat; solves a small mystery
returns home after many years; meets an old rival; plants a garden where nothing grows
""")
PURPOSES = items("""
a landlord about a broken heater; a colleague to move a meeting to Thursday; a teacher because my son is ill
a shop about a late parcel; a customer whose order is late; my boss to ask for a day off; my boss to ask for a raise
a hotel to change a booking; a friend to apologise for missing a party; a friend to invite her for dinner
the team about a new coffee machine; a company to apply for a job; a company to cancel a contract
a professor to ask for more time; a neighbour about loud music; my grandmother to thank her for a present
an airline about lost luggage; a dentist to cancel an appointment; the city about a broken street lamp
a landlord to end a lease; a client with the results of a project; the staff about the office being closed on Friday
a friend who moved abroad; a new neighbour to say welcome; a library about a book that was returned late
a bank about a payment I do not know; a supplier to ask for an offer; a school to ask about courses
a recruiter to say no to an offer; a mentor to say thank you; a colleague who leaves the company
a travel agency about a refund
""")
POEMS = items("""
the sea; autumn leaves; a sleeping cat; the first snow; an old house; coffee in the morning; a train at night
the moon; a busy market; spring; friendship; a broken clock; the rain; a garden; a lost glove; the stars; homework
the wind; a bridge; a candle; an empty street; bread; a computer that dreams; a long journey; grandmother's kitchen
mountains; the colour blue; silence; a bicycle; birds; hope; time
""")
COUPLES = items("""
a customer and a waiter; a teacher and a student who forgot the homework; a cat and a mouse
two friends who plan a holiday; a doctor and a patient with a cough; a tourist and a policeman; the sun and the moon
a robot and its inventor; a mother and her teenage son; two strangers on a train
a shop assistant and a man who returns a toaster; a pilot and a passenger; an old tree and a bird; two chess players
a job applicant and an interviewer; a ghost and a plumber; a librarian and a child; a programmer and a rubber duck
a farmer and a scarecrow; a king and his cook; two neighbours at a fence; a salesperson and a careful buyer
a coach and a tired runner; a painter and a model
""")
OTHERS = items("""
a product description for a wooden desk; a product description for a rain jacket; a slogan for a bakery
three slogans for a bicycle shop; a short speech for a colleague who retires
a toast for the wedding of an old friend; an invitation to a garden party next Saturday
a diary entry of a sailor in a storm; a diary entry of a cat; a news report about a cat that travelled by train
a news report about a lost painting; a review of a small hotel by the sea
a review of a headset that broke after a week; a job advertisement for a cook in a village inn
a job advertisement for a Python developer; a notice about a lost dog; an announcement of a school concert
a birthday card for a colleague; a birthday card for my grandfather; a get-well card for a neighbour
a bedtime story about a brave teapot; a limerick about a clumsy wizard; an advertisement for a used car
the beginning of a crime novel in a foggy harbour; a fable about an ant and an owl
the monologue of a clock that stopped; a horoscope for a patient person
a cover letter for a summer job in a bookshop; a README for a program that sorts photos
release notes for a notes app; meeting notes about a new website; a short biography of an invented painter
instructions for a board game about trade; a menu for a small cafe; a museum label for a broken cup
a weather report for an invented planet; a museum tour in three stops; a text for the start page of a bakery
a tweet about a new library; a radio spot for a flea market; an obituary for an old bicycle
a fan letter to an invented singer
""")
LENGTHS = [
    "",
    "",
    "",
    " Write about 100 words.",
    " Write about 150 words.",
    " Keep it under 80 words.",
    " Write two paragraphs.",
    " Write three paragraphs.",
]
MOODS = [
    "",
    "",
    "",
    " Make it funny.",
    " Use simple words.",
    " Give it a surprising end.",
    " Keep it calm.",
    " Give it a title.",
    " Write in the first person.",
]
TONES = [
    "",
    "",
    "",
    " Keep it short.",
    " Be friendly.",
    " Be formal.",
    " Use no more than five sentences.",
    " Add a subject line.",
]
FORMS = [
    "a short poem",
    "a poem of four lines",
    "a haiku",
    "a poem that rhymes",
    "a limerick",
    "a poem of two stanzas",
    "a song text",
]


def draw(random: Random) -> tuple[str, str]:
    way = random.randrange(6)
    if way == 0:
        task = random.choice(TOPICS)
        form = random.choice(
            [
                "a short essay",
                "an essay",
                "a blog post",
                "a short article",
                "the introduction of an essay",
            ]
        )
        ask = random.choice(
            [
                f"Write {form} about {task}.",
                f"Please write {form} about {task}.",
                f"Can you write {form} about {task}?",
            ]
        )
        return task, ask + random.choice(LENGTHS)
    if way == 1:
        hero, plot = random.choice(HEROES), random.choice(PLOTS)
        form = random.choice(
            ["a short story", "a story for children", "a very short story", "the beginning of a story", "a fairy tale"]
        )
        ask = random.choice(
            ["Write {} in which {} {}.", "Tell me {} in which {} {}.", "I would like to read {} in which {} {}."]
        )
        return hero + plot, ask.format(form, hero, plot) + random.choice(LENGTHS + MOODS)
    if way == 2:
        task = random.choice(PURPOSES)
        form = random.choice(
            ["an e-mail", "a polite e-mail", "a short letter", "a friendly message", "a formal letter"]
        )
        return task, random.choice(["Write {} to {}.", "Help me write {} to {}.", "Draft {} to {}."]).format(
            form, task
        ) + random.choice(TONES)
    if way == 3:
        task = random.choice(POEMS)
        return (
            task,
            f"{random.choice(['Write', 'Please write', 'Compose'])} {random.choice(FORMS)} about {task}."
            + random.choice(MOODS[:5]),
        )
    if way == 4:
        task = random.choice(COUPLES)
        form = random.choice(
            [
                "a dialogue",
                "a short dialogue",
                "a funny conversation",
                "a scene for the stage",
                "a short conversation with six lines",
            ]
        )
        return task, f"Write {form} between {task}." + random.choice(LENGTHS[:6] + MOODS[:6])
    task = random.choice(OTHERS)
    ask = random.choice(["Write {}.", "Please write {}.", "Can you write {}?", "I need {}. Can you write it?"])
    return task, ask.format(task) + random.choice(LENGTHS[:6])
