"""Prompts that ask for an explanation or a fact."""

from random import Random

from wedlm.adapters.prompts_phrases import clause, direct, items

# A question without its question word: auxiliary and subject, a bar, the rest.
WHY = items("""
is the sky | blue; is the sea | salty; do leaves | change colour in autumn; does ice | float on water
does the moon | seem to change its shape; do we | see lightning before we hear thunder; do stars | twinkle
is a desert | cold at night; does bread | rise; do onions | make us cry; does milk | turn sour; does iron | rust
do cats | purr; do dogs | wag their tails; do birds | fly in a V shape; do bees | dance
do some animals | sleep through the winter; do zebras | have stripes; are flamingos | pink; do we | yawn
do we | dream; do we | get goosebumps; do we | need sleep; do we | sneeze; do muscles | ache the day after sport
does skin | wrinkle in water; do we | have fingerprints; does hair | turn grey; do we | have two eyes
do we | feel dizzy after spinning; does a fever | help the body; is too much sugar | bad for the teeth
do planes | leave white trails; do bridges | have gaps between their parts; do tyres | have treads
are manhole covers | round; do golf balls | have dimples; do airplanes | have small windows
do clocks | run clockwise; do ships | float although steel is heavy; do batteries | lose charge over time
do phones | slow down with age; do computers | use binary numbers; do programs | have bugs
are strong passwords | important; does software | need updates; do programmers | use version control
do programmers | write tests; is recursion | slower than a loop in many languages
are floating-point numbers | not exact; does sorting | make searching faster; are hash tables | fast
do websites | use cookies; are databases | indexed; do companies | make backups; do prices | rise over time
do countries | have different currencies; do central banks | change interest rates; do people | buy insurance
do shops | set prices such as 9.99; do some companies | pay dividends; is saving early | so powerful
do governments | collect taxes; did the Roman Empire | fall; was the printing press | so important
did people | build castles on hills; were the pyramids | built; did the Industrial Revolution | begin in Britain
were spices | so valuable in the Middle Ages; was the Silk Road | important; did sailors | suffer from scurvy
do languages | change over time; does English | have so many silent letters; do people | have accents
do some languages | have no articles; do we | use metaphors; is it | hard to learn a new language as an adult
does coffee | wake us up; does popcorn | pop; does pasta water | need salt; does cut fruit | turn brown
does chocolate | melt in the hand; does a cake | fall if the oven is opened too early
do mirrors | fog up in the bathroom; does metal | feel colder than wood; does soap | clean hands
do clothes | shrink in hot water; do balloons | stick to the wall after rubbing; does a straw | look bent in water
do we | have leap years; do we | have time zones; do we | have seasons; do tides | rise and fall
do volcanoes | erupt; do earthquakes | happen; do rivers | bend; are most planets | round
is Pluto | no longer called a planet; does Saturn | have rings; is Mars | red; do satellites | stay in orbit
does a boomerang | come back; do teams | hold short daily meetings; do people | put things off
do songs | get stuck in our heads; do we | forget names so easily; does music | make us feel emotions
do children | ask so many questions; do we | like stories; do crowds | behave differently from single people
does practice | make skills automatic; does exercise | improve the mood
""")
HOW = items("""
does a refrigerator | keep food cold; does a microwave oven | heat food; does a bicycle | stay upright
does a plane | stay in the air; does a submarine | dive and rise; does a helicopter | turn in the air
does an electric motor | work; does a petrol engine | work; does a battery | store energy
does a solar panel | make electricity; does a wind turbine | work; does a dam | produce power
does a nuclear power plant | work; does a light bulb | produce light; does a touch screen | feel a finger
does a camera | take a picture; does a microphone | turn sound into a signal; does a loudspeaker | make sound
does a printer | put ink on paper; does a barcode scanner | read a code; does a thermometer | measure temperature
does a compass | find north; does a magnet | attract iron; does a lock | work; does a zip | hold together
does a toilet | flush; does a washing machine | clean clothes; does a vacuum cleaner | pick up dust
does a sewing machine | make a stitch; does a piano | produce a tone; does a guitar | produce different notes
does a clock with a pendulum | keep time; does GPS | find a position; does the internet | deliver a message
does Wi-Fi | carry data; does Bluetooth | connect two devices; does e-mail | reach another person
does a search engine | find pages; does a web browser | show a page; does encryption | protect a message
does a password manager | work; does a compiler | turn code into a program; does an interpreter | run a program
does a linked list | work; does a hash table | work; does binary search | find a value
does merge sort | order a list; does quicksort | work; does a stack | differ from a queue
does garbage collection | free memory; does a database transaction | stay consistent
does an operating system | share the processor; does virtual memory | work; does a neural network | learn
does a spam filter | recognise unwanted mail; does a recommendation system | choose films
does a 3D printer | build an object; does a vaccine | protect the body; does the heart | pump blood
do the lungs | take in oxygen; do the kidneys | clean the blood; does the liver | help digestion
does the eye | see colours; does the ear | hear sounds; does the nose | detect smells
does the brain | store memories; do muscles | move the bones; does the body | heal a cut
does the body | keep its temperature; does the immune system | recognise a virus; do antibiotics | work
do nerves | send signals; does digestion | work; do plants | make their food
do plants | drink water through their roots; does a seed | become a plant; do trees | grow new rings
do bees | make honey; do spiders | spin webs; do fish | breathe under water; do bats | find their way in the dark
do birds | find their way south; do chameleons | change colour; does a caterpillar | become a butterfly
do ants | find food; do coral reefs | form; do mountains | form; do caves | form; do fossils | form; do clouds | form
does rain | form; does snow | form; does a rainbow | appear; does a hurricane | form; does a tornado | form
does the greenhouse effect | work; does a glacier | move; does the sun | produce heat; do stars | die
does a black hole | form; do astronauts | live in space; does a rocket | reach space
does a telescope | make things look larger; does a lens | bend light; does sound | travel through air
does friction | slow things down; does a lever | make work easier; does a pulley | help to lift loads
do chemical bonds | hold atoms together; does salt | melt ice; does yeast | make dough rise
does cheese | get its holes; is paper | made; is glass | made; is steel | made; is chocolate | made
is paper money | protected against copies; does a bank | earn money; does a loan | work
does compound interest | work; does a credit card | work; does the stock market | work
does inflation | affect savings; does insurance | work; does a mortgage | work; does an auction | work
does a law | come into being; do elections | work; does a court | decide a case; does a jury | reach a verdict
do historians | know what happened long ago; do archaeologists | date old objects
did the ancient Egyptians | build the pyramids; did people | tell time before clocks
did sailors | navigate by the stars; did letters | travel before the railway; do children | learn to speak
do translators | handle jokes; does a dictionary | choose its words; do sign languages | work
""")
THINGS = items("""
photosynthesis; evaporation; condensation; erosion; gravity; inertia; momentum; friction; density; buoyancy; osmosis
the water cycle; the carbon cycle; the food chain; natural selection; evolution; an ecosystem; biodiversity
a habitat; pollination; hibernation; migration; symbiosis; a parasite; a virus; a bacterium; a cell; a gene; DNA
a protein; an enzyme; a hormone; a vitamin; metabolism; blood pressure; cholesterol; an allergy; a placebo; a calorie
a reflex; the immune system; the nervous system; the periodic table; an atom; a molecule; an isotope; an acid
a catalyst; a chemical reaction; combustion; a galaxy; a comet; an asteroid; a solar eclipse; a light-year
a black hole; the Big Bang; dark matter; an orbit; the ozone layer; plate tectonics; a tsunami; a monsoon
the jet stream; a fault line; groundwater; permafrost; a watershed; the equator; latitude; electricity
electric current; voltage; resistance; a transistor; a semiconductor; a laser; radar; sonar; fibre optics; a fuse
renewable energy; nuclear fusion; a heat pump; insulation; a carbon footprint; recycling; composting; a smart meter
a microchip; an algorithm; a variable in programming; a function in programming; recursion; a loop; a data structure
an array; a linked list; a stack; a queue; a binary tree; a hash function; a graph in computer science
big O notation; dynamic programming; a pointer; a class in object-oriented programming; inheritance; polymorphism
encapsulation; an interface; an exception; a unit test; debugging; refactoring; version control; a merge conflict
continuous integration; an API; a REST API; JSON; a regular expression; a database; SQL; a primary key; a foreign key
a database index; a join in SQL; a transaction; a cache; a thread; a deadlock; an operating system; a kernel
a file system; a process; a virtual machine; a container in computing; cloud computing; a server; a firewall; a VPN
DNS; an IP address; HTTPS; a cookie on a website; phishing; malware; two-factor authentication; a backup
machine learning; a neural network; overfitting; a language model; a decision tree; a training set; computer vision
a chatbot; open source software; a software licence; a pixel; a bit; a byte; a compiler; an interpreter
a spreadsheet; a barcode; RAM; compound interest; inflation; deflation; a recession; a budget; a mortgage; a bond
a share; a dividend; an index fund; a tax; supply and demand; a monopoly; opportunity cost; gross domestic product
an interest rate; a credit score; an invoice; a pension; insurance; a startup; marketing; a business plan
a balance sheet; cash flow; outsourcing; a trade deficit; an exchange rate; democracy; a monarchy; a republic
a constitution; a parliament; federalism; human rights; a treaty; a referendum; diplomacy; the Renaissance
the Enlightenment; the Industrial Revolution; feudalism; the Silk Road; the Magna Carta; the Bronze Age
the Roman Republic; the Black Death; the Cold War; the French Revolution; the space race; the Great Depression
colonialism; a metaphor; a simile; irony; an idiom; alliteration; a sonnet; a haiku; a novel; a fable; a myth
a thesis statement; a dialect; an adverb; a pronoun; the passive voice; a relative clause; a synonym; a suffix
grammar; punctuation; body language; rhetoric; a fraction; a percentage; a prime number; an average; the median
probability; a square root; pi; an equation; a logarithm; a derivative in calculus; an integral; a vector; a matrix
a right angle; the Pythagorean theorem; a proof; symmetry; an exponent; mindfulness; empathy; procrastination
confirmation bias; peer pressure; emotional intelligence; a habit; burnout; self-esteem; sourdough; fermentation
umami; a balanced diet; fibre in food; pasteurisation; caffeine; gluten; a marinade; a roux; olive oil; jazz
an orchestra; a symphony; rhythm; harmony; a chord; perspective in painting; impressionism; animation; stop motion
opera; chess; the offside rule in football; a marathon; a triathlon; yoga; first aid; jet lag; a passport; a visa
crop rotation; pruning
""")
FACTS = {
    "What is the capital of {}?": """
Australia; Canada; Japan; Brazil; Egypt; Kenya; Norway; Poland; Portugal; Turkey; Peru; Vietnam; Ireland; Greece
Morocco; Thailand; Austria; Hungary; Chile; New Zealand; Finland; Nepal; Cuba; Iceland; South Korea; Spain
""",
    "How many {}?": """
days are in a leap year; legs does a spider have; sides does a hexagon have; minutes are in a day
planets are in the solar system; strings does a violin have; teeth does an adult have; players are on a football team
metres are in a mile; weeks are in a year; bones does the human body have; bits are in a byte; continents are there
degrees are in a circle; keys does a piano have
""",
    "What is the largest {}?": """
ocean; planet in the solar system; desert; land animal; country by area; organ of the human body; island
lake in Africa
""",
    "Who {}?": """
painted the Mona Lisa; wrote Romeo and Juliet; discovered penicillin; invented the telephone
was the first person on the moon; developed the theory of relativity; wrote Don Quixote; was Marie Curie
was Cleopatra; was Isaac Newton; was Ada Lovelace; was Leonardo da Vinci; was Alan Turing; was Mozart; was Galileo
was Florence Nightingale; wrote The Odyssey; was Charles Darwin
""",
    "When {}?": """
did the Second World War end; did the first people land on the moon; was the Berlin Wall built; did the Titanic sink
was the first e-mail sent; did the French Revolution begin; do swallows fly south; is the longest day of the year
was the printing press invented
""",
    "Which language do people speak in {}?": """
Brazil; Austria; Egypt; Mexico; Iran; Argentina; the Netherlands; Switzerland; Belgium; India; Israel
""",
    "What is the chemical symbol of {}?": """
gold; silver; iron; oxygen; sodium; helium; copper; carbon; lead; potassium; tin; zinc
""",
}
LENGTHS = [
    "",
    "",
    "",
    "",
    " Answer in one sentence.",
    " Answer in two or three sentences.",
    " Keep it short.",
    " Give an example.",
    " Please go into some detail.",
    " Use simple words.",
    " Explain it to a child of ten.",
    " Use no technical terms.",
    " Write one paragraph.",
    " Answer step by step.",
    " Use a comparison from everyday life.",
    " I know nothing about it.",
    " Write about 100 words.",
]
ASK_CLAUSE = [
    "Explain {}.",
    "Please explain {}.",
    "Can you explain {}?",
    "Could you tell me {}?",
    "I have always wondered {}.",
    "My daughter asked me {}. How should I answer?",
    "I would like to understand {}.",
    "Tell me {}.",
    "Describe {}.",
]
ASK_THING = [
    "What is {}?",
    "What is {}?",
    "What is {} and why does it matter?",
    "Explain {}.",
    "Explain {} in simple terms.",
    "Can you explain {} to me?",
    "Give me a short introduction to {}.",
    "Tell me about {}.",
    "I keep hearing about {}. What should I know about it?",
    "Describe {} and give two examples.",
    "What are the most important facts about {}?",
    "Why is {} worth knowing about?",
    "How would you explain {} to a beginner?",
]
ASK_FACT = [
    "{}",
    "{}",
    "{} Answer in one sentence.",
    "{} Please add one interesting detail.",
    "Quick question: {}",
    "{} How do we know?",
]


CLAUSES = [("why", question) for question in WHY] + [("how", question) for question in HOW]
FACT_LIST = [question.format(item) for question, block in FACTS.items() for item in items(block)]


def draw(random: Random) -> tuple[str, str]:
    way = random.randrange(9)
    if way == 0:
        fact = random.choice(FACT_LIST)
        return fact, random.choice(ASK_FACT).format(fact)
    if way < 5:
        thing = random.choice(THINGS)
        return thing, random.choice(ASK_THING).format(thing) + random.choice(LENGTHS)
    word, question = random.choice(CLAUSES)
    if question.startswith("did ") or random.random() < 0.5:
        text = direct(word, question)
        if random.random() < 0.1:
            return question, text[:-1].lower()  # as people type in haste
    else:
        text = random.choice(ASK_CLAUSE).format(clause(word, question))
    return question, text + random.choice(LENGTHS)
