"""Lists of the words that the examples are made of, shared by generators and checkers, which share no rules."""

# First names by the pronoun of the person.
NAMES = {
    "she": (
        "Ada Anna Bella Clara Dora Ella Emma Eva Flora Hanna Ida Julia Lena Lily Maria Mia Nora Olga Rosa "
        "Sara Tina Vera Zoe"
    ).split(),
    "he": (
        "Adam Ben Carl Daniel David Emil Felix Frank Henry Hugo Ivan Jack Jonas Leo Lucas Max Noah Oscar Paul "
        "Peter Robin Simon Tom"
    ).split(),
}
PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her"},
    "he": {"he": "he", "him": "him", "his": "his"},
}

# Singular and plural.
THINGS = {
    "apple": "apples",
    "balloon": "balloons",
    "book": "books",
    "button": "buttons",
    "card": "cards",
    "coin": "coins",
    "cookie": "cookies",
    "egg": "eggs",
    "marble": "marbles",
    "nut": "nuts",
    "orange": "oranges",
    "pear": "pears",
    "pen": "pens",
    "shell": "shells",
    "stamp": "stamps",
    "sticker": "stickers",
    "stone": "stones",
    "ticket": "tickets",
    "toy": "toys",
    "tulip": "tulips",
}
CONTAINERS = "bags baskets boxes jars packs trays".split()

COLORS = "black blue brown gold green grey orange pink red silver white yellow".split()
CITIES = "Athens Berlin Cairo Dublin Lima London Madrid Oslo Paris Prague Rome Tokyo".split()
JOBS = "baker cook doctor driver farmer nurse pilot singer teacher writer".split()
ANIMALS = "bird cat dog fish goat horse mouse rabbit sheep turtle".split()
SPORTS = "boxing chess golf hockey judo rowing rugby sailing soccer tennis".split()

# Words of the stories.
HEROES = (
    "baker carpenter doctor farmer fisher gardener miller painter pilot sailor shepherd singer tailor teacher"
).split()
OBJECTS = (
    "bell box clock coat compass crown cup drum flute hat key kite lamp letter map mirror necklace ring spoon "
    "sword vase violin"
).split()
PLACES = (
    "beach bridge castle cave farm forest garden harbor hill lake library market meadow mill mountain river "
    "school station tower village"
).split()
