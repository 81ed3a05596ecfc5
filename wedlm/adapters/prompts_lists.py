"""Prompts whose answer is a list: tips, steps, names, reasons for and against, things to pack, recipes."""

from random import Random

from wedlm.adapters.prompts_phrases import items

DOING = items("""
sleeping well; learning a language; saving money; cooking for one person; studying for an exam; working from home
staying focused; making new friends; speaking in public; writing clearly; reading more books; keeping houseplants alive
running a first 5 km race; training a puppy; travelling with small children; packing light; moving to a new city
preparing for a job interview; writing a good CV; taking better photos; growing tomatoes; using less plastic
saving electricity at home; eating more vegetables; remembering names; giving good feedback; leading a meeting
dealing with stress; getting up early; cleaning the kitchen quickly; organising a wardrobe; choosing a strong password
staying safe online; debugging a program; reviewing code; naming variables; writing unit tests; learning SQL
keeping a diary; cycling in traffic; driving in snow; camping in the rain; hiking alone; buying a used car
buying a used laptop; hosting a dinner; planning a wedding; baking bread; making good coffee; cooking rice
sharing a flat; caring for an old relative; helping a child with homework; setting goals; keeping a budget
selling things online; starting a small business; negotiating a salary; asking for help; saying no politely
writing a short story; learning to draw; practising the guitar; improving handwriting; playing chess better
""")
TASKS = items("""
change a flat bicycle tyre; boil an egg; paint a wall; plant a tree; brew tea; iron a shirt; tie a tie
wrap a present; set up a new phone; back up a computer; install Python; create a Git repository
resolve a merge conflict; reset a password; set up a tent; light a campfire; clean a window; unblock a sink
descale a kettle; defrost a freezer; sew on a button; hang a picture; assemble a shelf; bleed a radiator
change a light bulb; replace a car battery; check tyre pressure; write a letter of complaint; open a bank account
apply for a passport; prepare a presentation; write a research paper; plan a birthday party; plan a road trip
organise a book club; run a meeting; hire a new employee; launch a website; publish a Python package
write a web scraper; deploy a small web application; design a database; measure a room; fold a paper plane
make a paper boat; build a birdhouse; make a compost heap; repot a plant; prune a rose bush; bathe a dog
teach a child to ride a bicycle; perform first aid on a small cut; treat a nosebleed; make a to-do list
make a household budget; cancel a subscription; return a faulty product; sell a car; move house
choose a university course
""")
TO_NAME = items("""
a bakery; a coffee shop; a bookshop; a flower shop; a bicycle repair shop; a black cat; a golden retriever; a parrot
a rabbit; a travel blog; a cooking channel; a podcast about history; a podcast about science; a running club
a chess club; a rock band; a string quartet; a fishing boat; a hot-air balloon; a small hotel by the sea
a mountain hut; a language school; a dance school; a to-do app; a weather app; a budgeting app
a Python library for plotting; a command-line tool that renames files; a robot vacuum; a spaceship in a novel
a dragon in a children's book; a detective in a novel; a wizard; a fantasy kingdom; a village in a story
a brand of tea; a brand of soap; a board game about trade; a card game about animals; a school newspaper
a charity for forests; a start-up that delivers vegetables; a hair salon; a toy shop; a garden centre
a vegetarian restaurant; a food truck
""")
DEBATED = items("""
working from home; living in a big city; living in the countryside; owning a car; owning a dog; owning a cat
renting a flat; buying a house; studying abroad; a gap year; electric cars; public transport; nuclear power
wind energy; solar panels at home; school uniforms; homework; online courses; e-books; paper books; social media
smartphones for children; video games; a vegetarian diet; fast food; cooking at home; eating in restaurants
credit cards; paying in cash; online shopping; a four-day working week; night shifts; freelancing
working in a large company; working in a small company; team sports; running; swimming; going to a gym; camping
package holidays; travelling alone; travelling by train; flying; Python; JavaScript; static typing; pair programming
code reviews; microservices; open source software; cloud storage; SQL databases; working in an open-plan office
remote meetings; artificial intelligence in schools; zoos; tourism
""")
TRIPS = items("""
to the beach; to the mountains; to Iceland in winter; to Rome in spring; to London in autumn
to a business conference; by bicycle along a river; on a sailing boat; with a baby; with two small children
with a dog; by night train; to a music festival; to a ski resort; to a desert; to a rainforest; to my grandparents
to a youth hostel; on foot with a tent; to a wedding abroad
""")
DISHES = items("""
tomato soup; pumpkin soup; onion soup; lentil soup; vegetable curry; chicken curry; pancakes; waffles; an omelette
scrambled eggs; potato salad; a Greek salad; coleslaw; fried rice; risotto; spaghetti with tomato sauce; lasagne
macaroni and cheese; pizza dough; a simple white bread; banana bread; apple pie; chocolate cake; carrot cake
oatmeal cookies; brownies; rice pudding; lemonade; hot chocolate; a fruit smoothie; hummus; guacamole; pesto
a vinaigrette; mashed potatoes; roast chicken; fish cakes; chili without meat; stuffed peppers; a vegetable stew
porridge; granola; muffins with blueberries; a cheese sandwich; garlic bread; strawberry jam
""")
CATEGORIES = items("""
animals that live in the sea; animals that are active at night; birds that cannot fly; insects; trees with needles
spring flowers; green vegetables; tropical fruits; herbs; spices; kinds of cheese; kinds of pasta; kinds of bread
hot drinks; desserts; countries in Africa; countries in South America; countries in Europe; capitals in Asia
rivers in Europe; islands; deserts; mountains; musical instruments; kinds of dance; classical composers
famous painters; sports with a ball; winter sports; board games; jobs in a hospital; jobs that are done outdoors
jobs in computing; school subjects; things in a kitchen; things in a toolbox; things in a pencil case
pieces of furniture; pieces of clothing; means of transport; parts of a car; parts of a bicycle; parts of a computer
parts of the human body; parts of a plant; planets; chemical elements; units of length; geometric shapes; colours
feelings; programming languages; Python keywords; built-in functions of Python; methods of Python strings
SQL keywords; Linux commands; HTML tags; HTTP status codes; data structures; sorting algorithms; file extensions
words that mean happy; words that mean big; words that rhyme with day; adjectives for weather; verbs of movement
prepositions; conjunctions; irregular English verbs; materials that conduct electricity; renewable sources of energy
inventions of the 20th century; good habits; kinds of clouds
""")
OCCASIONS = items("""
a birthday present for a ten-year-old; a present for a colleague who leaves; a rainy Sunday with children
a first date; a team event; a school project about water; a science experiment at home; a healthy breakfast
a quick lunch at work; a dinner without meat; a party without alcohol; a theme for a birthday party; a small garden
a balcony; an empty wall; a short film; a novel set in the future; a short story about the sea; a blog about cooking
a podcast episode about sleep; a Python project for beginners; a weekend project with a Raspberry Pi
a mobile app for students; a class on programming; a fitness routine at home; a warm-up game in class
a wedding speech; a farewell card; a family holiday on a small budget; saving water at home; reusing glass jars
using old bread; using up ripe bananas; decorating a room with little money
""")
NUMBERS = "three four five six seven eight ten twelve fifteen".split()
TIPS = [
    "Give me {n} tips for {x}.",
    "List {n} tips for {x}.",
    "What are {n} good tips for {x}?",
    "I need help with {x}. What would you recommend? Give me {n} points.",
    "{n} short tips for {x}, please.",
    "What mistakes should I avoid when it comes to {x}? Name {n}.",
    "Make a checklist with {n} points for {x}.",
]
STEPS = [
    "List the steps to {x}.",
    "How do I {x}? Give me numbered steps.",
    "What do I need to {x}? List the tools and materials.",
    "Give me step-by-step instructions to {x}.",
    "Explain in {n} steps how to {x}.",
    "I want to {x}. What should I do first, and what comes after that?",
    "Write a checklist for someone who wants to {x}.",
]
NAMES = [
    "Suggest {n} names for {x}.",
    "Give me {n} names for {x}.",
    "I am looking for a name for {x}. Can you give me {n} ideas?",
    "Think of {n} funny names for {x}.",
    "List {n} short names for {x}, with a reason for each of them.",
]
FOR_AND_AGAINST = [
    "What are the pros and cons of {x}?",
    "List {n} advantages of {x}.",
    "List {n} disadvantages of {x}.",
    "Give me {n} arguments for and {n} arguments against {x}.",
    "Make a table of the advantages and disadvantages of {x}.",
    "What speaks for {x}, and what speaks against it?",
]
PACKING = [
    "Write a packing list for a trip {x} of {n} days.",
    "I go on a trip {x} for {n} days. What should I pack?",
    "What should I not forget to pack for {n} days {x}?",
    "Make a packing list, sorted by category, for {n} days {x}.",
]
RECIPES = [
    "Give me a recipe for {x}.",
    "Give me a simple recipe for {x} for {n} people.",
    "How do I make {x}? List the ingredients and the steps.",
    "Which ingredients do I need for {x}?",
    "I want to make {x} for {n} people. Write a shopping list.",
    "Write a recipe for {x} with at most {n} ingredients.",
]
EXAMPLES = [
    "Name {n} {x}.",
    "List {n} {x}.",
    "Can you name {n} {x}?",
    "Give me a list of {n} {x}, with one sentence about each of them.",
    "List {n} {x} in alphabetical order.",
    "Write a numbered list of {n} {x}.",
    "Name {n} {x}, separated by commas, and write nothing else.",
    "Make a table of {n} {x} with a short description of each.",
]
IDEAS = [
    "Give me {n} ideas for {x}.",
    "I need {n} ideas for {x}.",
    "Suggest {n} ideas for {x} and say which one you like best.",
    "Can you think of {n} unusual ideas for {x}?",
    "Brainstorm {n} ideas for {x}. One line each.",
]
TOPICS = [
    (TIPS, DOING),
    (STEPS, TASKS),
    (NAMES, TO_NAME),
    (FOR_AND_AGAINST, DEBATED),
    (PACKING, TRIPS),
    (RECIPES, DISHES),
    (EXAMPLES, CATEGORIES),
    (IDEAS, OCCASIONS),
]


def draw(random: Random) -> tuple[str, str]:
    requests, things = random.choice(TOPICS)
    thing = random.choice(things)
    text = random.choice(requests).format(n=random.choice(NUMBERS), x=thing)
    return thing, text[0].upper() + text[1:]
