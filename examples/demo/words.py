"""Words that the examples are made of. A generator and its checker share them, and no rules."""

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
ALL_NAMES = [name for names in NAMES.values() for name in names]
PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her"},
    "he": {"he": "he", "him": "him", "his": "his"},
}

THINGS = (  # "s" makes the plural
    "apple balloon book button card coin cookie egg marble nut orange pear pen shell stamp sticker stone ticket toy "
    "tulip"
).split()
CONTAINERS = "bags baskets boxes jars packs trays".split()
COLORS = "black blue brown gold green grey orange pink red silver white yellow".split()

# Of the stories.
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
