"""Prompts for advice, for comparisons, and small talk."""

from random import Random

from wedlm.adapters.prompts_phrases import items

SITUATIONS = items("""
I cannot fall asleep at night; I am always late; I forget names quickly; my flatmate never cleans
I feel tired after lunch; I have two job offers and cannot decide; my boss gives me too much work
I am nervous before presentations; I want to save money; I want to read more but never find the time
my cat scratches the sofa; my dog barks at visitors; my plants have yellow leaves; my bread does not rise
my rice always sticks; my coffee tastes bitter; I have only eggs and potatoes at home; my laptop is very slow
my phone runs out of battery quickly; my Wi-Fi is weak in one room; my printer does not answer
I deleted a file by accident; I forgot the password of my e-mail account; I got a strange e-mail from my bank
my Python program says that a module is missing; my Python loop never ends; my code gives an index error
my tests fail on one machine only; I have a merge conflict in Git; my SQL query is slow
my web page looks wrong on phones; I do not know which programming language to learn
I want to learn programming from the beginning; I have to learn 200 words for a test; I have an exam in three days
my child does not want to do homework; my daughter is afraid of the dark; my son plays video games all day
my parents want to visit too often; I had an argument with a good friend; a friend owes me money
a colleague takes credit for my work; I have to give bad news to my team; I moved to a new city and know nobody
I want to make friends at work; I feel lonely at weekends; I miss my old home
I want to start running but I am out of shape; my back hurts from sitting; I want to eat less sugar
I drink too much coffee; I catch a cold every winter; I want to lose weight without going hungry
I cannot keep a diet; I get headaches at the computer; I want to buy a used bicycle; I want to buy my first car
I want to rent a flat; my rent was raised; I want to sell my old books; I have a long flight with a baby
I travel alone for the first time; I am afraid of flying; I lost my luggage; I plan a week in Italy
I have to write a speech for a wedding; I need a present for my grandmother
I have guests tonight and nothing to cook; I want to plant vegetables on a balcony; my lawn has brown spots
there are ants in my kitchen; the window is foggy every morning; my bicycle brake squeaks; my sink is blocked
I spilled red wine on a carpet; my shirt has an ink stain; my shoes smell; I want to ask for a raise
I want to change my career at forty; I was not invited to a party; I have no idea what to study
I always put off important tasks; I get distracted by my phone; I cannot say no; I worry too much about small things
I want to write a novel and do not know how to start; I want to learn the piano as an adult
I want to speak French before the summer
""")
PAIRS = items("""
tea|coffee; cats|dogs; a laptop|a desktop computer; a list|a tuple in Python; a stack|a queue; Python|JavaScript
Java|C++; SQL|NoSQL databases; an array|a linked list; a process|a thread; a compiler|an interpreter
a class|an object; HTTP|HTTPS; TCP|UDP; Git|GitHub; RAM|a hard disk; weather|climate; a comet|an asteroid
mass|weight; speed|velocity; heat|temperature; a virus|a bacterium; an alligator|a crocodile; a frog|a toad
a moth|a butterfly; a fruit|a vegetable; baking soda|baking powder; butter|margarine; a debit card|a credit card
a share|a bond; gross income|net income; renting|buying a home; a democracy|a monarchy
the Middle Ages|the Renaissance; a novel|a short story; a simile|a metaphor; an acronym|an abbreviation
affect|effect; who|whom; a hypothesis|a theory; the mean|the median; area|perimeter; a square|a rhombus
permutations|combinations; a solar eclipse|a lunar eclipse; an animal cell|a plant cell; fog|clouds; a lake|a pond
trains|planes; electric cars|petrol cars; paper books|e-books; a gym|training at home; yoga|Pilates
jazz|classical music; oil paint|watercolour; a violin|a viola; chess|checkers; football|rugby; summer|winter holidays
city life|country life; an essay|a report; e-mails|phone calls; a leader|a manager; empathy|sympathy
a recipe|an algorithm; machine learning|ordinary programming; supervised|unsupervised learning
breadth-first search|depth-first search; merge sort|quicksort; a while loop|a for loop; unit tests|integration tests
JSON|XML; CSV|Excel files
""")
CHOICES = items("""
learn the guitar or the piano; study biology or chemistry; buy a new phone or keep the old one; rent or buy a flat
take a gap year; learn Python or Java first; write my thesis in Word or LaTeX; use tabs or spaces; get a cat or a dog
go to Spain or to Norway in July; travel by train or by plane; drink tea or coffee in the morning
exercise in the morning or in the evening; accept a job abroad; quit my job without a new one; lend money to a friend
buy a used car; go to bed earlier or get up later; cook or order food tonight; cut my own hair
repaint the living room; adopt an older dog; start a blog; delete my social media accounts; learn to drive at fifty
store my photos in the cloud; use a password manager; write comments in my code; rewrite old code from scratch
use a framework for a small website
""")
CHATS = items("""
Hello! How are you?; Hi, what can you do?; Good morning! Tell me something interesting.; Tell me a joke.
Tell me a joke about computers.; I am bored. What could I do?; What is your favourite colour?
Can you help me with my homework?; Thank you for your help!; Good night!; Ask me three questions to get to know me.
Let us play a word game.; Tell me a fun fact about animals.; Tell me a fun fact about space.
Motivate me to clean my room.; Give me a compliment.; What should I cook tonight?; What would you ask a scientist?
Surprise me.; I had a bad day.; I passed my exam today!; It is raining here.; I am new here. How does this work?
Do you know any riddles?; Which book should I read next?; Recommend a film for tonight.; Teach me a new word.
Teach me something about history in three sentences.
""")
ASK_ADVICE = [
    "{s}. What should I do?",
    "{s}. Can you help me?",
    "{s}. Do you have any advice?",
    "{s}. What would you recommend?",
    "{s}. What are the most likely reasons, and what can I do about it?",
    "{s}. Give me a plan for the next week.",
    "What can I do if {l}?",
    "{s}. Please give me three short pieces of advice.",
    "{s}. Where should I start?",
    "{s}. Answer in two or three sentences, please.",
]
ASK_COMPARISON = [
    "What is the difference between {a} and {b}?",
    "Compare {a} and {b}.",
    "Compare {a} and {b} in a table.",
    "What do {a} and {b} have in common, and how do they differ?",
    "Explain the difference between {a} and {b} in one sentence.",
    "How do I tell {a} from {b}?",
    "{a} or {b}: when would you choose which?",
    "Name three differences between {a} and {b}.",
]
ASK_CHOICE = [
    "Should I {c}?",
    "I am thinking about this: should I {c}? Give me reasons for both sides.",
    "Should I {c}? Answer briefly.",
    "Help me decide whether to {c}.",
    "What questions should I ask myself before I {c}?",
]


def draw(random: Random) -> tuple[str, str]:
    way = random.randrange(10)
    if way < 5:
        situation = random.choice(SITUATIONS)
        inside = situation if situation.startswith(("I ", "my ")) else situation[0].lower() + situation[1:]
        text = random.choice(ASK_ADVICE).format(s=situation[0].upper() + situation[1:], l=inside)
        return situation, text
    if way < 8:
        pair = random.choice(PAIRS)
        a, b = pair.split("|")
        text = random.choice(ASK_COMPARISON).format(a=a, b=b)
        return pair, text[0].upper() + text[1:]
    if way == 8:
        choice = random.choice(CHOICES)
        return choice, random.choice(ASK_CHOICE).format(c=choice)
    chat = random.choice(CHATS)
    return chat, chat
