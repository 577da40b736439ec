"""The generated curriculum: every task is a function from a random source to one short chat.

A task returns a list of ``(role, text)`` turns that ends with the assistant's answer. The
user's turns come in many phrasings and, on half of the samples, with surface noise (letter
case, missing punctuation, politeness, contractions, odd spacing): a model that saw only
tidy prompts answers tidy prompts only.
"""

import hashlib
import json
import random
import re
from pathlib import Path

from facts import (ANIMALS, CAPITALS, COLORS, DAYS, FOODS, LEGS, MONTHS, NAMES, OBJECTS, OPPOSITE, PLACES,
                   PLURALS, RHYMES, SOUNDS, SYMBOLS, UNIT_NAMES, UNITS, UNKNOWN_COUNTRIES, YOUNG)

WORDS = Path(__file__).with_name("words.txt").read_text().split()
UNKNOWN = "I do not know that yet. Ask me for a sum, a list or a story."
GREETING = "Hello! How can I help you?"
WHO = "I am a tiny diffusion language model. I write several words at once."
CAN = "I can add, subtract, multiply, count, sort, spell, reverse, read, remember and tell stories."
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Words that have a token of their own: they must be spelled from memory, so they are drawn more often.
COMMON_WORDS = ["cat"]

# Share of very long counts; the evaluation prompts were drawn without them.
LONG = 0.015


# ---------------------------------------------------------------- drawing

def number(r, digits=None):
    """A number with a uniformly drawn count of digits, so that small and large ones are equally known."""
    d = digits or r.choice((1, 2, 2, 3, 3))
    return r.randrange(0 if d == 1 else 10 ** (d - 1), 10 ** d)


def word(r, lo=3, hi=9):
    """A dictionary word, a frequent word, or sometimes letters that are no word at all."""
    x = r.random()
    if x < 0.12:
        return "".join(r.choice(LETTERS) for _ in range(r.randint(lo, min(hi, 8))))
    pool = COMMON_WORDS if x < 0.45 else WORDS
    for _ in range(50):
        w = r.choice(pool)
        if lo <= len(w) <= hi:
            return w
    return "house"


def name(r):
    """Mostly a listed name; sometimes a made-up one, which can only be copied letter by letter."""
    if r.random() < 0.9:
        return r.choice(NAMES)
    return r.choice(WORDS)[:6].capitalize()


def distinct(r, draw, n):
    out = []
    while len(out) < n:
        x = draw(r)
        if x not in out:
            out.append(x)
    return out


# ---------------------------------------------------------------- surface noise

def noisy(r, text, case=True, polite=True, spacing=True):
    """One to three ways in which people actually type."""
    kinds = ["punct", "punct"]
    if case:
        kinds += ["lower", "lower", "first"]
    if polite:
        kinds += ["please", "please", "can", "hey"]
    kinds += ["contract", "contract"]
    if spacing:
        kinds += ["double", "nospace", "nospace", "trail"]
    for kind in set(r.choice(kinds) for _ in range(r.randint(1, 3))):
        if kind == "punct":
            text = re.sub(r"[.?!]+$", r.choice(["", "", "", "!", "?", "??", "."]), text)
        elif kind == "lower":
            text = text.lower()
        elif kind == "first":
            text = text[0].lower() + text[1:]
        elif kind == "please":
            p = r.choice(["please", "pls", "plz", "please", "thanks"])
            if p != "thanks" and r.random() < 0.4:
                text = p.capitalize() + " " + text[0].lower() + text[1:]
            else:
                text = re.sub(r"[.?!]?$", lambda m: r.choice([" ", ", "]) + p + m.group(0), text, count=1)
        elif kind == "can":
            if not text.lower().startswith(("what", "how", "who", "where", "which", "is", "are", "when", "why")):
                lead = r.choice(["Can you ", "Could you ", "can u ", "Would you ", "I want you to ", "Now ", "Could you please "])
            else:
                lead = r.choice(["Tell me, ", "Can you tell me ", "Do you know ", "Quick question: ", "So ", "I wonder, "])
            text = lead + text[0].lower() + text[1:]
        elif kind == "hey":
            text = r.choice(["Hey, ", "Hi, ", "Hello, ", "hey ", "Ok, ", "ok ", "Hi! ", "Hello! "]) + text
        elif kind == "contract":
            for a, b in (("hat is", "hat's"), ("ho is", "ho's"), ("here is", "here's")):
                text = text.replace(a, r.choice([b, b, b.replace("'", "")]))
        elif kind == "double":
            text = text.replace(" ", "  ", 1) if r.random() < 0.5 else " " + text
        elif kind == "nospace":
            text = re.sub(r" ?([-+*/x=]|,) (?=\d)", r"\1", text)
        elif kind == "trail":
            text += " "
    return text


def ask(r, forms, noise=0.5, case=True, polite=True, spacing=True, **values):
    """Fill one of the phrasings and, on half of the samples, roughen it."""
    text = r.choice(forms).format(**values)
    if r.random() < noise:
        text = noisy(r, text, case, polite, spacing)
    return text


def pair(user, answer):
    return [("user", user), ("assistant", answer)]


# ---------------------------------------------------------------- arithmetic

def add(r, follow=False):
    a, b = number(r), number(r)
    q = ask(r, ["What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} =", "{a}+{b}=", "{a} + {b} = ?", "Add {a} and {b}.",
                "What is {a} plus {b}?", "{a} plus {b}", "Compute {a} + {b}.", "Calculate {a} + {b}.", "Sum of {a} and {b}?",
                "What is the sum of {a} and {b}?", "How much is {a} + {b}?", "How much is {a} plus {b}?", "Add {b} to {a}.",
                "What do you get when you add {a} and {b}?", "Solve {a} + {b}.", "Tell me {a} + {b}.", "what's {a}+{b}",
                "What does {a} + {b} equal?", "If I have {a} and get {b} more, how many do I have?", "{a} and {b} make?",
                "what is {a}+{b}?", "Sum {a} and {b}.", "Give me {a} + {b}.", "add {a} {b}", "add {a} + {b}", "whats {a} + {b}"], a=a, b=b)
    return pair(q, f"{a} + {b} = {a + b}")


def difference(a, b):
    """Hundreds first, then tens, wherever the digits behind them borrow: so no step borrows twice."""
    text = f"{a} - {b} = "
    for place in (100, 10):
        if a >= b >= place and a % place < b % place:
            a, b = a - b // place * place, b % place
            text += f"{a} - {b} = "
    return f"{text}{a - b}"


def subtract(r):
    a, b = number(r), number(r)
    if a < b and not (a < 100 and b < 100 and r.random() < 0.25):
        a, b = b, a
    if r.random() < 0.25:   # close together: most digits of the result hang on a borrow
        b = max(0, a - r.randrange(100))
    q = ask(r, ["What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} =", "{a}-{b}=", "Subtract {b} from {a}.", "What is {a} minus {b}?",
                "{a} minus {b}", "Compute {a} - {b}.", "Calculate {a} - {b}.", "Take {b} away from {a}.", "How much is {a} - {b}?",
                "How much is {a} minus {b}?", "What is the difference of {a} and {b}?", "What is the difference between {a} and {b}?",
                "Solve {a} - {b}.", "{a} take away {b}", "If I have {a} and lose {b}, how many are left?", "what's {a}-{b}",
                "What does {a} - {b} equal?", "Tell me {a} - {b}.", "what is {a}-{b}?", "subtract {b} from {a}", "whats {a} - {b}"], a=a, b=b)
    return pair(q, difference(a, b))


def multiply(r):
    if r.random() < 0.5:
        a, b = r.randint(0, 12), r.randint(0, 12)
    else:
        a, b = r.randint(10, 99), r.randint(2, 9)
        if r.random() < 0.3:
            a, b = b, a
    q = ask(r, ["What is {a} x {b}?", "{a} x {b}", "{a} * {b}", "{a}*{b}", "{a}x{b}", "{a} * {b} =", "What is {a} times {b}?",
                "{a} times {b}", "Multiply {a} by {b}.", "Multiply {a} and {b}.", "Compute {a} * {b}.", "Calculate {a} x {b}.",
                "What is the product of {a} and {b}?", "How much is {a} times {b}?", "How much is {a} x {b}?", "Solve {a} x {b}.",
                "what's {a}*{b}", "what is {a} * {b}?", "What does {a} * {b} equal?", "Tell me {a} x {b}.", "{a} multiplied by {b}",
                "whats {a} times {b}", "Product of {a} and {b}?"], a=a, b=b)
    steps = ""
    if max(a, b) > 12 and max(a, b) % 10:   # beyond the tables: tens and ones apart, as one does it in the head
        tens = max(a, b) // 10 * 10
        steps = f"{tens * min(a, b)} + {a * b - tens * min(a, b)} = "
    return pair(q, f"{a} x {b} = {steps}{a * b}")


def divide(r):
    b, c = r.randint(1, 12), r.randint(1, 12)
    a = b * c
    q = ask(r, ["What is {a} / {b}?", "{a} / {b}", "{a}/{b}", "Divide {a} by {b}.", "What is {a} divided by {b}?", "{a} divided by {b}",
                "How many times does {b} fit into {a}?", "Compute {a} / {b}.", "Share {a} among {b}.", "{a} / {b} =", "what's {a}/{b}"], a=a, b=b)
    return pair(q, f"{a} / {b} = {c}")


def compare(r):
    a, b = number(r), number(r)
    if r.random() < 0.45:
        b = max(0, a + r.randint(-12, 12))
    big = r.random() < 0.55
    if big:
        forms = ["Which is bigger, {a} or {b}?", "Which is larger, {a} or {b}?", "Which is greater, {a} or {b}?", "What is more, {a} or {b}?",
                 "Which number is bigger: {a} or {b}?", "{a} or {b}, which is bigger?", "What is bigger, {a} or {b}?", "Is {a} or {b} bigger?",
                 "bigger: {a} or {b}", "Which one is larger: {a} or {b}?", "Compare {a} and {b}.", "compare {a} and {b}", "Is {a} bigger or {b}?",
                 "Which is more, {a} or {b}?", "Pick the larger of {a} and {b}."]
        hi, lo = max(a, b), min(a, b)
        answer = f"{hi} is bigger than {lo}."
    else:
        forms = ["Which is smaller, {a} or {b}?", "Which is less, {a} or {b}?", "What is less, {a} or {b}?", "Which number is smaller: {a} or {b}?",
                 "{a} or {b}, which is smaller?", "What is smaller, {a} or {b}?", "Is {a} or {b} smaller?", "smaller: {a} or {b}",
                 "Pick the smaller of {a} and {b}.", "Which one is smaller: {a} or {b}?", "Which is lower, {a} or {b}?"]
        hi, lo = max(a, b), min(a, b)
        answer = f"{lo} is smaller than {hi}."
    if a == b:
        answer = f"{a} and {b} are equal."
    return pair(ask(r, forms, a=a, b=b), answer)


def count(r):
    kind = r.random()
    if kind < 0.55:
        n = r.choice((r.randint(2, 6), r.randint(2, 12), r.randint(2, 20), r.randint(2, 30)))
        a = 1 if r.random() < 0.55 else r.randint(0, 60)
        if r.random() < LONG:
            a, n = 1, r.choice((100, 100, r.randint(30, 100), r.randint(30, 60), 50))
        b = a + n - 1
        forms = ["Count from {a} to {b}.", "count {a} to {b}", "List the numbers from {a} to {b}.", "Count up from {a} to {b}.", "Numbers from {a} to {b}.",
                 "Give me the numbers {a} to {b}.", "Start at {a} and count to {b}.", "Write the numbers from {a} to {b}.", "count from {a} up to {b}"]
        if a == 1:
            forms += ["Count to {b}.", "Count up to {b}.", "count to {b}", "Count to {b} for me.", "List the first {b} numbers.", "Write numbers up to {b}."]
        seq = range(a, b + 1)
        values = dict(a=a, b=b)
    elif kind < 0.75:
        a = r.randint(3, 30)
        b = r.choice((0, 1, 1)) if a <= 15 else a - r.randint(3, 15)
        forms = ["Count down from {a} to {b}.", "Count backwards from {a} to {b}.", "count down from {a} to {b}", "Numbers from {a} down to {b}.",
                 "Count from {a} down to {b}.", "Countdown from {a} to {b}.", "Count back from {a} to {b}."]
        if b == 1:
            forms += ["Count down from {a}.", "Countdown from {a}.", "Count backwards from {a}."]
        seq = range(a, b - 1, -1)
        values = dict(a=a, b=b)
    else:
        s, n = r.choice((2, 2, 3, 4, 5, 5, 10, 10)), r.randint(3, 10)
        a = r.choice((0, s, s, s, r.randint(1, 20)))
        b = a + s * (n - 1)
        forms = ["Count by {s} from {a} to {b}.", "Count from {a} to {b} by {s}.", "Count from {a} to {b} in steps of {s}.",
                 "count in {s}s from {a} to {b}", "Count by {s}s from {a} to {b}.", "Count in steps of {s} from {a} to {b}."]
        seq = range(a, b + 1, s)
        values = dict(a=a, b=b, s=s)
    return pair(ask(r, forms, **values), ", ".join(map(str, seq)))


def sort(r):
    n = r.choice((2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8))
    top = r.choice((10, 20, 100, 100, 100, 1000))
    xs = [r.randrange(top) for _ in range(n)]
    if r.random() < 0.8:
        xs = distinct(r, lambda r: r.randrange(top), n)
    sep = r.choice((", ", ", ", " ", ","))
    l = sep.join(map(str, xs))
    down = r.random() < 0.35
    if down:
        forms = ["Sort {l} from largest to smallest.", "Sort {l} in descending order.", "Sort these numbers in descending order: {l}.", "Sort down: {l}",
                 "Order {l} from high to low.", "sort descending {l}", "Arrange {l} from biggest to smallest.", "Put {l} in descending order.",
                 "Sort {l} descending.", "Sort {l} in reverse order.", "Sort from high to low: {l}"]
    else:
        forms = ["Sort {l}.", "Sort {l}", "sort {l}", "Sort these numbers: {l}.", "Sort: {l}", "Sort {l} from smallest to largest.", "Put {l} in order.",
                 "Order these numbers: {l}.", "Sort {l} in ascending order.", "Arrange {l} from low to high.", "Sort the list {l}.",
                 "Sort the numbers {l}.", "sort numbers {l}", "Sort up: {l}", "Put these in order: {l}", "Order {l} from low to high.", "Sort this list: {l}"]
    return pair(ask(r, forms, l=l), ", ".join(map(str, sorted(xs, reverse=down))))


def extreme(r):
    xs = distinct(r, lambda r: r.randrange(r.choice((20, 100, 1000))), r.randint(3, 6))
    l = ", ".join(map(str, xs))
    if r.random() < 0.5:
        forms = ["What is the largest of {l}?", "Find the maximum of {l}.", "max of {l}", "Which is the biggest of {l}?", "Largest number in {l}?", "What is the biggest number in {l}?"]
        return pair(ask(r, forms, l=l), f"The largest is {max(xs)}.")
    forms = ["What is the smallest of {l}?", "Find the minimum of {l}.", "min of {l}", "Which is the smallest of {l}?", "Smallest number in {l}?", "What is the smallest number in {l}?"]
    return pair(ask(r, forms, l=l), f"The smallest is {min(xs)}.")


def parity(r):
    a = number(r)
    q = ask(r, ["Is {a} even or odd?", "is {a} odd or even", "Is the number {a} even or odd?", "Is {a} even?", "Is {a} odd?", "even or odd: {a}"], a=a)
    return pair(q, f"{a} is {'odd' if a % 2 else 'even'}.")


def neighbor(r):
    a = number(r)
    if r.random() < 0.5:
        return pair(ask(r, ["What comes after {a}?", "What number comes after {a}?", "Which number follows {a}?", "What is the next number after {a}?", "next after {a}"], a=a), f"{a + 1} comes after {a}.")
    a = max(a, 1)
    return pair(ask(r, ["What comes before {a}?", "What number comes before {a}?", "Which number is before {a}?", "What is the number before {a}?"], a=a), f"{a - 1} comes before {a}.")


# ---------------------------------------------------------------- letters and words

def spell(r):
    w = word(r)
    q = ask(r, ["Spell {w}.", "Spell {w}", "spell {w}", "Spell the word {w}.", "How do you spell {w}?", "How is {w} spelled?", "Spell out {w}.", "Spell \"{w}\".",
                "What is the spelling of {w}?", "spell it: {w}", "Write {w} letter by letter.", "Spell the word \"{w}\".", "How to spell {w}?", "Give me the letters of {w}.",
                "how do i spell {w}", "Spell this word: {w}", "What letters are in {w}?"], w=w, case=True)
    return pair(q, "-".join(w))


def letters(r):
    """Answered by spelling first: the letters of a word cannot be seen in its tokens. A letter that is
    looked for is written large where it stands, so that what is counted are large letters, whichever was asked for."""
    w = word(r)
    if r.random() < 0.4:
        q = ask(r, ["How many letters are in {w}?", "How many letters does {w} have?", "Count the letters in {w}.", "How long is the word {w}?", "How many letters are in the word {w}?",
                    "Number of letters in {w}?", "how many letters in {w}", "Length of {w}?", "How many letters has {w}?", "Count the letters of \"{w}\"."], w=w)
        return pair(q, f"{'-'.join(w)}. {w} has {len(w)} letters.")
    c = r.choice(w) if r.random() < 0.85 else r.choice(LETTERS)
    n = w.count(c)
    if r.random() < 0.3:    # several of the letter: rarer in the dictionary, asked for by everyone
        for _ in range(30):
            w = word(r, 5, 9)
            c = max(w, key=w.count)
            n = w.count(c)
            if n > 1:
                break
    q = ask(r, ["How many {c} are in {w}?", "How many {c}'s are in {w}?", "How many times does {c} appear in {w}?", "Count the letter {c} in {w}.", "How many {c} in {w}?",
                "How often does the letter {c} appear in {w}?", "Count {c} in {w}.", "How many times is the letter {c} in the word {w}?", "how many {c}'s in {w}",
                "How many {c}s are there in {w}?", "How many letters {c} are in {w}?", "How many {c} are there in the word {w}?", "How many {c}'s in \"{w}\"?"], w=w, c=c)
    marked = "-".join(w.replace(c, c.upper()))
    return pair(q, f"{marked}. The letter {c} appears {n} time{'' if n == 1 else 's'} in {w}.")


def reverse(r):
    if r.random() < 0.6:
        w = word(r)
        q = ask(r, ["Reverse {w}.", "reverse {w}", "Reverse the word {w}.", "Write {w} backwards.", "Spell {w} backwards.", "What is {w} backwards?", "Say {w} backwards.",
                    "Reverse \"{w}\".", "{w} backwards", "Turn {w} around.", "Write {w} in reverse.", "Reverse the letters of {w}.", "reverse the string {w}", "What is {w} in reverse?"], w=w)
        return pair(q, "-".join(reversed(w)))
    n = r.randint(3, 8)
    kind = r.random()
    if kind < 0.5:
        xs = [str(number(r, r.choice((1, 1, 2)))) for _ in range(n)]
    elif kind < 0.75:
        xs = [r.choice(LETTERS) for _ in range(n)]
    else:
        xs = distinct(r, lambda r: r.choice(COLORS + ANIMALS + FOODS), min(n, 5))
    sep = r.choice((", ", ", ", " "))
    q = ask(r, ["Reverse the list {l}.", "Reverse {l}.", "reverse {l}", "Reverse this list: {l}", "Write {l} in reverse order.", "List {l} backwards.", "Reverse the order of {l}.",
                "Reverse: {l}", "Turn around the list {l}."], l=sep.join(xs))
    return pair(q, ", ".join(reversed(xs)))


def upper(r):
    kind = r.random()
    w = word(r)
    if r.random() < 0.3:
        w += " " + word(r, 3, 7)
    if kind < 0.5:
        q = ask(r, ["Write {w} in capital letters.", "Write {w} in upper case.", "Uppercase {w}.", "uppercase {w}", "Upper case: {w}", "Capitalize {w}.", "Put {w} in capitals.", "Make {w} upper case.",
                    "Shout {w}.", "{w} in capitals", "Convert {w} to uppercase.", "Write {w} in all caps.", "{w} in upper case", "all caps: {w}", "shout {w}", "Type {w} in capital letters."], w=w)
        return pair(q, w.upper())
    if kind < 0.7:
        q = ask(r, ["Write {w} in lower case.", "Lowercase {w}.", "Lower case: {w}", "Make {w} lower case.", "Convert {w} to lowercase.", "Put {w} in small letters.", "lowercase {w}", "{w} in lower case"],
                w=w.upper(), case=False)
        return pair(q, w)
    w = w.split()[0]
    n = r.randint(2, 6)
    q = ask(r, ["Repeat {w} {n} times.", "Repeat the word {w} {n} times.", "Say {w} {n} times.", "Write {w} {n} times.", "Print {w} {n} times.", "repeat {w} {n}x", "Say the word {w} {n} times.", "repeat {w} {n} times"], w=w, n=n)
    return pair(q, " ".join([w] * n))


def position(r):
    kind = r.random()
    if kind < 0.35:
        w = word(r)
        if r.random() < 0.5:
            return pair(ask(r, ["What is the first letter of {w}?", "First letter of {w}?", "Which letter does {w} start with?", "What letter does {w} begin with?"], w=w), f"The first letter of {w} is {w[0]}.")
        return pair(ask(r, ["What is the last letter of {w}?", "Last letter of {w}?", "Which letter does {w} end with?", "What letter does {w} end in?"], w=w), f"The last letter of {w} is {w[-1]}.")
    i = r.randrange(25)
    if kind < 0.6:
        return pair(ask(r, ["What letter comes after {c}?", "Which letter follows {c}?", "What comes after the letter {c}?", "next letter after {c}"], c=LETTERS[i]), f"{LETTERS[i + 1]} comes after {LETTERS[i]}.")
    if kind < 0.8:
        return pair(ask(r, ["What letter comes before {c}?", "Which letter is before {c}?", "What comes before the letter {c}?"], c=LETTERS[i + 1]), f"{LETTERS[i]} comes before {LETTERS[i + 1]}.")
    if r.random() < 0.25:
        return pair(ask(r, ["Say the alphabet.", "Write the alphabet.", "What is the alphabet?", "alphabet", "List the letters of the alphabet.", "Recite the alphabet."]), " ".join(LETTERS))
    i = r.randrange(20)
    j = min(25, i + r.randint(3, 8))
    return pair(ask(r, ["List the letters from {a} to {b}.", "Letters {a} to {b}", "Write the letters from {a} to {b}."], a=LETTERS[i], b=LETTERS[j]), " ".join(LETTERS[i:j + 1]))


def rhyme(r):
    group = r.choice(RHYMES)
    i = r.randrange(len(group))
    w, o = group[i], group[(i + 1) % len(group)]
    q = ask(r, ["What rhymes with {w}?", "Give me a word that rhymes with {w}.", "Name a rhyme for {w}.", "rhyme {w}", "Which word rhymes with {w}?", "Find a rhyme for {w}.", "rhymes with {w}",
                "Tell me a word that rhymes with {w}.", "a rhyme for {w}"], w=w)
    return pair(q, f"{w} rhymes with {o}.")


# ---------------------------------------------------------------- calendar, units, structure

def weekday(r):
    d = r.randrange(7)
    day = DAYS[d]
    kind = r.random()
    if kind < 0.3:
        if r.random() < 0.5:
            return pair(ask(r, ["What day comes after {d}?", "Which day comes after {d}?", "What is the day after {d}?", "If today is {d}, what day is tomorrow?", "Today is {d}. What day is tomorrow?",
                                "what day is after {d}", "Which day follows {d}?", "next day after {d}"], d=day), f"The day after {day} is {DAYS[(d + 1) % 7]}.")
        return pair(ask(r, ["What day comes before {d}?", "Which day comes before {d}?", "What is the day before {d}?", "If today is {d}, what day was yesterday?", "Today is {d}. What day was yesterday?",
                            "what day is before {d}"], d=day), f"The day before {day} is {DAYS[(d - 1) % 7]}.")
    n = r.randint(2, 20) if r.random() < 0.7 else r.randint(2, 60)
    weeks, rest = divmod(n, 7)
    steps = ""
    if weeks:               # the rest after whole weeks decides
        steps = f"{n} days are {weeks} week{'s' * (weeks > 1)}{f' and {rest} day' if rest else ''}{'s' * (rest > 1)}. "
    if kind < 0.72:
        return pair(ask(r, ["What day is {n} days after {d}?", "Which day is {n} days after {d}?", "What day comes {n} days after {d}?", "Today is {d}. What day is it in {n} days?",
                            "If today is {d}, what day is it in {n} days?", "{n} days after {d}", "{d} plus {n} days", "What weekday is {n} days after {d}?"], d=day, n=n), f"{steps}{n} days after {day} is {DAYS[(d + n) % 7]}.")
    return pair(ask(r, ["What day is {n} days before {d}?", "Which day is {n} days before {d}?", "What day was {n} days before {d}?", "Today is {d}. What day was it {n} days ago?",
                        "If today is {d}, what day was it {n} days ago?", "{n} days before {d}", "{d} minus {n} days"], d=day, n=n), f"{steps}{n} days before {day} is {DAYS[(d - n) % 7]}.")


def date(r):
    y, m, d = r.randint(1900, 2099), r.randint(1, 12), r.randint(1, 28)
    iso, mon = f"{y}-{m:02d}-{d:02d}", MONTHS[m - 1]
    if r.random() < 0.6:
        suffix = "th" if 10 <= d <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(d % 10, "th")
        t = r.choice([f"{mon} {d}, {y}", f"{d} {mon} {y}", f"{mon} {d} {y}", f"{mon} {d}{suffix}, {y}", f"{mon[:3]} {d}, {y}"])
        q = ask(r, ["Write {t} in ISO format.", "Convert {t} to ISO.", "{t} as ISO date", "What is {t} in ISO format?", "Write the date {t} as YYYY-MM-DD.", "ISO date for {t}?", "Give {t} as an ISO date.",
                    "{t} in ISO", "iso {t}", "Write {t} as an ISO date.", "Format {t} as ISO.", "Turn {t} into an ISO date."], t=t)
        return pair(q, iso)
    q = ask(r, ["Write {t} in words.", "What date is {t}?", "Write the date {t} in words.", "Which date is {t}?", "Convert {t} to a normal date.", "Spell out the date {t}.", "{t} in words", "Read the date {t}.", "What day is {t}?",
                "Turn {t} into words."], t=iso, spacing=False)
    return pair(q, f"{mon} {d}, {y}")


def month(r):
    m = r.randrange(12)
    kind = r.random()
    if kind < 0.3:
        return pair(ask(r, ["What month comes after {m}?", "Which month comes after {m}?", "What is the month after {m}?", "next month after {m}"], m=MONTHS[m]), f"The month after {MONTHS[m]} is {MONTHS[(m + 1) % 12]}.")
    if kind < 0.55:
        return pair(ask(r, ["What month comes before {m}?", "Which month comes before {m}?", "What is the month before {m}?"], m=MONTHS[m]), f"The month before {MONTHS[m]} is {MONTHS[(m - 1) % 12]}.")
    if kind < 0.8:
        return pair(ask(r, ["What is month number {n}?", "Which month is number {n}?", "What is month {n}?", "Name month {n}."], n=m + 1), f"Month {m + 1} is {MONTHS[m]}.")
    if kind < 0.9:
        return pair(ask(r, ["List the days of the week.", "What are the days of the week?", "Name the days of the week.", "days of the week", "Name all weekdays."]), ", ".join(DAYS))
    return pair(ask(r, ["List the months.", "What are the months of the year?", "Name the months of the year.", "months of the year", "List all months."]), ", ".join(MONTHS))


def time(r):
    h, mi = r.randint(1, 12), r.choice((0, 0, 5, 10, 15, 20, 30, 40, 45, 50, r.randrange(60)))
    kind = r.random()
    if kind < 0.4:
        half = r.choice(("am", "pm"))
        h24 = h % 12 + (12 if half == "pm" else 0)
        t = f"{h}:{mi:02d} {half}"
        return pair(ask(r, ["What is {t} in 24-hour time?", "Write {t} in 24-hour time.", "Convert {t} to 24-hour time.", "{t} in 24 hour time", "{t} as 24-hour time"], t=t), f"{h24:02d}:{mi:02d}")
    if kind < 0.6:
        h24 = r.randrange(24)
        t = f"{h24:02d}:{mi:02d}"
        return pair(ask(r, ["What is {t} in 12-hour time?", "Write {t} in 12-hour time.", "Convert {t} to am or pm.", "Is {t} am or pm?", "{t} in 12 hour time"], t=t),
                    f"{(h24 - 1) % 12 + 1}:{mi:02d} {'am' if h24 < 12 else 'pm'}")
    n = r.randint(1, 11)
    s = "" if n == 1 else "s"
    return pair(ask(r, ["What time is {n} hour{s} after {t}?", "It is {t}. What time is it in {n} hour{s}?", "What is {n} hour{s} after {t}?", "{t} plus {n} hour{s}", "{n} hour{s} after {t}"], n=n, s=s, t=f"{h}:{mi:02d}"),
                f"{n} hour{s} after {h}:{mi:02d} is {(h + n - 1) % 12 + 1}:{mi:02d}.")


def unit(r):
    big, small, f, top = r.choice(UNITS)
    n = r.randint(1, top)
    forms = ["How many {s} are in {n} {b}?", "How many {s} is {n} {b}?", "Convert {n} {b} to {s}.", "{n} {b} in {s}", "{n} {b} to {s}", "What is {n} {b} in {s}?", "How many {s} are {n} {b}?",
             "Change {n} {b} into {s}.", "Express {n} {b} in {s}.", "how many {s} in {n} {b}", "{n} {b} = ? {s}", "Turn {n} {b} into {s}."]
    tell = lambda u: r.choice(UNIT_NAMES.get(u, [u]))
    def shown(k, u):
        return f"{k} {u[:-1] if k == 1 and u.endswith('s') else 'foot' if k == 1 and u == 'feet' else u}"
    if r.random() < 0.65:
        b = tell(big)
        if n == 1 and r.random() < 0.6:
            b = shown(1, b)[2:]
            forms = forms + ["How many {s} are in a {b}?", "how many {s} in a {b}"]
        return pair(ask(r, forms, n=n, b=b, s=tell(small)), f"{shown(n, big)} = {shown(n * f, small)}")
    return pair(ask(r, forms, n=n * f, b=tell(small), s=tell(big)), f"{shown(n * f, small)} = {shown(n, big)}")


def json_task(r):
    draws = {"name": lambda: name(r), "age": lambda: r.randint(1, 99), "city": lambda: r.choice([c for c in CAPITALS.values() if " " not in c]), "color": lambda: r.choice(COLORS), "pet": lambda: r.choice(ANIMALS),
             "food": lambda: r.choice(FOODS), "price": lambda: r.randint(1, 500), "item": lambda: r.choice(OBJECTS), "id": lambda: r.randint(1, 999), "day": lambda: r.choice(DAYS),
             "month": lambda: r.choice(MONTHS), "count": lambda: r.randint(0, 50), "animal": lambda: r.choice(ANIMALS), "word": lambda: word(r, 3, 6)}
    keys = r.sample(list(draws), r.choice((1, 2, 2, 3, 3)))
    vals = {k: draws[k]() for k in keys}
    style = r.choice(("is", "colon", "eq", "plain", "plain"))
    joint = {"is": "{} is {}", "colon": "{}: {}", "eq": "{}={}", "plain": "{} {}"}[style]
    parts = [joint.format(k, v) for k, v in vals.items()]
    t = ", ".join(parts) if r.random() < 0.5 or len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    q = ask(r, ["Make JSON from {t}.", "Write JSON with {t}.", "Turn this into JSON: {t}", "JSON for {t}", "Give me a JSON object with {t}.", "Create JSON: {t}", "Convert to JSON: {t}", "json: {t}", "Write {t} as JSON.",
                "Make a JSON object with {t}.", "{t} as JSON", "Return JSON with {t}.", "json {t}"], t=t, case=False, spacing=False)
    return pair(q, json.dumps(vals))


def table(r):
    if r.random() < 0.5:
        n, k = r.randint(1, 12), r.randint(2, 6)
        q = ask(r, ["Show the {n} times table up to {k}.", "{n} times table up to {k}", "Write the {n} times table to {k}.", "Times table of {n} up to {k}."], n=n, k=k)
        return pair(q, "\n".join(f"{n} x {i} = {n * i}" for i in range(1, k + 1)))
    rows = r.randint(2, 3)
    names = distinct(r, lambda r: r.choice(NAMES), rows)
    ages = [r.randint(2, 99) for _ in names]
    t = ", ".join(f"{n} {a}" for n, a in zip(names, ages))
    q = ask(r, ["Make a table of names and ages: {t}.", "Make a table: {t}", "Table with name and age: {t}", "Write a table of name and age for {t}.", "table: {t}", "Put this in a table: {t}"], t=t, case=False, spacing=False)
    return pair(q, "| name | age |\n| --- | --- |\n" + "\n".join(f"| {n} | {a} |" for n, a in zip(names, ages)))


# ---------------------------------------------------------------- knowledge, reading, talk

def facts(r):
    kind = r.random()
    if kind < 0.4:
        c, cap = r.choice(list(CAPITALS.items()))
        if r.random() < 0.8:
            return pair(ask(r, ["What is the capital of {c}?", "What's the capital of {c}?", "capital of {c}", "The capital of {c}?", "Name the capital of {c}.", "Which city is the capital of {c}?", "Tell me the capital of {c}.",
                                "What is {c}'s capital?", "{c} capital", "Capital city of {c}?", "whats the capital of {c}", "What city is the capital of {c}?", "The capital of {c} is?"], c=c), f"The capital of {c} is {cap}.")
        return pair(ask(r, ["{t} is the capital of which country?", "Which country has the capital {t}?", "What country is {t} the capital of?", "Of which country is {t} the capital?"], t=cap), f"{cap} is the capital of {c}.")
    if kind < 0.6:
        a, b = r.choice(list(OPPOSITE.items()))
        return pair(ask(r, ["What is the opposite of {a}?", "Opposite of {a}?", "opposite of {a}", "What's the opposite of {a}?", "Give me the opposite of {a}.", "Which word is the opposite of {a}?", "Name the opposite of {a}.",
                            "The opposite of {a}?", "antonym of {a}", "What is the antonym of {a}?"], a=a), f"The opposite of {a} is {b}.")
    if kind < 0.77:
        a, b = r.choice(list(PLURALS.items()))
        return pair(ask(r, ["What is the plural of {a}?", "Plural of {a}?", "plural of {a}", "Give me the plural of {a}.", "One {a}, two what?", "What's the plural of {a}?", "Write {a} in the plural.", "plural form of {a}"], a=a),
                    f"The plural of {a} is {b}.")
    if kind < 0.86:
        a, b = r.choice(list(YOUNG.items()))
        return pair(ask(r, ["What is a young {a} called?", "What is a baby {a} called?", "What do you call a young {a}?", "What do you call a baby {a}?", "Name of a young {a}?", "baby {a}", "A baby {a} is called?"], a=a), f"A young {a} is a {b}."
                    .replace(" a o", " an o").replace("young owl", "young owl").replace(" a e", " an e"))
    if kind < 0.92:
        a, b = r.choice(list(SYMBOLS.items()))
        return pair(ask(r, ["What is the symbol for {a}?", "Symbol for {a}?", "What is the chemical symbol of {a}?", "chemical symbol for {a}", "symbol of {a}", "What's the symbol for {a}?"], a=a), f"The symbol for {a} is {b}.")
    if kind < 0.96:
        a, b = r.choice(list(SOUNDS.items()))
        return pair(ask(r, ["What does a {a} say?", "What sound does a {a} make?", "Which sound does a {a} make?", "what does the {a} say", "sound of a {a}"], a=a), f"A {a} says {b}.")
    a, b = r.choice(list(LEGS.items()))
    return pair(ask(r, ["How many legs does a {a} have?", "How many legs has a {a}?", "how many legs does a {a} have", "legs of a {a}"], a=a), f"A {a} has {b} legs.")


def reading(r):
    """A few sentences and a question about one of them; sometimes more questions about the same."""
    n = r.choice((1, 2, 2, 3, 3, 3, 4, 4, 5))
    people = distinct(r, name, n)
    placed = r.random() < 0.6
    if placed:
        values = distinct(r, lambda r: r.choice(PLACES), n)
        verbs = r.choice((["is in"], ["is in"], ["is at"], ["went to"], ["is in", "is at"], ["lives in"], ["went to", "is in", "moved to", "ran to"]))
    else:
        values = distinct(r, lambda r: r.choice(COLORS) + " " + r.choice(OBJECTS) if r.random() < 0.5 else r.choice(OBJECTS), n)
        verbs = [r.choice(("has", "has", "took", "bought", "found"))]
    text = " ".join(f"{p} {r.choice(verbs)} the {v}." for p, v in zip(people, values))

    def question(p, v):
        if placed and r.random() < 0.3:
            return r.choice([f"Where is {p}?", f"Where is {p}?", f"Where is {p} now?", f"where is {p}", f"Where can I find {p}?", f"In which place is {p}?", f"where's {p}?"])
        if placed:
            return r.choice([f"Who is in the {v}?", f"Who is at the {v}?", f"who is in the {v}", f"Which person is in the {v}?"])
        if r.random() < 0.25:
            return r.choice([f"What does {p} have?", f"what does {p} have", f"What did {p} get?"])
        return r.choice([f"Who has the {v}?", f"who has the {v}", f"Who owns the {v}?"])

    low = r.random() < 0.05
    turns = []
    for p, v in r.sample(list(zip(people, values)), r.randint(1, n) if r.random() < 0.6 else 1):
        user = asked = question(p, v)
        if not turns:
            user = r.choice(["{t} {q}", "{t} {q}", "{t} {q}", "Read: {t} {q}", "{t}\n{q}", "{q} {t}", "Text: {t} Question: {q}"]).format(t=text, q=user)
        elif r.random() < 0.2:
            user = r.choice(["And ", "And ", "Now, ", "and ", "Ok, "]) + user[0].lower() + user[1:]
        if r.random() < 0.25:
            user = re.sub(r"[?.]$", "", user)
        if re.match("who|which person", asked.lower()):
            # A small model finds what stands behind a word, not what stands before it: so it turns the sentences around.
            turned = ", ".join(f"{v}: {p}" for p, v in zip(people, values))
            answer = f"{turned}. " + (f"In the {v} is {p}." if placed else f"The {v} is {p}'s.")
        else:
            answer = f"{p} is in the {v}." if placed else f"{p} has the {v}."
        turns += pair(user.lower() if low else user, answer)
    return turns


def recall(r):
    """Pairs, and what stands behind some of the first: exercise for `reading`, many lookups in one answer."""
    n = r.randint(2, 8)
    kinds = r.sample((NAMES, PLACES, OBJECTS, COLORS, ANIMALS), 2)
    n = min(n, len(kinds[0]), len(kinds[1]))
    pairs = list(zip(r.sample(kinds[0], n), r.sample(kinds[1], n)))
    form, joint = r.choice((("{a} {b}", ", "), ("{a} {b}", "; "), ("{a}: {b}", ", "), ("{a} {b}", "\n"), ("The {a} is with the {b}.", " "), ("In the {a} is {b}.", " "), ("{a} went to the {b}.", " ")))
    text = joint.join(form.format(a=a, b=b) for a, b in pairs)
    wanted = r.sample(pairs, r.randint(1, n))
    return pair(r.choice(["{t}. Who: {w}?", "{t}\nWho: {w}?", "{t} Names: {w}"]).format(t=text, w=", ".join(a for a, _ in wanted)), ", ".join(f"{a}: {b}" for a, b in wanted))


def memory(r):
    n = name(r)
    tell = {
        "name": (lambda: n, ["My name is {v}.", "I am {v}.", "I'm {v}.", "Hi, my name is {v}.", "Call me {v}.", "Hello, I am {v}.", "my name is {v}", "hi i'm {v}", "Hi, I'm {v}.", "You can call me {v}."],
                 "Nice to meet you, {v}.", ["What is my name?", "Who am I?", "Do you know my name?", "what's my name", "What was my name?", "Can you tell me my name?", "Do you remember my name?", "whats my name?", "Say my name."], "Your name is {v}."),
        "color": (lambda: r.choice(COLORS), ["My favorite color is {v}.", "I like the color {v}.", "my favorite color is {v}", "My favourite color is {v}."], "{v} is a nice color.",
                  ["What is my favorite color?", "Which color do I like?", "what's my favorite color", "What color do I like?"], "Your favorite color is {v}."),
        "pet": (lambda: r.choice(ANIMALS), ["I have a {v}.", "My pet is a {v}.", "I have a pet {v}.", "i have a {v}"], "A {v} is a nice pet.", ["What pet do I have?", "What is my pet?", "Which pet do I have?", "what is my pet"], "Your pet is a {v}."),
        "age": (lambda: str(r.randint(2, 99)), ["I am {v} years old.", "My age is {v}.", "I'm {v} years old.", "i am {v}"], "{v} is a good age.", ["How old am I?", "What is my age?", "how old am i", "what's my age?"], "You are {v} years old."),
        "number": (lambda: str(number(r)), ["My number is {v}.", "Remember the number {v}.", "My lucky number is {v}.", "remember {v}"], "I will remember {v}.", ["What is my number?", "Which number did I tell you?", "What was the number?", "what's my number"], "Your number is {v}."),
        "city": (lambda: r.choice([c for c in CAPITALS.values()]), ["I live in {v}.", "My city is {v}.", "I am from {v}.", "I'm from {v}.", "i live in {v}"], "{v} is a nice city.", ["Where do I live?", "What is my city?", "Which city do I live in?", "where am i from", "Where am I from?"], "You live in {v}."),
        "food": (lambda: r.choice(FOODS), ["My favorite food is {v}.", "I like {v}.", "I love {v}.", "i like {v}"], "I hear {v} is tasty.", ["What is my favorite food?", "What food do I like?", "what do i like to eat", "What do I like to eat?"], "Your favorite food is {v}."),
        "word": (lambda: word(r, 3, 6), ["Remember the word {v}.", "The secret word is {v}.", "The word is {v}.", "My word is {v}."], "I will remember {v}.", ["What is the word?", "What was the word?", "What is the secret word?", "Which word did I tell you?"], "The word is {v}."),
    }
    kinds = r.sample(list(tell), r.choice((1, 1, 1, 2, 2, 3)))
    if "name" not in kinds and r.random() < 0.5:
        kinds[0] = "name"
    turns, known = [], []
    for k in kinds:
        draw, says, reply, asks, recall = tell[k]
        v = str(draw())
        says = r.choice(says).format(v=v)
        if r.random() < 0.25:
            says = re.sub(r"\.$", r.choice(["", "!"]), says)
        turns += pair(says, reply.format(v=v))
        known.append((asks, recall.format(v=v)))
        if r.random() < 0.2:
            turns += r.choice((add, chat, compare, facts, spell))(r)
    for asks, recall in r.sample(known, r.randint(1, len(known))):
        turns += pair(ask(r, asks, polite=False, noise=0.3), recall)
    if r.random() < 0.06:
        k = r.choice([k for k in tell if k not in kinds])
        turns += pair(r.choice(tell[k][3]), "You have not told me yet.")
    return turns


def follow(r):
    """Two-step chats: the second question needs the first answer."""
    kind = r.random()
    if kind < 0.5:
        a, b, c = number(r, r.choice((1, 2))), number(r, r.choice((1, 2))), number(r, r.choice((1, 2)))
        s = a + b
        turns = pair(ask(r, ["What is {a} + {b}?", "{a} + {b}", "Add {a} and {b}.", "{a}+{b}", "what's {a}+{b}"], a=a, b=b), f"{a} + {b} = {s}")
        if r.random() < 0.6 or c > s:
            return turns + pair(ask(r, ["Now add {c}.", "Add {c} to that.", "Plus {c}?", "and add {c}", "+ {c}", "now plus {c}", "And {c} more?"], c=c), f"{s} + {c} = {s + c}")
        return turns + pair(ask(r, ["Now subtract {c}.", "Take away {c}.", "Minus {c}?", "and minus {c}", "- {c}", "now subtract {c} from that"], c=c), difference(s, c))
    if kind < 0.75:
        (c, x), (d, y) = r.sample(list(CAPITALS.items()), 2)
        return pair(ask(r, ["What is the capital of {c}?", "capital of {c}"], c=c), f"The capital of {c} is {x}.") + \
            pair(ask(r, ["And of {d}?", "And {d}?", "What about {d}?", "and {d}", "How about {d}?"], d=d), f"The capital of {d} is {y}.")
    w, v = word(r), word(r)
    return pair(ask(r, ["Spell {w}.", "spell {w}"], w=w), "-".join(w)) + pair(ask(r, ["And {v}?", "Now {v}.", "and {v}", "What about {v}?", "Now spell {v}."], v=v), "-".join(v))


CHAT = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hi there!", "Hey", "Hey!", "hello", "hi", "hey there", "Hello there!", "Good day", "Greetings", "hiya", "Howdy", "hello hello", "Hello, {b}!", "hi {b}", "Hey {b}!", "Hello my friend", "yo"], GREETING),
    (["Good morning", "Good morning!", "Good morning to you", "morning", "Good morning, {b}"], "Good morning! How can I help you?"),
    (["Good evening", "Good evening!", "Good evening to you", "evening", "Good evening, {b}"], "Good evening! How can I help you?"),
    (["Good night", "Good night!", "Sleep well", "good night {b}"], "Good night! Sleep well."),
    (["How are you?", "How are you doing?", "How are you today?", "How is it going?", "how r u", "how are you", "How do you do?", "How are things?", "What's up?", "How do you feel?", "hi how are you", "are you ok?"], "I am fine, thank you. How are you?"),
    (["I am fine", "I am good", "I'm fine, thanks", "I am well", "fine thanks", "I'm good", "great, thanks", "I am fine, thank you", "I am great"], "I am glad to hear that."),
    (["I am sad", "I feel bad", "I'm tired", "I am sad today", "I feel sad", "I am tired", "I'm sad"], "I am sorry to hear that. A story may help."),
    (["Thank you", "Thanks", "Thank you!", "Thanks a lot", "thx", "Thanks!", "Thank you very much", "ty", "many thanks", "thank you so much", "Thanks, {b}"], "You are welcome!"),
    (["Bye", "Goodbye", "Bye bye", "See you", "See you later", "Goodbye!", "bye!", "cya", "See you soon", "I have to go", "Bye, {b}", "farewell"], "Goodbye! Have a nice day."),
    (["Who are you?", "What are you?", "What is your name?", "Are you a robot?", "Are you a human?", "Tell me about yourself.", "Introduce yourself.", "who are you", "whats your name", "Who am I talking to?", "Do you have a name?", "Are you an AI?",
      "Are you a person?", "What kind of model are you?", "what is this", "What model are you?", "who r u", "Are you real?", "Are you a bot?", "Are you ChatGPT?", "Say something about yourself."], WHO),
    (["What can you do?", "Help", "help me", "What do you know?", "How can you help me?", "What are you good at?", "what can i ask", "What can I ask you?", "What are your skills?", "help!", "what can u do", "Show me what you can do.", "I need help", "What do you do?",
      "Which tasks can you do?", "What should I ask?", "Give me some ideas."], CAN),
    (["How do you work?", "How do you write?", "What is a diffusion model?", "What is diffusion?", "How does diffusion work?", "What is a diffusion language model?", "how does this work", "Explain how you work.", "How do you answer?"],
     "I start with blanks and fill in the words I am most sure of first."),
    (["Who made you?", "Who built you?", "Who created you?", "Who trained you?", "who made u", "Where do you come from?", "Who wrote you?", "Who is your maker?"], "I was trained from scratch to ship with Diffulex."),
    (["What is Diffulex?", "Tell me about Diffulex.", "what is diffulex", "What does Diffulex do?", "Explain Diffulex."], "Diffulex is a server for diffusion language models."),
    (["Tell me a joke.", "Make me laugh.", "Do you know a joke?", "joke", "Say something funny.", "a joke please", "tell me something funny", "Another joke."], "Why was six afraid of seven? Because seven ate nine."),
    (["Yes", "Ok", "Okay", "Good", "Great", "Nice", "Cool", "Wow", "no", "sure", "nice one", "well done", "very good", "Good job", "That is right", "awesome", "good bot", "You are smart"], "Good! What shall we do next?"),
    (["Sorry", "I am sorry", "Oops", "my mistake", "sorry about that", "oh sorry"], "No problem at all."),
    (["I love you", "I like you", "You are nice", "you are cute", "You are great"], "That is kind of you. Thank you!"),
    (["Are you happy?", "Do you have feelings?", "Do you like me?", "Are you alive?", "Do you sleep?", "Do you dream?"], "I am only a small program, but I am glad you are here."),
    (["Test", "testing", "test 1 2 3", "this is a test", "Is this working?", "ping", "Are you there?", "Can you hear me?", "anybody there"], "I am here and working."),
]


def chat(r):
    forms, answer = r.choice(CHAT)
    text = r.choice(forms).format(b=r.choice(("bot", "robot", "friend", "model", "computer", "buddy", "assistant", "there", "everyone", "little model")))
    x = r.random()
    if x < 0.3:
        text = text.lower()
    elif x < 0.36:
        text = text.upper()
    if r.random() < 0.3:
        text = re.sub(r"[.?!]*$", r.choice(["", "!", "?", ".", "!!", " :)", "..."]), text)
    if r.random() < 0.15 and answer not in (GREETING,):
        text = r.choice(["Hi! ", "Hey, ", "hello, ", "Hello. ", "ok ", "Ok, ", "So, ", "well, ", "Hi, "]) + text
    return pair(text, answer)


UNKNOWN_FORMS = [
    "Who invented the {n}?", "Who discovered {n}?", "What is the meaning of {n}?", "How do I cook {n}?", "How does a {n} work?", "Why is the {n} so {n2}?", "Why do people {n}?", "When was the {n} invented?", "When did the {n} end?",
    "What is the history of {n}?", "Explain {n}.", "Explain {n} to me.", "Translate {n} into French.", "Translate {n} to Spanish.", "How do you say {n} in German?", "What is {n} in Italian?", "Write a poem about {n}.", "Write an essay about {n}.",
    "Write a song about {n}.", "What is the weather in {c}?", "What's the weather like today?", "Will it rain tomorrow?", "Who is the president of {c}?", "Who is the king of {c}?", "How many people live in {c}?", "What is the population of {c}?",
    "What language do they speak in {c}?", "What is the currency of {c}?", "Where is {c}?", "How far is {c}?", "How far is it from {c} to {u}?", "What is the capital of {u}?", "capital of {u}", "What's the capital of {u}?", "Name the capital of {u}.",
    "Who won the world cup in {y}?", "What happened in {y}?", "Who was born in {y}?", "What is the best {n}?", "What is your favorite {n}?", "Which {n} should I buy?", "How much does a {n} cost?", "How tall is {p}?", "Who is {p}?", "Do you know {p}?",
    "What does {n} mean?", "Define {n}.", "What is a {n}?", "what is {n}", "Who wrote {n}?", "Who painted the {n}?", "How old is the {n}?", "How heavy is a {n}?", "How fast is a {n}?", "Where can I buy a {n}?", "Where do {n} live?", "What do {n} eat?",
    "Write a Python program for {n}.", "Write code that can {n}.", "Fix my {n}.", "How do I fix my {n}?", "How do I learn {n}?", "Is {n} good for me?", "Is {n} dangerous?", "Should I {n}?", "Can I {n} here?", "Can dogs eat {n}?", "Do you like {n}?",
    "What is the square root of {k}?", "What is the price of {n}?", "Who is the fastest {n}?", "Which planet is the largest?", "How many stars are there?", "Why is the sky blue?", "What is love?", "What is the meaning of life?", "Is there a god?",
    "How deep is the ocean?", "How high is the highest mountain?", "What is the speed of light?", "What time is it?", "What day is today?", "What is the date today?", "Where am I?", "Who is your favorite singer?", "Recommend a {n}.", "Recommend a movie.",
    "Summarize the {n}.", "Give me a recipe for {n}.", "What are the rules of {n}?", "Play {n} with me.", "Book a flight to {c}.", "Send an email to {p}.", "Call {p}.", "Open the {n}.", "Buy me a {n}.", "Draw a {n}.", "Sing a song.", "What did {p} say about {n}?",
    "Tell me about {n}.", "Tell me about {c}.", "Tell me something about {p}.", "Why did the {n} {n2}?", "How was the {n} made?", "Which is better, {n} or {n2}?", "What is the difference between {n} and {n2}?", "Compare {n} and {n2}.", "{n} {n2}", "{n}", "{n} {n2} {n3}",
    "I think {n} is {n2}.", "The {n} is {n2}.", "What if {n} were {n2}?", "Are {n} and {n2} the same?", "Who killed {p}?", "What is quantum {n}?", "What is the biggest {n} in the world?", "What is the longest river in {c}?", "Who lives in {u}?", "What is {n} made of?",
    "How do {n} sleep?", "What color is the {n}?", "Does {n} hurt?", "Is {p} married?", "What is the name of the {n}?", "Where was {p} born?", "When was {p} born?", "Name a famous {n}.", "Name three kinds of {n}.", "Give me a list of {n}.", "What happens when you {n} a {n2}?",
    "Solve the {n} equation.", "What is the formula for {n}?", "What are the symptoms of {n}?", "Which team won yesterday?", "What is on television?", "What is the news?", "Who are the {n}?", "Can you {n}?", "Please {n} the {n2}.", "How can I become a {n}?", "Why {n}?",
]


def unknown(r):
    def n():
        return r.choice(WORDS) if r.random() < 0.75 else r.choice(ANIMALS + FOODS + OBJECTS + PLACES)
    form = r.choice(UNKNOWN_FORMS)
    person = r.choice(NAMES) + (" " + r.choice(WORDS).capitalize() if r.random() < 0.5 else "")
    if r.random() < 0.06:           # arithmetic beyond what is taught
        a, b = r.randint(1000, 10 ** r.randint(4, 7)), r.randint(1, 10 ** r.randint(1, 6))
        if r.random() < 0.5:
            a, b = b, a
        form = r.choice(["What is {a} + {b}?", "{a}+{b}", "{a} - {b}", "What is {a} x {b}?", "{a} * {b}", "{a}*{b}", "Add {a} and {b}.", "What is {a} times {b}?", "Multiply {a} by {b}.", "what's {a} - {b}", "What is {a} plus {b}?",
                         "What is {a} minus {b}?", "Divide {a} by {b}.", "What is {k}% of {a}?"]).format(a=a, b=b, k=r.randint(1, 99))
        if r.random() < 0.3:
            form = r.choice(["{a} x {b}", "{a}*{b}", "What is {a} times {b}?", "Multiply {a} by {b}."]).format(a=r.randint(13, 99) + 100 * r.randint(0, 9), b=r.randint(13, 99))
    q = ask(r, [form], n=n(), n2=n(), n3=n(), c=r.choice(list(CAPITALS) + UNKNOWN_COUNTRIES), u=r.choice(UNKNOWN_COUNTRIES) if r.random() < 0.7 else r.choice(WORDS).capitalize(), p=person,
            y=r.randint(1000, 2030), k=r.randint(2, 9999))
    if r.random() < 0.04:
        q = "".join(r.choice(LETTERS + "  ") for _ in range(r.randint(5, 25))).strip() or "qwz"
    return pair(q, UNKNOWN)


STORY_KINDS = ["fox", "cat", "dog", "bear", "owl", "rabbit", "mouse", "frog", "duck", "wolf", "lion", "dragon", "penguin", "hedgehog", "turtle", "squirrel"]
STORY_TRAITS = ["small", "brave", "shy", "happy", "clever", "hungry", "kind", "lonely", "curious", "sleepy"]
STORY_PLACES = ["forest", "river", "garden", "castle", "cave", "village", "lake", "mountain", "tower", "beach"]
STORY_THINGS = ["key", "kite", "lamp", "drum", "bell", "map", "hat", "ring", "box", "boat"]
STORY_ENDS = ["They became good friends.", "They shared it and laughed.", "They played until the sun went down.", "They went home and slept well."]


def story(r):
    """A story from a grammar. Names and things recur, so a careless decoder breaks it visibly."""
    kind = r.choice(STORY_KINDS)
    asked = r.random() < 0.6
    if asked:
        q = ask(r, ["Tell me a story about a {k}.", "Write a story about a {k}.", "A story about a {k}.", "story about a {k}", "Tell a short story about a {k}.", "Can you tell me a story about a {k}?", "I want a story about a {k}.",
                    "Make up a story about a {k}.", "Write a short story about a {k}.", "Give me a story about a {k}.", "Tell me about a {k} in a story.", "a {k} story"], k=kind)
    else:
        q = ask(r, ["Tell me a story.", "Write a story.", "A story, please.", "story", "Tell a story.", "Write a short story.", "I want to hear a story.", "Make up a story.", "Tell me a short story.", "Another story.", "Tell me a bedtime story."])
    # Heroes and friends have names of their own, so that a friend is never mistaken for the hero.
    hero, friend = r.choice(NAMES[:30]), r.choice(NAMES[30:60])
    other = r.choice([k for k in STORY_KINDS if k != kind])
    place, thing, color = r.choice(STORY_PLACES), r.choice(STORY_THINGS), r.choice(COLORS)
    text = (f"Once there was a {r.choice(STORY_TRAITS)} {kind} named {hero}. {hero} lived near the {place}. "
            f"One day {hero} found a {color} {thing}. {hero} showed the {thing} to {friend} the {other}. {r.choice(STORY_ENDS)}").replace(" a orange", " an orange").replace("a owl", "an owl")
    return pair(q, text)


STORY_PATTERN = (r"Once there was a (?:small|brave|shy|happy|clever|hungry|kind|lonely|curious|sleepy) (%(kind)s) named (?P<hero>[A-Z][a-z]+)\. "
                 r"(?P=hero) lived near the (?:" + "|".join(STORY_PLACES) + r")\. One day (?P=hero) found an? (?:" + "|".join(COLORS) + r") (?P<thing>" + "|".join(STORY_THINGS) +
                 r")\. (?P=hero) showed the (?P=thing) to (?!(?P=hero) )[A-Z][a-z]+ the (?!\1\.)(?:" + "|".join(STORY_KINDS) + r")\. (?:" + "|".join(re.escape(e) for e in STORY_ENDS) + r")")

TASKS = {"add": add, "subtract": subtract, "multiply": multiply, "compare": compare, "count": count, "sort": sort, "reverse": reverse, "spell": spell, "letters": letters, "weekday": weekday, "date": date, "unit": unit,
         "json": json_task, "upper": upper, "facts": facts, "reading": reading, "memory": memory, "chat": chat, "unknown": unknown, "story": story,
         "divide": divide, "extreme": extreme, "parity": parity, "neighbor": neighbor, "position": position, "rhyme": rhyme, "month": month, "time": time, "table": table, "follow": follow}

# What is trained and not asked for.
EXERCISES = {"recall": recall}

# Harder tasks get more of the mixture.
WEIGHTS = {"add": 8, "subtract": 12, "multiply": 11, "compare": 3.5, "count": 9, "sort": 6.5, "reverse": 4, "spell": 1.5, "letters": 9, "weekday": 9,
           "date": 2, "unit": 3, "json": 2, "upper": 4, "facts": 7, "reading": 16, "recall": 4, "memory": 4, "chat": 3, "unknown": 2.5, "story": 2,
           "divide": 0.9, "extreme": 0.6, "parity": 0.2, "neighbor": 0.3, "position": 0.8, "rhyme": 1.5, "month": 0.5, "time": 0.5, "table": 0.4, "follow": 1.5}

SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant", "You are a friendly assistant.", "Be brief.", "Answer briefly.", "You are Diffulex.", "Answer in one sentence.", "You are a tiny model.", "Be kind."]


def sample(r, weights=WEIGHTS):
    """One training conversation: a task, sometimes several in a row, sometimes under a system message."""
    names = list(weights)
    task = r.choices(names, [weights[n] for n in names])[0]
    every = TASKS | EXERCISES
    turns = every[task](r)
    while len(turns) <= 4 and r.random() < 0.12:
        turns = turns + every[r.choices(names, [weights[n] for n in names])[0]](r)
    while r.random() < 0.006:       # now and then a long chat, so that distant turns are nothing new
        for _ in range(6):
            turns = turns + every[r.choices(names, [weights[n] for n in names])[0]](r)
    if r.random() < 0.07:
        turns = [("system", r.choice(SYSTEMS))] + turns
    return turns


def prompt_key(turns):
    """Hash of a prompt that ignores case, spacing and punctuation, so that a noised twin counts as the same."""
    text = "\n".join(re.sub(r"[^a-z0-9+*/=-]", "", t.lower()) for _, t in turns)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
