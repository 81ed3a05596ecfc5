"""Forty questions of different kinds to a real model."""

LIST = "apples, pears, lemons, rice, olive oil"
CODE = "def total(prices):\n    result = 0\n    for price in prices:\n        result += price\n    return result"
TEXT = (
    "The library of the town opens at nine in the morning and closes at six in the evening. On Saturdays it closes at "
    "noon, and on Sundays it stays closed. Children may borrow ten books at a time, adults twenty."
)

QUESTIONS = [
    "Why is the sky blue?",
    "Explain in two sentences how a bicycle stays upright.",
    "What does a compiler do?",
    "Why do leaves turn red in autumn?",
    "Explain gravity to a child of six.",
    "What is the difference between weather and climate?",
    "How does a refrigerator keep food cold?",
    "Why do we have leap years?",
    "Write a Python function that reverses a string.",
    "Write a Python function that returns the largest number of a list without using max.",
    "Write a regular expression that matches a date such as 2024-05-17.",
    "Write an SQL query that counts the orders of each customer.",
    f"Rename the variable result to amount in this code:\n\n{CODE}",
    f"Add a docstring to this function:\n\n{CODE}",
    f"Explain this code line by line:\n\n{CODE}",
    f"Change this function so that it ignores negative prices:\n\n{CODE}",
    "Write a JSON object for a book with the keys title, author and year.",
    "Turn this into JSON: name: Ada, age: 36, city: London; name: Alan, age: 41, city: Wilmslow.",
    "Write a JSON array with the first five square numbers.",
    f"At what time does the library close on Saturdays? Answer from this text:\n\n{TEXT}",
    f"List every number that occurs in this text:\n\n{TEXT}",
    f"Summarize this text in one sentence:\n\n{TEXT}",
    f"Repeat this text word for word:\n\n{TEXT}",
    f"Sort these words alphabetically: {LIST}.",
    f"Write a bulleted list of these things: {LIST}.",
    "Count from 1 to 30.",
    "Count down from 20 to 1.",
    "Name the days of the week and the months of the year.",
    "What is 17 + 25? Show each step.",
    "A train goes 60 miles in one hour. How far does it go in three hours?",
    "What are the prime numbers below 30?",
    "Convert 25 degrees Celsius to Fahrenheit.",
    "Write a short poem about the sea.",
    "Tell a short story about a fox and a lantern.",
    "Write a polite e-mail that asks for a day off.",
    "Give me three tips for sleeping well.",
    "Translate into French: The house is small.",
    "Who wrote Hamlet?",
    "What is the capital of Australia?",
    "hello",
]
