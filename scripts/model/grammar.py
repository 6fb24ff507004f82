"""The language of the default model: short documents whose probability is known exactly.

Every document is made by uniform or weighted choices, and each choice adds its own -log p. No text
can be made in two ways (`derivations` checks it), so the sum is exactly -log P(document): the loss
that a perfect model would have, and the yardstick for a trained one.

A document is one line. It is written from left to right, and a choice is made just before the words
that show it, as far as that is possible: the search in `derivations` stays small, and the text
reads as a model has to predict it.

    python3 grammar.py 5 --seed 1        prints five documents with their family and entropy
"""

import argparse
import math
import random

GIRLS = "Lily Mia Anna Rose Lucy Sue".split()
BOYS = "Tom Ben Max Sam Leo Tim".split()
ANIMALS = "cat dog rabbit bear fox bird mouse frog".split()
TRAITS = "little kind brave young happy clever".split()
PLACES = "forest river lake hill garden farm village park".split()
HOBBIES = "sing dance swim run read play draw climb".split()
WEATHERS = "sunny rainy windy cold warm".split()
TIMES = "morning day evening".split()
COLOURS = "red blue green yellow white black pink brown".split()
OBJECTS = "ball hat box book kite boat bell cup ring key".split()
SPOTS = ["under a tree", "in the grass", "by the water", "on the path", "behind a rock"]
FEELINGS = "happy glad proud surprised".split()
REQUESTS = ["May I see the {}?", "May I play with the {}?", "What a nice {}!", "I like your {}!"]
UNTIL = ["all day", "until night", "until the moon came up", "for a long time"]
ENDINGS = [
    "They became good friends.",
    "From that day on, they were best friends.",
    "Then they went home and slept well.",
    "They were happy and laughed.",
    "And they lived happily ever after.",
]

KEY_INTRO = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there."
)
KEY_BLOCK = (
    " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
KEY_QUESTION = " What is the pass key? The pass key is "
KEY_DIGITS = 5
THINGS = OBJECTS[:9] + PLACES[:7] + ANIMALS[:4]
QUALITIES = COLOURS + "big small old new wet dry soft nice warm cold good bad".split()

COPY_WORDS = ANIMALS + COLOURS + OBJECTS[:8] + PLACES[:8]

GENERAL_FACTS = (
    [
        (f"What colour is {thing}?", colour)
        for thing, colour in [
            ("the grass", "green"), ("the sky", "blue"), ("the sun", "yellow"), ("snow", "white"),
            ("the night", "black"), ("a rose", "red"), ("a pig", "pink"), ("a bear", "brown"),
        ]
    ]
    + [
        (f"What does a {animal} say?", sound)
        for animal, sound in [
            ("cat", "meow"), ("dog", "woof"), ("cow", "moo"), ("pig", "oink"), ("frog", "croak"),
            ("bird", "tweet"), ("mouse", "squeak"),
        ]
    ]
    + [
        (f"What is the opposite of {word}?", other)
        for word, other in [
            ("big", "small"), ("old", "new"), ("wet", "dry"), ("warm", "cold"), ("good", "bad"),
            ("day", "night"), ("black", "white"), ("happy", "sad"), ("up", "down"), ("yes", "no"),
        ]
    ]
    + [
        (f"What comes after {one}?", other)
        for one, other in [
            ("Monday", "Tuesday"), ("Tuesday", "Wednesday"), ("Wednesday", "Thursday"),
            ("Thursday", "Friday"), ("Friday", "Saturday"), ("Saturday", "Sunday"),
            ("Sunday", "Monday"), ("morning", "evening"), ("evening", "night"),
            ("one", "two"), ("two", "three"), ("three", "four"),
        ]
    ]
    + [
        (f"Where does a {animal} live?", home)
        for animal, home in [
            ("fish", "in the sea"), ("bird", "in a nest"), ("bear", "in the forest"),
            ("cow", "on a farm"), ("frog", "in a lake"), ("bee", "in a hive"),
            ("mouse", "in a hole"), ("fox", "in a den"),
        ]
    ]
)
SUMS = [(a, b) for a in range(10) for b in range(10)]


class Document:
    """A document under construction: its text so far and the entropy of the choices behind it."""

    def __init__(self, rng):
        self.rng, self.text, self.nats = rng, "", 0.0

    def choose(self, n, weights):
        """The index of one of n options; derivations() replaces the dice by an enumeration."""
        return self.rng.choices(range(n), weights)[0]

    def pick(self, options, weights=None):
        i = self.choose(len(options), weights)
        self.nats -= math.log(weights[i] / sum(weights) if weights else 1 / len(options))
        return options[i]

    def say(self, text):
        self.text += text

    def say_one(self, options, weights=None):
        option = self.pick(options, weights)
        self.say(option)
        return option

    def say_number(self, n_digits):
        return "".join(self.say_one("0123456789") for _ in range(n_digits))

    def say_distinct(self, options, n, separator):
        """n different options; returns them in the order said."""
        said = []
        for i in range(n):
            self.say(separator if i else "")
            said.append(self.say_one([o for o in options if o not in said]))
        return said


def say_character(d, but=None):
    """Says "little fox named Tom" with any name but the given one; returns the name."""
    d.say_one(TRAITS)
    d.say(" ")
    kind = d.say_one(["girl", "boy"] + ANIMALS)
    d.say(" named ")
    names = {"girl": GIRLS, "boy": BOYS}.get(kind, GIRLS + BOYS)
    return d.say_one([name for name in names if name != but])


def story(d):
    """A character, an object, a meeting, an end, and up to two questions about them."""
    d.say_one(["Once upon a time, ", "Long ago, ", "Far away, "], [0.7, 0.2, 0.1])
    if d.pick([True, False]):
        d.say("there was a ")
        name = say_character(d)
        he = "He" if name in BOYS else "She"
        d.say(f". {he}")
    else:
        d.say("a ")
        name = say_character(d)
        he = "He" if name in BOYS else "She"
    d.say(" lived near the ")
    home = d.say_one(PLACES)
    d.say(f". {he} ")
    d.say_one(["loved", "liked"])
    d.say(" to ")
    d.say_one(HOBBIES)
    d.say(". One ")
    d.say_one(WEATHERS)
    d.say(" ")
    d.say_one(TIMES)
    d.say(f", {name} ")
    found = d.pick([True, False])
    others = [place for place in PLACES if place != home]
    if found:
        d.say("went to the ")
        place = d.say_one(others)
        d.say(" and found a ")
        colour = d.say_one(COLOURS)
        d.say(" ")
        thing = d.say_one(OBJECTS)
        d.say(" ")
        d.say_one(SPOTS)
    else:
        d.say("took a ")
        colour = d.say_one(COLOURS)
        d.say(" ")
        thing = d.say_one(OBJECTS)
        d.say(" to the ")
        place = d.say_one(others)
    d.say(f". {he} was very ")
    d.say_one(FEELINGS)
    d.say(f". Then {he.lower()} met a ")
    friend = say_character(d, but=name)
    d.say('. "')
    d.say_one([request.format(thing) for request in REQUESTS])
    d.say(f'" said {friend}. ')
    if d.pick([True, False], [0.7, 0.3]):
        d.say(f'"Yes, let us play," said {name}. They played with the {thing} ')
        d.say_one(UNTIL)
    else:
        d.say(f'"No, it is mine," said {name}. {friend} was sad. So {name} said sorry and ')
        d.say_one([f"gave the {thing} to {friend}", f"let {friend} play with the {thing}"])
    d.say(". ")
    d.say_one(ENDINGS)
    questions = [
        (f"Who {'found' if found else 'took'} the {thing}?", name),
        (f"What colour was the {thing}?", colour),
        (f"Which place did {name} live near?", f"the {home}"),
        (f"Which place did {name} go to?", f"the {place}"),
        (f"Who did {name} meet?", friend),
    ]
    for _ in range(d.pick([0, 1, 2], [0.4, 0.3, 0.3])):
        question, answer = d.pick(questions)
        questions.remove((question, answer))
        d.say(f" Question: {question} Answer: {answer}.")


def passkey(d):
    """A five-digit key inside blocks of filler, and the question for it."""
    d.say(KEY_INTRO)
    n_blocks = d.pick(range(1, 8))
    known = d.pick([True, False], [0.6, 0.4])
    before = d.pick(range(n_blocks + 1))
    for block in range(n_blocks + 1):
        if block == before:
            d.say(" The pass key is ")
            key = d.say_number(KEY_DIGITS)
            d.say(f". Remember it. {key} is the pass key.")
        if block < n_blocks:
            say_block(d, known)
    d.say(f"{KEY_QUESTION}{key}.")


def say_block(d, known):
    if known:
        d.say(KEY_BLOCK)
        return
    for _ in range(5):
        d.say(" The ")
        d.say_one(THINGS)
        d.say(" is ")
        d.say_one(QUALITIES)
        d.say(".")


def codes(d):
    """A list of animals with their codes, then some of the codes again."""
    d.say("The codes are ")
    n = d.pick(range(2, 7))
    code = {}
    for i in range(n):
        d.say(", " if i else "")
        animal = d.say_one([a for a in ANIMALS if a not in code])
        d.say(" ")
        code[animal] = d.say_number(4)
    asked = []
    for _ in range(d.pick([1, 2])):
        d.say(". Say the code of the ")
        asked.append(d.say_one([a for a in code if a not in asked]))
        d.say(f": {asked[-1]} {code[asked[-1]]}")
    d.say(".")


def copy(d):
    """A line of words or of digits, twice."""
    d.say("Copy: ")
    if d.pick([True, False]):
        line = " ".join(d.say_distinct(COPY_WORDS, d.pick(range(3, 11)), " "))
    else:
        line = d.say_number(d.pick(range(4, 13)))
    d.say(f". Copy: {line}.")


def facts(d):
    """One to five questions of general knowledge and sums."""
    for i in range(d.pick(range(1, 6))):
        d.say(" Question: " if i else "Question: ")
        if d.pick([True, False]):
            question, answer = d.pick(GENERAL_FACTS)
        else:
            a, b = d.pick(SUMS)
            question, answer = f"What is {a} plus {b}?", a + b
        d.say(f"{question} Answer: {answer}.")


FAMILIES = {story: 0.40, passkey: 0.20, codes: 0.15, copy: 0.15, facts: 0.10}


def write_document(d):
    """Writes a document into d; returns the name of its family."""
    family = d.pick(list(FAMILIES), list(FAMILIES.values()))
    family(d)
    d.say("\n")
    return family.__name__


def document(rng):
    """Returns (family, text, nats) of a random document; nats is exactly -log P(text)."""
    d = Document(rng)
    family = write_document(d)
    return family, d.text, d.nats


class Mismatch(Exception):
    """The document being enumerated left the given text."""


class Enumeration(Document):
    """A document that must be the given text; it follows a path of choices, then the first ones."""

    def __init__(self, target, path):
        super().__init__(None)
        self.target, self.path, self.widths = target, path, []

    def choose(self, n, weights):
        step = len(self.widths)
        self.widths.append(n)
        return self.path[step] if step < len(self.path) else 0

    def say(self, text):
        super().say(text)
        if not self.target.startswith(self.text):
            raise Mismatch


def derivations(text):
    """Every way to make the text, as a list of entropies; found by exhaustive search."""
    found, path = [], []
    while True:
        d = Enumeration(text, path)
        try:
            write_document(d)
            if d.text == text:
                found.append(d.nats)
        except Mismatch:
            pass
        path = path + [0] * (len(d.widths) - len(path))
        while path and path[-1] + 1 == d.widths[len(path) - 1]:
            path.pop()
        if not path:
            return found
        path[-1] += 1


def main():
    parser = argparse.ArgumentParser(description="print random documents")
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for _ in range(args.n):
        family, text, nats = document(rng)
        print(f"[{family}, {nats:.2f} nats] {text}", end="")


if __name__ == "__main__":
    main()
