"""Short texts that prompts ask about, made from sentences with varying names, numbers and dates."""

from random import Random
from typing import NamedTuple

from wedlm.adapters.prompts_phrases import items
from wedlm.adapters.prompts_records import CITIES, FIRST_NAMES, LAST_NAMES

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday".split()
MONTHS = "January February March April May June July August September October November December".split()


class Text(NamedTuple):
    """Sentences, and for each of them a question that it answers."""

    sentences: list[str]
    questions: list[str]


# Each subject: sentences in their order, each with a question. Names in braces stand for values.
SUBJECTS = [
    """
    The {town} library opens at {early} in the morning and closes at {late} in the evening.|When does the library open?
    On {day} it closes two hours earlier.|On which day does the library close earlier?
    Adults may borrow {n} books at a time, children only {few}.|How many books may an adult borrow?
    A book can be kept for {few} weeks.|For how long can a book be kept?
    Whoever returns a book late pays {few} euros for each week.|What does a late book cost?
    The building was opened in {year} and has {m} reading rooms.|When was the building opened?
    Its director, {name} {last}, plans a room for music.|What does the director plan?
    There is a small cafe on the ground floor, next to the newspapers.|Where is the cafe?
    """,
    """
    {name} {last} was born in {town} in {year}.|Where was {name} born?
    The father was a {job}, and the mother taught music at a school.|What was the work of {name}'s father?
    Violin lessons began at the age of {few}.|At what age did the violin lessons begin?
    During the years of study in {city}, {name} met the painter {other}.|Whom did {name} meet in {city}?
    Together they opened a small theatre with {n} seats.|How many seats did the theatre have?
    The first play was shown on {date} and was a great success.|When was the first play shown?
    Later followed {m} more plays and two novels.|How many more plays followed?
    In old age, {last} lived quietly near a lake and kept bees.|What did {last} do in old age?
    """,
    """
    The team met on {date} to discuss the new website.|When did the team meet?
    {name} reported that {n} customers had complained about the search.|What had customers complained about?
    {other} suggested a simpler menu with only {few} entries.|Who suggested a simpler menu?
    The budget of {big} euros was not changed.|How large is the budget?
    {last} will test the pages on old phones until {day}.|Who will test the pages on old phones?
    The colours stay as they are, since most people like them.|Why do the colours stay as they are?
    The next meeting takes place in {city} at {early}.|Where does the next meeting take place?
    """,
    """
    On {day} it will be cloudy in {city}, with some rain in the afternoon.|What is the weather in {city} on {day}?
    The temperature rises to {m} degrees at most.|How high does the temperature rise?
    At night it falls to about {few} degrees.|How cold will it be at night?
    Along the coast there is a strong wind from the north.|Where does the wind come from?
    Drivers should expect fog in the valleys before {early}.|What should drivers expect?
    From {date} on, the sun will come out more often.|When will the sun come out more often?
    In the mountains, {m} centimetres of snow are possible.|How much snow is possible in the mountains?
    """,
    """
    The train to {city} leaves {town} at {early} from platform {few}.|From which platform does the train leave?
    It stops {m} times and reaches {city} at {late}.|When does the train reach {city}?
    A ticket costs {n} euros, and children under twelve travel free.|What does a ticket cost?
    Bicycles need a ticket of their own.|What needs a ticket of its own?
    There is a restaurant in the middle of the train, but it is closed on {day}.|On which day is the restaurant closed?
    Because of repairs the journey takes {few} minutes longer until {date}.|Why does the journey take longer?
    Passengers who are more than an hour late get half of the price back.|Who gets half of the price back?
    """,
    """
    {an_animal} was found in the garden of {name} {last} in {town}.|Where was the {animal} found?
    It was hungry and had hurt its left leg.|What had the {animal} hurt?
    The neighbours called the vet, who came after {n} minutes.|How long did it take until the vet came?
    She gave the animal water and some food.|What did the vet give the animal?
    Nobody knows where it came from, and no zoo is nearer than {m} kilometres.|How near is a zoo?
    The children of the street named it {other}.|What did the children name the {animal}?
    On {date} it will be brought to a park in {city}.|Where will the {animal} be brought?
    """,
    """
    {last} and Sons have made furniture in {town} since {year}.|What do {last} and Sons make?
    The company has {n} workers and sells its tables in {m} countries.|In how many countries are its tables sold?
    Last year it earned {big} euros, more than ever before.|How much did the company earn last year?
    Its best-selling product is a small desk made of oak.|What is the best-selling product?
    A desk takes {few} days to build and is checked by hand.|How long does it take to build a desk?
    In {month} the company will open a second shop in {city}.|When will the company open a second shop?
    {name} {last} wants to use only wood from the region.|What does {name} {last} want to use?
    """,
    """
    The match between {town} and {city} ended {few} to {goals}.|How did the match end?
    {name} scored the first goal after {n} minutes.|Who scored the first goal?
    In the second half, {other} was hurt and had to leave the field.|Why did {other} have to leave the field?
    The {big} people in the stadium sang until the end.|How many people were in the stadium?
    The coach, {last}, praised the young players.|Whom did the coach praise?
    The next match is on {date}.|When is the next match?
    It was the {m}th match of the season without a defeat for {town}.|Which team has had no defeat?
    """,
    """
    The old mill near {town} was built in {year} by a family of bakers.|Who built the old mill?
    For a hundred years it made flour for {m} villages.|For how many villages did the mill make flour?
    Then a fire destroyed the roof, and the mill stood empty.|What did the fire destroy?
    In {month}, {name} {last} bought it for {big} euros.|What did {name} {last} pay for the mill?
    {n} volunteers helped to repair the wheel.|How many volunteers helped?
    Today visitors can watch the mill at work every {day}.|On which day can visitors watch the mill?
    The bread that is baked there is sold at the market in {city}.|Where is the bread sold?
    """,
    """
    Put {few} cups of flour and a little salt into a large bowl.|How much flour is needed?
    Add {m} spoons of oil and some warm water.|How much oil is added?
    Knead the dough for {n} minutes, until it is smooth.|How long is the dough kneaded?
    Cover the bowl and let the dough rest in a warm place.|Where does the dough rest?
    Roll it out, and put tomatoes, cheese and herbs on it.|What is put on the dough?
    Bake it in a hot oven until the edge is brown.|When is it done?
    This recipe comes from {name}, a cook in {city}.|Where does the recipe come from?
    It serves {few} people.|How many people does it serve?
    """,
    """
    Dear guests, welcome to the Hotel {last} in {city}.|In which city is the hotel?
    Breakfast is served from {early} on, in the room with the blue door.|Where is breakfast served?
    The pool is open until {late} and closed on {day}.|Until when is the pool open?
    Towels can be borrowed for {few} euros at the desk.|What does it cost to borrow a towel?
    Please leave your room before eleven on the day of departure.|When must guests leave their rooms?
    The bus into the centre stops in front of the house every {n} minutes.|How often does the bus come?
    If you need anything, ask for {name}.|Whom should guests ask for?
    The password of the Wi-Fi is {animal}{m}.|What is the password of the Wi-Fi?
    """,
    """
    The {animal} lives in forests and near rivers.|Where does the {animal} live?
    It is active at night and sleeps during the day.|When does the {animal} sleep?
    A grown animal weighs up to {n} kilograms.|How much does a grown animal weigh?
    It eats roots, fruit and small insects.|What does the {animal} eat?
    In spring, the female has up to {few} young.|How many young does the female have?
    They stay with their mother for {m} months.|How long do the young stay with their mother?
    A study from {city} counted only {big} of them in the wild.|How many of them live in the wild?
    Since {year} it has been forbidden to hunt them.|Since when has it been forbidden to hunt them?
    """,
    """
    {name} and {other} wanted to walk from {town} to the lake.|Where did {name} and {other} want to go?
    They started at {early} with bread, cheese and {few} bottles of water.|What did they take with them?
    After {m} kilometres they came to a bridge that was closed.|What was closed?
    A farmer showed them another way through the woods.|Who showed them another way?
    It began to rain, and {name} had forgotten the umbrella.|What had {name} forgotten?
    They reached the lake {n} minutes later than planned.|How much later than planned did they reach the lake?
    There they met {last}, their old teacher, who drove them home.|Who drove them home?
    """,
    """
    The city of {city} wants to plant {big} trees until {next_year}.|How many trees does the city want to plant?
    Most of them will stand along the main streets.|Where will most of the trees stand?
    Each tree costs about {n} euros, and the state pays half of it.|How much of the cost does the state pay?
    {name} {last}, who is responsible for the parks, expects cooler summers.|What does {name} {last} expect?
    Some shop owners fear that there will be fewer places to park.|What do some shop owners fear?
    A first street was planted on {date}, with {m} young limes.|Which trees were planted in the first street?
    Citizens can water a tree themselves and get a small sign with their name.|What do citizens get who water a tree?
    """,
    """
    The museum of {town} shows old clocks from {month} on.|From when on does the museum show old clocks?
    The oldest of them was made in {year} in {city}.|Where was the oldest clock made?
    It is {m} metres high and still works.|How high is the oldest clock?
    {name} {last} collected {n} of the clocks on long journeys.|How many clocks did {name} {last} collect?
    Visitors may wind up a small clock themselves.|What may visitors do themselves?
    Tickets cost {few} euros, and every {day} the museum is free.|On which day is the museum free?
    """,
    """
    Hi {name}, I am writing from a small room in {city}.|From where is this letter written?
    The journey took {m} hours, and I slept most of the time.|How long did the journey take?
    My new job at the bakery starts on {date}.|When does the new job start?
    I have to get up at four, but the people are kind.|When does the writer have to get up?
    Yesterday I saw a {job} who looked just like your uncle.|Whom did the writer see yesterday?
    Please send me the blue coat, because the nights are cold.|Why should {name} send the blue coat?
    I will call you on {day}. Yours, {other}|Who wrote the letter?
    """,
    """
    The phone Nova {few} has a bright screen and weighs {n} grams less than the last one.|Which phone is described?
    Its battery lasts {m} hours and is full again after half an hour.|How long does the battery last?
    The camera takes good pictures even at night.|What does the camera do well?
    In our test it fell from a table {few} times without any damage.|How often did the phone fall from a table?
    We did not like the loud tone of the keys, which cannot be switched off.|What did the testers not like?
    It costs {big} crowns and is sold from {month} on.|What does the phone cost?
    """,
    """
    Rooms in the house at {n} Mill Lane are let from {month} on.|Where is the house?
    Each of the {few} rooms has a desk, a bed and a large window.|What does each room have?
    The kitchen and the garden are shared by all.|What is shared by all?
    The rent is {big} crowns a month, and heating is included.|What is the rent?
    Smoking is not allowed, but small pets are no problem.|What is not allowed?
    Write to {name} {last} if you want to see a room.|To whom should one write to see a room?
    The railway station is {m} minutes away on foot.|How far away is the railway station?
    """,
    """
    Last night at {late}, a storm hit {town} and the villages around it.|When did the storm hit {town}?
    {n} trees fell onto the road to {city}.|How many trees fell?
    About {big} houses had no electricity until the morning.|How many houses had no electricity?
    Nobody was hurt, because the fire brigade had warned everyone in time.|Why was nobody hurt?
    {name} {last}, who leads the fire brigade, thanked the {m} helpers.|Whom did {name} {last} thank?
    The school stays closed until {day}.|Until when does the school stay closed?
    """,
    """
    The course "Python for beginners" starts on {date} in {city}.|When does the course start?
    It takes place every {day} and ends after {m} weeks.|How many weeks does the course take?
    The teacher, {name} {last}, has worked as a programmer for {m} years.|Who is the teacher?
    No more than {few} people can take part.|How many people can take part?
    Bring a laptop and something to drink.|What should one bring?
    The course costs {n} euros, and students pay half.|How much do students pay?
    In the last lesson, everyone shows a small game.|What happens in the last lesson?
    """,
]
JOBS = items("carpenter; fisherman; doctor; farmer; tailor; postman; miller")
ANIMALS = items("badger; otter; hedgehog; beaver; raccoon; fox; porcupine; squirrel; heron; lynx")
TOWNS = items(
    "Ashford; Millbrook; Westhaven; Oakley; Redfield; Stonebridge; Kingsbury; Fairview; Northcote; Lakewood; Elmhurst"
)


def values_of(random: Random) -> dict[str, object]:
    name, other = random.sample(FIRST_NAMES, 2)
    animal = random.choice(ANIMALS)
    day, month, year = random.randint(1, 28), random.choice(MONTHS), random.randint(1850, 1995)
    return {
        "name": name,
        "other": other,
        "last": random.choice(LAST_NAMES),
        "town": random.choice(TOWNS),
        "city": random.choice(CITIES),
        "job": random.choice(JOBS),
        "animal": animal,
        "an_animal": f"{'an' if animal[0] in 'aeiou' else 'a'} {animal}",
        "day": random.choice(DAYS),
        "month": month,
        "year": year,
        "next_year": random.randint(2027, 2040),
        "date": random.choice([f"{day} {month}", f"{month} {day}", f"{day} {month} {random.randint(2021, 2026)}"]),
        "early": random.choice(["8:00", "8:30", "9:00", "9:15", "7:45", "10:00"]),
        "late": random.choice(["17:00", "18:30", "19:00", "20:00", "21:15"]),
        "goals": random.randint(0, 2),
        "few": random.randint(3, 9),
        "m": random.randint(10, 19),
        "n": random.randint(20, 90),
        "big": random.randint(12, 95) * 100,
    }


def make_text(random: Random) -> Text:
    """Three to six sentences on one subject; the first sentence is always there."""
    lines = [line.strip().split("|") for line in random.choice(SUBJECTS).strip().splitlines()]
    chosen = [0, *sorted(random.sample(range(1, len(lines)), random.randint(2, 5)))]
    values = values_of(random)
    sentences, questions = zip(*([part.format(**values) for part in lines[place]] for place in chosen), strict=True)
    return Text([text[0].upper() + text[1:] for text in sentences], list(questions))
