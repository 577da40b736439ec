"""Closed lists of facts and names from which the curriculum draws.

Everything here is common knowledge written out by hand, so the data carries no
licence question. Names and places are kept numerous on purpose: a reading task
over five names is memorised, one over a hundred has to be solved by copying.
"""

NAMES = """Tom Anna Ben Mia Leo Zoe Max Eva Sam Lily Jack Emma Noah Ruby Finn Clara Hugo Ivy Oscar Nina
Paul Sara Luke Rosa Adam Julia Mark Alice Peter Maya Liam Ella Omar Lena Ravi Tara Kai Nora Ali Yuki
Ana Marco Elsa Felix Greta Ivan Jane Karl Lucy Milo Nadia Otto Pia Quinn Rita Simon Tina Uma Victor Wendy
Amir Bella Carlos Diana Erik Fatima Gina Henry Ines Jonas Kate Lars Maria Nick Olga Pedro Rose Stefan Theo Vera
Will Yara Zack Abby Bruno Cora David Elena Frank Grace Harry Isla James Kim Laura Mike Nancy Oliver Polly John
Mary Bob Sue Joe Amy Dan Meg Tim Kelly Sophie Chris Alex Robin""".split()

PLACES = """kitchen garden park school library garage attic office bakery museum forest barn cellar tower station
market harbor hotel castle church cinema gym hospital bank shop farm bedroom bathroom hallway balcony cave
tent village stadium zoo theater playground cafe river house beach pool lake mountain train bus boat""".split()

OBJECTS = """ball book key lamp cup hat kite map drum ring box coin shoe bag bell clock pen phone apple cake
umbrella camera guitar ladder basket candle letter mirror pillow rope spoon ticket wallet scarf""".split()

COLORS = "red blue green yellow black white brown pink orange purple gray silver golden".split()

ANIMALS = """cat dog fox bear owl rabbit mouse horse frog duck wolf lion tiger goat hen turtle hedgehog squirrel
deer crow bee dragon penguin otter badger""".split()

FOODS = "pizza soup rice pasta bread cheese salad honey cake fish apples noodles pancakes tacos beans".split()

MONTHS = """January February March April May June July August September October November December""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome", "Portugal": "Lisbon",
    "England": "London", "Ireland": "Dublin", "Scotland": "Edinburgh", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Poland": "Warsaw", "Austria": "Vienna",
    "Hungary": "Budapest", "Greece": "Athens", "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv",
    "Japan": "Tokyo", "China": "Beijing", "India": "Delhi", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasilia", "Argentina": "Buenos Aires",
    "Chile": "Santiago", "Peru": "Lima", "Cuba": "Havana", "Australia": "Canberra", "Belgium": "Brussels",
    "Switzerland": "Bern", "Netherlands": "Amsterdam", "Iceland": "Reykjavik", "Romania": "Bucharest",
    "Bulgaria": "Sofia", "Croatia": "Zagreb", "Serbia": "Belgrade", "Thailand": "Bangkok", "Vietnam": "Hanoi",
    "Korea": "Seoul", "Iran": "Tehran", "Iraq": "Baghdad", "Colombia": "Bogota", "Morocco": "Rabat",
    "America": "Washington",
}
# Asked about, but never answered: they teach the honest answer right at the border of what is known.
UNKNOWN_COUNTRIES = """Mongolia Bhutan Fiji Samoa Malta Cyprus Latvia Estonia Lithuania Albania Armenia Georgia Nepal
Laos Cambodia Malaysia Indonesia Philippines Taiwan Oman Yemen Qatar Syria Jordan Lebanon Libya Tunisia Algeria
Sudan Ethiopia Somalia Uganda Tanzania Zambia Angola Ghana Nigeria Senegal Mali Chad Gabon Bolivia Paraguay Uruguay
Ecuador Venezuela Guyana Panama Honduras Jamaica Haiti Atlantis Narnia Mars Texas California Bavaria""".split()

OPPOSITES = """hot cold|big small|up down|left right|day night|fast slow|old young|happy sad|open closed|wet dry
light dark|hard soft|loud quiet|full empty|rich poor|early late|good bad|high low|long short|near far|strong weak
thick thin|clean dirty|black white|in out|on off|first last|push pull|begin end|win lose|love hate|yes no|new old
heavy light|above below|before after|inside outside|same different|true false|wide narrow|deep shallow|sweet sour
buy sell|give take|alive dead|cheap expensive|easy difficult|sharp blunt|brave afraid|north south|east west
summer winter|laugh cry|remember forget|arrive leave|awake asleep|simple complex|smooth rough|tall short"""
OPPOSITE = {}
for pair in OPPOSITES.replace("\n", "|").split("|"):
    a, b = pair.split()
    OPPOSITE.setdefault(a, b)
    OPPOSITE.setdefault(b, a)

PLURALS = dict(p.split() for p in """mouse mice|child children|man men|woman women|foot feet|tooth teeth|goose geese
person people|leaf leaves|knife knives|wolf wolves|wife wives|city cities|baby babies|box boxes|bus buses|fox foxes
cat cats|dog dogs|book books|house houses|car cars|tree trees|apple apples|key keys|boy boys|girl girls|lady ladies
story stories|party parties|potato potatoes|tomato tomatoes|hero heroes|sheep sheep|fish fish|deer deer|shelf shelves
half halves|life lives|glass glasses|dish dishes|watch watches|church churches|ox oxen|berry berries|day days
toy toys|bird birds|flower flowers|chair chairs|cup cups|hat hats|horse horses|friend friends|country countries
family families|puppy puppies|wish wishes|loaf loaves|thief thieves|bench benches|brush brushes""".replace("\n", "|").split("|"))

YOUNG = dict(p.split() for p in """cat kitten|dog puppy|cow calf|horse foal|sheep lamb|pig piglet|goat kid|hen chick
duck duckling|goose gosling|bear cub|lion cub|deer fawn|frog tadpole|owl owlet|kangaroo joey|fox cub|swan cygnet
rabbit bunny|wolf pup|seal pup|tiger cub|eagle eaglet|whale calf|elephant calf""".replace("\n", "|").split("|"))

SYMBOLS = dict(p.split() for p in """gold Au|silver Ag|iron Fe|copper Cu|oxygen O|hydrogen H|carbon C|nitrogen N
helium He|neon Ne|sodium Na|lead Pb|tin Sn|zinc Zn|mercury Hg|sulfur S|calcium Ca|potassium K|chlorine Cl|iodine I
aluminum Al|silicon Si|uranium U|nickel Ni""".replace("\n", "|").split("|"))

SOUNDS = dict(p.split() for p in """cow moo|cat meow|dog woof|duck quack|sheep baa|pig oink|horse neigh|lion roar
owl hoot|bee buzz|snake hiss|frog ribbit|crow caw|mouse squeak|wolf howl""".replace("\n", "|").split("|"))

LEGS = {"spider": 8, "ant": 6, "bee": 6, "dog": 4, "cat": 4, "cow": 4, "horse": 4, "bird": 2, "duck": 2,
        "human": 2, "snake": 0, "fish": 0, "crab": 10, "octopus": 8, "fly": 6, "lion": 4}

RHYMES = """cat hat bat mat rat|dog log fog frog|sun run fun bun|tree bee sea key|moon spoon noon soon|star car jar far
cake lake snake make|house mouse|ring king sing wing|boat goat coat|night light kite bright|ball tall wall fall
rain train chain|day play say way|book cook look hook|bed red head bread|pen hen ten men|box fox socks|snow go toe
nose rose hose|bear chair hair pear|clock sock rock lock|sky fly pie cry|blue shoe zoo two|hill bill mill pill
bell well shell tell|sand hand land band|pot hot dot|wig pig big dig|top hop shop mop|duck truck luck
door four floor more|park dark shark|love dove glove|song long strong|time lime rhyme|ship trip lip
nest best west rest|mice rice dice nice|wood good""".replace("\n", "|").split("|")
RHYMES = [group.split() for group in RHYMES]

# from, to, factor, largest count asked
UNITS = [("m", "cm", 100, 50), ("km", "m", 1000, 50), ("cm", "mm", 10, 99), ("kg", "g", 1000, 50),
         ("hours", "minutes", 60, 20), ("minutes", "seconds", 60, 20), ("weeks", "days", 7, 20),
         ("days", "hours", 24, 10), ("years", "months", 12, 12), ("feet", "inches", 12, 12),
         ("liters", "ml", 1000, 50), ("dollars", "cents", 100, 50), ("yards", "feet", 3, 30), ("tons", "kg", 1000, 50)]
UNIT_NAMES = {"m": ["m", "meters", "metres"], "cm": ["cm", "centimeters"], "km": ["km", "kilometers"],
              "mm": ["mm", "millimeters"], "kg": ["kg", "kilograms", "kilos"], "g": ["g", "grams"],
              "ml": ["ml", "milliliters"], "liters": ["liters", "l", "litres"]}
