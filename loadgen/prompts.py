"""Prompts of about a given length, in plain English that was written for this file.

Knows that a server may keep the blocks of a prefix it has seen: so every prompt differs from every other within its
first few words, and each run draws a new seed unless told one. Knows no tokeniser: lengths are estimates, the
server's `usage` is the truth.
"""

import random

TOKENS_PER_WORD = 1.3
"""English prose, punctuation included, with the usual vocabularies of 32,000 to 150,000 tokens."""

_OPENING_TOKENS = 14
"""What the numbers of the first line cost beyond `TOKENS_PER_WORD`: a digit is often a token of its own."""

_READERS = (
    "a ferry pilot", "a night nurse", "a beekeeper", "a piano tuner", "a retired surveyor", "a baker's apprentice",
    "a school librarian", "a bicycle courier", "a lighthouse painter", "a seed merchant", "a tram driver",
    "a watchmaker", "a shepherd", "a stage carpenter", "a river warden", "a bookbinder", "a weather observer",
)  # fmt: skip

_TOPICS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tides", (
        "The harbour empties twice a day and leaves the small boats leaning on their keels in the mud.",
        "The old table on the wall gives the hour of high water, but the wind can move it by forty minutes.",
        "At full moon the water climbs over the lowest step and wets the ropes that were coiled there.",
        "A fisherman told me that the sea is never late, only that people read the wrong line of the table.",
        "Two bays along the coast, the same tide arrives almost an hour after it reaches us.",
    )),
    ("bread", (
        "The dough that rose so well in the summer now sits in its bowl as if it had forgotten its work.",
        "I weigh the flour and the water each morning, and the figures have not changed since spring.",
        "The oven is as hot as it ever was, yet the crust comes out pale and rather thick.",
        "My teacher kept her starter in a jar by the stove and fed it before she fed the children.",
        "When I press the loaf with a finger, the dent stays for a long time before it fills.",
    )),
    ("bees", (
        "The hive by the south wall is loud in the afternoon and silent by the time the lamps are lit.",
        "On warm days the workers stand at the entrance and beat their wings without flying anywhere.",
        "I counted eleven frames of honey last year and only four this year, though the lime trees flowered well.",
        "A neighbour says that the queen is old and that the colony will soon choose another.",
        "There is a sweet smell near the boxes which was not there when the season began.",
    )),
    ("clocks", (
        "The clock in the hall loses three minutes a week in winter and gains one in July.",
        "Its pendulum is a plain rod of brass with a heavy disc that can be screwed up or down.",
        "I have oiled the bearings twice, and the tick has become softer but no more regular.",
        "My grandfather set it every Sunday by the noon gun and wrote the error in a small book.",
        "The book covers thirty years, and the error is never the same two weeks running.",
    )),
    ("bridges", (
        "The footbridge sways when the school lets out and three hundred children cross it together.",
        "Soldiers are told to break step on it, and a sign in faded paint still says so.",
        "An engineer came with a sensor and a notebook and walked up and down for a whole morning.",
        "The cables hum in a north wind, low at first, then a clear note that one can sing.",
        "Nobody has ever been hurt there, but people hold the rail without knowing why.",
    )),
    ("snow", (
        "The first snow of the year fell on wet ground and was gone before the shops opened.",
        "The second came in the night on frozen earth and stayed until the end of February.",
        "Under the pines the ground was bare, while a metre of drift lay against the barn.",
        "Sounds from the village reached us as if through a thick curtain, and some not at all.",
        "The children noticed that no two flakes on a dark sleeve were alike, and asked me who had checked.",
    )),
    ("maps", (
        "The oldest map of the valley shows a lake where there is now a row of poplars and a mill.",
        "Its north is not at the top, and the distances between the villages were counted in hours.",
        "A later sheet, drawn for the railway, leaves out every house that stood far from the line.",
        "I laid the two on a table by the window and tried to make the churches agree.",
        "Three of them did, and the fourth was off by the width of my thumb.",
    )),
    ("violins", (
        "The instrument was made in a cold workshop and sounds best, its owner says, on rainy evenings.",
        "There is a thin crack along the lower edge that was glued before anyone now living was born.",
        "When the third string is played loudly, something inside answers with a faint buzz.",
        "A maker in town tapped the back with a knuckle, listened, and asked for two weeks.",
        "The new bridge is one millimetre lower than the old one, and the player feels it at once.",
    )),
    ("trains", (
        "The slow train waits at the junction so that the express can pass, even when the express is early.",
        "The timetable was drawn by hand as a sheet of slanting lines, one for each train of the day.",
        "Where two lines cross on a single track, somebody must stand in a siding.",
        "The signalman knows by the sound of the rails which of the two will be first.",
        "On holidays an extra train runs, and every line on the sheet has to move a little.",
    )),
    ("gardens", (
        "The beans on the east side climbed to the top of their poles, and those on the west did not.",
        "Both rows had the same seed, the same water, and as far as I can tell the same earth.",
        "A hedge stands beyond the western row and keeps it in shadow until ten in the morning.",
        "Last year I planted onions there, and the year before that there was only grass.",
        "My neighbour swears by wood ash, and her neighbour swears at it.",
    )),
    ("rivers", (
        "The stream behind the mill is clear in the morning and brown by noon on the hottest days.",
        "Its bed is gravel above the weir and fine silt below, where the cattle come to drink.",
        "In spring the melt water brings branches, and once it brought a whole gate with its hinges.",
        "The trout stand in the shade of the bridge, all of them facing the current.",
        "We measured the flow with an orange and a stopwatch, which the children enjoyed.",
    )),
    ("libraries", (
        "The shelves were arranged by size until the new librarian came and arranged them by subject.",
        "For a month nobody could find anything, and then everybody found things they had not looked for.",
        "A card in the drawer for every book says who borrowed it and when it came back.",
        "The most borrowed title is a manual on the repair of pumps, in its ninth edition.",
        "Some books come back with a leaf or a tram ticket between the pages.",
    )),
    ("glass", (
        "The windows of the chapel are thicker at the bottom, and visitors are told that glass flows.",
        "A glazier showed me a pane that was thicker at the top, set by a careless hand.",
        "Colour was added by the spoonful: a little cobalt for blue, a little gold for red.",
        "When the furnace is opened the whole room leans away from it, people and all.",
        "The small drops that fall into the water bucket can be struck with a hammer and do not break.",
    )),
    ("sleep", (
        "I work every third week at night, and on the first free day I wake at the wrong hour.",
        "Dark curtains help, and so does a walk at sunrise, though I cannot say why.",
        "My brother sleeps through thunder and wakes when someone quietly says his name.",
        "The old advice was a warm room and a heavy supper, and the new advice is neither.",
        "After a week of short nights I make mistakes in sums that I could do as a child.",
    )),
    ("salt", (
        "The pans by the shore are flooded in May, closed off, and left to the sun and the wind.",
        "First the water turns green, then pink, and at last a white crust forms at the edges.",
        "The workers rake it before noon, because in the afternoon the crust sinks.",
        "Inland, a spring gives brine that was boiled over wood until the hills were bare.",
        "One old contract pays a carpenter for a whole winter in salt and candles.",
    )),
    ("birds", (
        "The swifts arrive on almost the same date each year and leave before the summer is over.",
        "A pair nested under our roof, though there was an easier place under the neighbour's.",
        "In the evening they fly in a screaming ring around the tower, and nobody knows what it is for.",
        "The ringed one came back three times, and the book says it had been to the other side of the equator.",
        "On the first cold morning of August the sky was empty.",
    )),
    ("paper", (
        "The mill made paper from rags, and a ragman came by cart every second Tuesday.",
        "Held against the light, each sheet shows the wires of its mould and a small anchor.",
        "Letters on it are as clear after two centuries as on the day they were sealed.",
        "The newspapers in the next box, printed ninety years ago, break when a page is turned.",
        "We were asked to choose which of the boxes should be copied first.",
    )),
    ("wells", (
        "The well in the square has never run dry, while the one by the school fails every August.",
        "They are eighty paces apart, and the ground between them is level.",
        "When the quarry pumped out its pit, the water in the square fell by the height of a child.",
        "An old man lowers a stone on a knotted cord each month and calls out the number of knots.",
        "The water tastes of iron, and the tea made with it is almost black.",
    )),
    ("kites", (
        "My kite flies steadily in a light wind and begins to circle as soon as the wind freshens.",
        "It is a plain diamond of cotton on two ash sticks, with a tail of knotted rags.",
        "A longer tail calms it, but then it will not rise in the morning.",
        "A boy on the beach has one without any tail, bent like a bow, and it stands still as a picture.",
        "He let me hold the line, and it pulled like a dog that has seen a cat.",
    )),
    ("markets", (
        "On Saturdays the price of cherries falls by the hour, and by noon it is half of what it was at eight.",
        "The first stall by the gate always sells dearer than the last one by the fountain.",
        "Rain empties the square and fills the baskets, and somebody has to carry the fruit home.",
        "One seller puts up no prices at all and asks each customer what seems fair.",
        "She tells me that she earns a little more that way, and sleeps a little worse.",
    )),
    ("stars", (
        "From the hill we saw the lamps of four towns and not one star below the belt of the hunter.",
        "When the power failed in October, the milky band stood over the church as if it had always been there.",
        "The children asked why the bright one near the roof did not twinkle like the rest.",
        "We turned the small telescope on it and saw a disc with two dark stripes and four points in a row.",
        "An hour later one of the four points was gone.",
    )),
    ("ink", (
        "The recipe asks for oak galls, green vitriol, gum and rain water, and for patience.",
        "Fresh from the bottle it writes a pale grey that darkens on the page within the hour.",
        "On cheap paper it spreads along the fibres, and on vellum it hardly sinks in at all.",
        "Too much vitriol, and in a hundred years the letters fall out of the page like cut stencils.",
        "The monks knew this, the clerks forgot it, and the archive pays for it now.",
    )),
    ("ropes", (
        "The walk where the ropes were made is four hundred paces long and as straight as a ruled line.",
        "Three strands are twisted one way and laid together the other way, so that each holds the others shut.",
        "A wet rope is stronger than a dry one, or weaker, depending on what it was made of.",
        "The knots that the riggers use come loose at a pull and never before.",
        "At the end of the walk there is a hook, worn thin on the inner side.",
    )),
    ("echoes", (
        "In the quarry a shout comes back twice, and the second time it is only the vowels.",
        "If I clap while walking backwards, there is a place where the echo vanishes.",
        "The chapel next door is half the size and holds a note for five full seconds.",
        "Curtains were hung for a wedding, and the choir complained that it could not hear itself.",
        "My daughter asks whether an echo can have an echo, and how many.",
    )),
)  # fmt: skip

_TASKS = (
    "Explain what is most likely going on here, step by step.",
    "Write back with the three questions that you would ask before giving any advice.",
    "Say in plain words what the writer should try first, and why.",
    "Continue this in the same voice, and let something unexpected happen.",
    "Summarise this for somebody who has only a minute.",
    "List what can be concluded from this, and what only seems to follow.",
    "Turn this into a short talk for curious children.",
    "Argue the other side as well as you can.",
    "Describe an experiment that would settle the matter.",
)


def prompt(seed: int, index: int, tokens: int) -> str:
    """The prompt number `index` of a run with that `seed`: always the same text for the same three arguments.

    About `tokens` tokens long, before the server's chat template; never shorter than its first line and its question
    (about 45). Two prompts of different `seed` or `index` differ within their second word.
    """
    draw = random.Random(f"{seed}/{index}")
    first = (index + seed) % len(_TOPICS)
    topic, own = _TOPICS[first]
    opening = f"Letter {index}-{seed}, about {topic}, from {draw.choice(_READERS)}:"
    task = draw.choice(_TASKS)
    words_left = (tokens - _OPENING_TOKENS) / TOKENS_PER_WORD - len(opening.split()) - len(task.split())
    body: list[str] = []
    shelf: list[str] = []
    while words_left > 0:
        if not shelf:  # at first the letter's own topic, then whatever the others have to say, as often as it takes
            shelf = draw.sample(own, len(own)) if not body else _every_sentence(draw)
        sentence = shelf.pop()
        words = len(sentence.split())
        if words_left < words / 2:
            break
        body.append(sentence)
        words_left -= words
    return " ".join([opening, *body, task])


def _every_sentence(draw: random.Random) -> list[str]:
    sentences = [sentence for _, passage in _TOPICS for sentence in passage]
    draw.shuffle(sentences)
    return sentences
