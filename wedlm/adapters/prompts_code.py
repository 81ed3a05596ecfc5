"""Prompts that ask for new code: Python, SQL, shell, JavaScript, regular expressions."""

from random import Random

from wedlm.adapters.prompts_phrases import items

# "Write a Python function that ..."
FUNCTIONS = items("""
reverses a string; checks whether a word is a palindrome; counts the vowels in a string
counts how often each word occurs in a text; returns the longest word of a sentence
returns the second largest number of a list; removes duplicates from a list and keeps the order
flattens a nested list; merges two sorted lists; rotates a list by k places; splits a list into chunks of size n
transposes a matrix; multiplies two matrices; computes the factorial of a number
returns the first n Fibonacci numbers; checks whether a number is prime; returns all primes below n
computes the greatest common divisor of two numbers; converts a decimal number to binary
converts a Roman numeral to a number; converts Celsius to Fahrenheit; computes the mean and the median of a list
finds the most common element of a list; checks whether two strings are anagrams; groups words by their first letter
groups anagrams in a list of words; capitalises the first letter of each word; replaces tabs with spaces
removes punctuation from a text; validates an e-mail address; validates an ISBN; checks whether brackets are balanced
evaluates a formula in postfix notation; encrypts a text with a Caesar cipher; computes a checksum of a list of bytes
generates a random password of a given length; shuffles a list without using random.shuffle; draws a random sample
simulates throwing two dice; finds the largest sum of a sublist; finds two numbers in a list that add up to a target
finds the missing number in a list from 1 to n; sorts a list with bubble sort; sorts a list with insertion sort
sorts a list with merge sort; sorts a list with quicksort; searches a sorted list by halves
inserts a value into a sorted list; computes the edit distance of two words
finds the longest common prefix of a list of words; finds the longest common subsequence of two strings
counts the ways to climb n stairs; solves the knapsack problem; finds the shortest path in a grid
walks through a graph in breadth-first order; detects a cycle in a directed graph; sorts tasks by their dependencies
computes the depth of a nested list; reads a text file and returns its longest line
reads a CSV file and returns a list of dictionaries; writes a list of dictionaries to a CSV file
counts the lines of a file; loads a JSON file and returns a default value if it is missing
merges two dictionaries and adds the values of common keys; inverts a dictionary; sorts a dictionary by its values
finds all files of a folder that end in .txt; renames all files in a folder; computes the size of a folder
finds duplicate files by their hash; downloads a page and returns its title; parses a date such as 2024-05-17
returns the number of days between two dates; returns the age of a person from the date of birth
formats a number of seconds as hh:mm:ss; measures how long another function takes
retries another function three times when it fails; caches the results of another function
formats a number with thousands separators; prints a multiplication table; prints a triangle of stars
draws a chessboard in text; converts snake_case to camelCase; converts a title to a URL slug
wraps a text at 40 characters; counts the syllables of a word roughly; rounds a price up to the next 0.05
computes the monthly rate of a loan; computes compound interest; splits a bill among friends
finds the intersection of two lists without sets; checks whether a list is sorted
returns the running total of a list; computes a moving average; normalises a list of numbers to the range from 0 to 1
computes the distance of two points; checks whether a point lies in a rectangle; computes the area of a polygon
checks a sudoku row; plays one round of rock, paper, scissors; returns the n-th row of Pascal's triangle
computes the digit sum of a number; checks whether a year is a leap year
compresses a string by counting repeated characters; expands a compressed string such as a3b2
translates a word to pig Latin
""")
CLASSES = items("""
a stack; a queue with two stacks; a linked list with methods to add and remove; a binary search tree
a priority queue; a bank account; a shopping cart; a library with books that can be borrowed; a to-do list
a deck of cards; a counter that never goes below zero; a point with addition and subtraction; a fraction; a matrix
a temperature that converts between Celsius and Fahrenheit; a timer; a cache that forgets the oldest entry
a graph with breadth-first search; a parking garage; an address book; a student with grades
an employee and a manager who inherits from it; a shape with an area, and circle and rectangle as subclasses
a traffic light; a dice; a text adventure with rooms; a vending machine; a tic-tac-toe board; a range of dates
a simple event system; a singly linked queue
""")
SCRIPTS = items("""
prints the numbers from 1 to 100 and replaces multiples of three by Fizz; asks for a name and greets the user
guesses a number; converts all PNG images of a folder to JPEG; prints the ten largest files of a folder
renames photos by their date; plots a sine curve with matplotlib; plots the columns of a CSV file
reads temperatures and prints the warmest day; sends a GET request and prints the status code
checks every minute whether a website answers; backs up a folder into a zip file
counts the most common words of a text file; removes empty lines from a file; merges all CSV files of a folder
parses command-line arguments with argparse; logs its progress to a file; prints a progress bar
shows the system time every second; runs a small Flask server with one route; runs a FastAPI server with one endpoint
stores contacts in an SQLite database; simulates a random walk; simulates the game of life
prints a calendar of a month; converts Markdown headings to HTML; tests a function with pytest
uses a thread pool to download several pages; uses asyncio to wait for two tasks; reads a YAML file
groups a pandas DataFrame by a column and sums another column; fills missing values of a pandas DataFrame
joins two pandas DataFrames; trains a linear regression with scikit-learn
creates a NumPy array of random numbers and normalises its rows
""")
SHELL = items("""
finds all files larger than 100 MB; counts the lines of all Python files in a folder; lists the ten largest folders
renames all .jpeg files to .jpg; replaces a word in all text files of a folder
shows the five processes that use most memory; deletes log files older than 30 days
copies a folder to another machine; compresses a folder into a tar.gz archive; unpacks a zip file into a new folder
shows the last 20 lines of a log and follows it; counts how often each line occurs in a file
shows the disk space that is left; finds files that contain the word TODO; creates ten numbered folders
makes a script executable; prints the second column of a CSV file; sorts a file by its third column
downloads a file and checks its checksum; shows which process listens on port 8080; stops a process by its number
runs a command every five minutes; prints the current date as YYYY-MM-DD
loops over all images of a folder and prints their names; checks whether a file exists and creates it if not
reads a file line by line; undoes the last Git commit but keeps the changes; creates a Git branch and switches to it
shows the changes of the last commit; lists all Git branches by date; removes untracked files from a Git repository
makes a virtual environment and installs requests in it; backs up a folder with the date in the file name
asks for confirmation before it deletes a folder; prints a countdown from 10
""")
JAVASCRIPT = items("""
reverses an array without changing it; removes duplicates from an array; sums an array of numbers
finds the largest value of an array; groups an array of objects by a property; sorts an array of objects by name
filters products cheaper than a given price; debounces another function; waits for a given number of milliseconds
fetches JSON from a URL and handles errors; copies an object deeply; counts the words of a string
turns a string into title case; checks whether a string is a palindrome; formats a date as DD.MM.YYYY
validates a form with a name and an e-mail address; toggles a class on a button; adds an item to a list in the page
shows a countdown in the page; stores a value in local storage; reads the query parameters of the address
shuffles an array; generates a random colour; creates an array of the numbers from 1 to n; flattens a nested array
merges two objects; chunks an array; converts an array of pairs to an object; computes the average of an array
counts how often each value occurs; rounds to two decimal places
""")
PAGES = items("""
an HTML page with a heading, a paragraph and a list; an HTML form with name, e-mail and a button
an HTML table of three products; a CSS rule that centres a box on the page
CSS for a button that changes its colour on hover; a navigation bar in HTML and CSS; a CSS grid with three columns
a card with an image and a title in HTML and CSS; a Dockerfile for a small Python program
a Makefile with the targets test and clean; a .gitignore file for a Python project
a GitHub workflow that runs pytest; a YAML file with the settings of a web server
a requirements.txt for a Flask project; a pyproject.toml for a small package; a JSON schema for a user
an XML file with two books; a LaTeX table with three columns; a Markdown README for a command-line tool
an SVG image of a red circle; a crontab line that runs a script every night
a C program that prints the numbers from 1 to 10; a Java class for a person with name and age
a Go function that adds two numbers; a Rust function that reverses a string; a C++ function that computes a factorial
a Ruby method that greets a person; a TypeScript interface for a product; a Kotlin data class for a book
""")
PATTERNS = items("""
a date such as 2024-05-17; a time such as 14:35; a price such as 12.50; a phone number with a country code
an e-mail address; a URL that begins with https; a hex colour such as #ff8800; an IPv4 address
a word in capital letters; a number with an optional sign; a line that begins with a hash sign; a blank line
a word that ends in ing; two equal words in a row; a quoted string; a postal code of five digits
a German number plate; a file name that ends in .csv; an HTML tag; a Python variable name; a Roman numeral
a password with at least eight characters and one digit; a time span such as 3h 20m; a version number such as 1.4.2
a hashtag; a sentence that ends in a question mark; a MAC address; a credit card number in groups of four
a comment in Python; a decimal number
""")
# A table, its columns: a name, a group, a number, a date.
TABLES = [
    ("customers", "name", "city", "age", "created_at"),
    ("orders", "customer_id", "status", "total", "ordered_at"),
    ("products", "title", "category", "price", "added_on"),
    ("employees", "last_name", "department", "salary", "hired_on"),
    ("books", "title", "author", "pages", "published_on"),
    ("students", "name", "course", "grade", "enrolled_on"),
    ("films", "title", "genre", "rating", "released_on"),
    ("flights", "flight_number", "airline", "delay", "departs_at"),
    ("invoices", "number", "client", "amount", "due_on"),
    ("songs", "title", "artist", "duration", "released_on"),
    ("patients", "name", "ward", "weight", "admitted_on"),
    ("rooms", "label", "building", "seats", "renovated_on"),
]
QUERIES = [
    "counts the rows of the table {table} for each {group}",
    "returns the {number} of every row of {table}, the largest first",
    "returns the average {number} of the table {table} for each {group}",
    "returns the {k} rows of {table} with the largest {number}",
    "returns the {name} of all {table} whose {number} is larger than {n}",
    "returns all {table} whose {date} is in the year {year}",
    "lists each {group} of {table} once, in alphabetical order",
    "returns the groups of {table} by {group} that have more than {k} rows",
    "adds a row to the table {table}",
    "raises the {number} of all {table} by {k} percent",
    "deletes all {table} whose {date} is before {year}",
    "creates the table {table} with the columns {name}, {group}, {number} and {date}",
    "returns the {table} whose {number} is above the average",
    "returns the newest row of {table} for each {group}",
    "adds an index on the column {group} of {table}",
    "finds values of {name} that occur more than once in {table}",
    "returns {name} and {number} of all {table} whose {group} is empty",
    "sums {number} in {table} by year of {date}",
]
ASK = [
    "Write {} that {}.",
    "Write {} that {}.",
    "Please write {} that {}.",
    "Can you write {} that {}?",
    "I need {} that {}.",
    "Give me {} that {}.",
    "Show me {} that {}.",
]
ENDINGS = [
    "",
    "",
    "",
    "",
    " Show how to use it.",
    " Explain it briefly.",
    " Only the code, please.",
    " Add comments.",
    " Keep it as short as possible.",
    " Explain each line.",
]
PYTHON_ENDINGS = [
    *ENDINGS,
    " Add a docstring.",
    " Use type hints.",
    " Add two tests.",
    " Use only the standard library.",
    " Raise a ValueError for bad input.",
    " Do not use any imports.",
    " What is its running time?",
]
ASK_OBJECT = [
    "Write {}.",
    "Please write {}.",
    "Show me {}.",
    "Give me an example of {}.",
    "I need {}. Can you write it?",
    "How do I write {}?",
]
ASK_PATTERN = [
    "Write a regular expression that matches {}.",
    "Which regular expression matches {}?",
    "I need a regex for {}.",
    "Write a Python function that finds {} in a text with a regular expression.",
    "Write a regex for {} and explain its parts.",
    "How do I check with a regular expression whether a string is {}?",
]


def query(random: Random) -> tuple[str, str]:
    table, name, group, number, date = random.choice(TABLES)
    values = {"n": random.randint(2, 90) * 10, "k": random.randint(2, 10), "year": random.randint(2005, 2025)}
    task = random.choice(QUERIES).format(table=table, name=name, group=group, number=number, date=date, **values)
    text = random.choice(ASK).format(random.choice(["an SQL query", "a SQL statement"]), task)
    if random.random() < 0.3:
        text = f"The table {table} has the columns id, {name}, {group}, {number} and {date}. {text}"
    return task, text + random.choice(ENDINGS)


def written(random: Random, languages: list[str], tasks: list[str], endings: list[str]) -> tuple[str, str]:
    task = random.choice(tasks)
    return task, random.choice(ASK).format(random.choice(languages), task) + random.choice(endings)


def named(random: Random, requests: list[str], things: list[str], endings: list[str]) -> tuple[str, str]:
    thing = random.choice(things)
    return thing, random.choice(requests).format(thing) + random.choice(endings)


def draw(random: Random) -> tuple[str, str]:
    way = random.randrange(16)
    if way < 6:
        return written(
            random, ["a Python function", "a Python function", "a function in Python"], FUNCTIONS, PYTHON_ENDINGS
        )
    if way < 8:
        return written(random, ["a Python script", "a short Python program"], SCRIPTS, ENDINGS)
    if way == 8:
        thing, text = named(
            random,
            ["Write a Python class for {}.", "Model {} as a Python class.", "I need a class for {} in Python."],
            CLASSES,
            PYTHON_ENDINGS,
        )
        return thing, text
    if way < 11:
        return query(random)
    if way == 11:
        return written(random, ["a shell command", "a bash script", "a Linux command"], SHELL, ENDINGS)
    if way == 12:
        return written(
            random,
            ["a JavaScript function", "JavaScript code", "an arrow function in JavaScript"],
            JAVASCRIPT,
            ENDINGS,
        )
    if way == 13:
        return written(
            random,
            ["a JavaScript function", "a Go function", "a Java method", "a C function", "a TypeScript function"],
            FUNCTIONS,
            ENDINGS,
        )
    if way == 14:
        return named(random, ASK_OBJECT, PAGES, [""])
    return named(random, ASK_PATTERN, PATTERNS, ["", "", " Give an example that matches and one that does not."])
