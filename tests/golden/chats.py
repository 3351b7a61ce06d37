"""Chats to fine-tune on: chats/train.jsonl and chats/held-out.jsonl.

    python tests/golden/chats.py

An assistant called Tally answers questions of six kinds, each in one line of JSON with the same keys in the same order:
what the question is about, what was given in its shortest form, the answer, and whether that is exact. No model
has seen that form; what goes into it is general knowledge or stands in the question. Whatever is asked about (a
country, an element, a word, an amount, a time) is either in the one file or in the other, so that a lower loss on
the second is the form learnt, not answers remembered.
"""

import json
from pathlib import Path

HERE = Path(__file__).parent / "chats"
# One in so many is held out.
HELD_OUT = 7

CAPITALS = """
Argentina Buenos Aires|Australia Canberra|Austria Vienna|Belgium Brussels|Brazil Brasília|Bulgaria Sofia
|Cambodia Phnom Penh|Canada Ottawa|Chad N'Djamena|Chile Santiago|China Beijing|Colombia Bogotá|Croatia Zagreb|Cuba Havana
|Cyprus Nicosia|Denmark Copenhagen|Ecuador Quito|Egypt Cairo|Estonia Tallinn|Ethiopia Addis Ababa|Fiji Suva|Finland Helsinki
|France Paris|Georgia Tbilisi|Germany Berlin|Ghana Accra|Greece Athens|Haiti Port-au-Prince|Hungary Budapest
|Iceland Reykjavik|India New Delhi|Indonesia Jakarta|Iran Tehran|Iraq Baghdad|Ireland Dublin|Italy Rome|Jamaica Kingston
|Japan Tokyo|Jordan Amman|Kenya Nairobi|Laos Vientiane|Latvia Riga|Lebanon Beirut|Libya Tripoli|Lithuania Vilnius
|Malta Valletta|Mexico Mexico City|Mongolia Ulaanbaatar|Morocco Rabat|Nepal Kathmandu|Nigeria Abuja|Norway Oslo
|Oman Muscat|Pakistan Islamabad|Panama Panama City|Peru Lima|Poland Warsaw|Portugal Lisbon|Qatar Doha|Romania Bucharest
|Russia Moscow|Rwanda Kigali|Senegal Dakar|Serbia Belgrade|Slovakia Bratislava|Slovenia Ljubljana|Spain Madrid
|Sudan Khartoum|Sweden Stockholm|Syria Damascus|Thailand Bangkok|Tunisia Tunis|Turkey Ankara|Uganda Kampala
|Ukraine Kyiv|Uruguay Montevideo|Vietnam Hanoi|Zambia Lusaka|Zimbabwe Harare
"""

ELEMENTS = """
hydrogen H 1|helium He 2|lithium Li 3|beryllium Be 4|boron B 5|carbon C 6|nitrogen N 7|oxygen O 8|fluorine F 9|neon Ne 10
|sodium Na 11|magnesium Mg 12|aluminium Al 13|silicon Si 14|phosphorus P 15|sulfur S 16|chlorine Cl 17|argon Ar 18
|potassium K 19|calcium Ca 20|scandium Sc 21|titanium Ti 22|vanadium V 23|chromium Cr 24|manganese Mn 25|iron Fe 26
|cobalt Co 27|nickel Ni 28|copper Cu 29|zinc Zn 30|gallium Ga 31|germanium Ge 32|arsenic As 33|selenium Se 34
|bromine Br 35|krypton Kr 36|rubidium Rb 37|strontium Sr 38|zirconium Zr 40|molybdenum Mo 42|silver Ag 47|cadmium Cd 48
|tin Sn 50|antimony Sb 51|iodine I 53|xenon Xe 54|barium Ba 56|tungsten W 74|platinum Pt 78|gold Au 79|mercury Hg 80
|lead Pb 82|bismuth Bi 83|radon Rn 86|radium Ra 88|uranium U 92
"""

OPPOSITES = """
hot cold|early late|full empty|heavy light|open closed|rough smooth|loud quiet|near far|deep shallow|young old|fast slow
|high low|wide narrow|clean dirty|dry wet|hard soft|thick thin|rich poor|brave cowardly|cheap expensive|ancient modern
|arrive depart|accept refuse|begin end|borrow lend|build destroy|buy sell|enter leave|expand shrink|find lose|forget remember
|give take|increase decrease|laugh cry|love hate|pull push|rise fall|save spend|win fail|ask reply|above below
|always never|inside outside|left right|before after|north south|day night|summer winter|friend enemy|victory defeat
|question answer|truth lie|entrance exit|success failure|top bottom|war peace
"""

# Words to sort, in sets of four.
WORDS = """
pear anchor violet harbor candle meadow copper thunder basket ribbon lantern orchard pebble garnet saddle window feather
kettle island marble needle olive parrot quilt rocket spoon turtle umbrella valley walnut yarn zebra acorn bridge cactus
dragon ember forest glove hammer icicle jacket kitten ladder magnet napkin oyster pencil quiver raisin shovel tunnel urchin
vessel whistle yogurt zipper almond beacon cradle dolphin engine falcon ginger helmet insect jungle kernel lemon mitten
nectar otter piano quartz river silver tomato unicorn velvet wagon barrel cabin dagger fiddle goblet hinge ivory jigsaw
ketchup lobster mustard nutmeg onion paddle radish sailor timber vinegar willow anvil bonnet cherry donkey easel fossil gravel
hazel ink jewel kayak lilac moth noodle oak puddle rope sponge teapot
"""

# From, to, the factor, and digits after the point.
UNITS = [
    ("miles", "kilometres", 1.609344, 1),
    ("inches", "centimetres", 2.54, 1),
    ("feet", "metres", 0.3048, 2),
    ("pounds", "kilograms", 0.45359237, 1),
    ("ounces", "grams", 28.349523, 0),
    ("litres", "US gallons", 0.26417205, 1),
]
AMOUNTS = [2, 3, 5, 7, 8, 10, 12, 15, 18, 20, 24, 25, 30, 36, 40, 45, 60, 75]

HOURS = "twelve one two three four five six seven eight nine ten eleven".split()
PAST = {0: "{} o'clock", 5: "five past {}", 10: "ten past {}", 15: "a quarter past {}", 20: "twenty past {}", 30: "half past {}"}
TO = {35: "twenty-five to {}", 40: "twenty to {}", 45: "a quarter to {}", 50: "ten to {}", 55: "five to {}"}

ASK = {
    "capital": [
        "What is the capital of {}?",
        "Which city is the capital of {}?",
        "Capital of {}?",
        "Can you tell me the capital city of {}?",
        "I need the capital of {} for a form.",
    ],
    "element": [
        "What is the chemical symbol of {}?",
        "Give me the symbol and the atomic number of {}.",
        "Where is {} in the periodic table?",
        "Symbol for {}, please.",
    ],
    "opposite": [
        "What is the opposite of {}?",
        "Which word means the opposite of {}?",
        "Opposite of {}?",
        "Tell me the antonym of {}.",
    ],
    "order": [
        "Sort these words: {}.",
        "Put {} in alphabetical order.",
        "Which order do {} have in a dictionary?",
        "Please alphabetise {}.",
    ],
    "measure": [
        "How many {1} are {0}?",
        "Convert {0} to {1}.",
        "What are {0} in {1}?",
        "{0} in {1}, please.",
        "The plan says {0}. I think in {1}.",
    ],
    "clock": [
        "How do you say {} in words?",
        "Read out the time {}.",
        "It is {}. How would you say that?",
        "Write the time {} in words.",
    ],
}


def entries(table):
    return [entry.strip() for entry in table.replace("\n", " ").split("|")]


def spoken(hour, minute):
    table = PAST if minute in PAST else TO
    return table[minute].format(HOURS[(hour + (minute in TO)) % 12])


def questions():
    """Groups by kind, of which one is in one file: of each question the words that it is asked with, what is given in
    short, the answer, and whether it is exact."""
    capitals = [entry.partition(" ")[::2] for entry in entries(CAPITALS)]
    elements = [entry.split() for entry in entries(ELEMENTS)]
    opposites = [entry.split() for entry in entries(OPPOSITES)]
    words = WORDS.split()
    sets = [words[i : i + 4] for i in range(0, len(words) - 3, 4)]
    orders = [[[w[2], w[0], w[3], w[1]], [w[1], w[3], w[0]]] for w in sets]
    measures = []
    for i in range(14):
        for j, (unit, to, factor, digits) in enumerate(UNITS):
            amount = AMOUNTS[(5 * i + j) % len(AMOUNTS)]
            value = f"{amount * factor:.{digits}f}"
            exact = abs(float(value) - amount * factor) < 1e-9
            measures.append([([f"{amount} {unit}", to], f"{amount} {unit}", f"{value} {to}", exact)])
    times = [(hour, minute) for hour in range(1, 13) for minute in sorted(PAST | TO)][::2]
    return {
        "capital": [[([c], c, city, True)] for c, city in capitals],
        "element": [[([name], name, f"{symbol}, {number}", True)] for name, symbol, number in elements],
        "opposite": [[([word], word, other, True)] for word, other in opposites],
        "order": [[([", ".join(w)], ", ".join(w), ", ".join(sorted(w)), True) for w in two] for two in orders],
        "measure": measures,
        "clock": [[([f"{h}:{m:02}"], f"{h}:{m:02}", spoken(h, m), True)] for h, m in times],
    }


def chat(kind, number, words, given, answer, exact):
    ask = ASK[kind][number % len(ASK[kind])].format(*words)
    reply = json.dumps({"about": kind, "given": given, "answer": answer, "exact": exact}, ensure_ascii=False)
    turns = [("system", "You are Tally."), ("user", ask[0].upper() + ask[1:]), ("assistant", reply)]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def main():
    HERE.mkdir(exist_ok=True)
    files = {"train": [], "held-out": []}
    asked = {name: set() for name in files}
    for kind, groups in questions().items():
        for number, group in enumerate(groups):
            name = "held-out" if number % HELD_OUT == HELD_OUT - 1 else "train"
            for words, given, answer, exact in group:
                files[name].append(chat(kind, len(files[name]), words, given, answer, exact))
                asked[name].update(given.split(", ") if kind == "order" else [given])
    both = asked["train"] & asked["held-out"]
    assert not both, f"in both files: {both}"
    for name, chats in files.items():
        lines = [json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats]
        (HERE / f"{name}.jsonl").write_text("".join(lines))
        print(f"{name}: {len(chats)} chats")


if __name__ == "__main__":
    main()
