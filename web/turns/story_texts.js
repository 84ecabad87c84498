// What the customers A, B and C of a laptop shop write: English from a small stock of words, about one token a word.
//
// Different each time, from its first words on, because what a server has read before it need not read again (the prefix cache).

const NAMES = ["Maple", "River", "Stone", "Harbor", "Cloud", "Summit", "Garden", "Valley", "Copper", "Silver", "Forest", "Ocean"];
const QUALITIES = ["light", "bright", "quiet", "fast", "simple", "strong", "small", "large", "cheap", "fine", "modern", "solid", "thin"];
const PARTS = ["screen", "battery", "keyboard", "body", "camera", "fan", "memory", "processor", "price", "speaker", "cover", "case"];
const USES = ["college", "travel", "video", "music", "games", "work", "school", "photos", "writing", "drawing", "code", "family"];
const TIMES = ["all day", "for hours", "every evening", "on the train", "in class", "at home", "in the field", "at night"];

const SENTENCES = [
  (pick) => `The ${pick(NAMES)} has a ${pick(QUALITIES)} ${pick(PARTS)} and a ${pick(QUALITIES)} ${pick(PARTS)} for ${pick(USES)}.`,
  (pick) => `Its ${pick(PARTS)} is ${pick(QUALITIES)}, and the ${pick(PARTS)} works ${pick(TIMES)}.`,
  (pick) => `People who do ${pick(USES)} say that the ${pick(NAMES)} feels ${pick(QUALITIES)} and stays ${pick(QUALITIES)} ${pick(TIMES)}.`,
  (pick) => `Beside the ${pick(NAMES)} the ${pick(NAMES)} looks ${pick(QUALITIES)}, but its ${pick(PARTS)} is less ${pick(QUALITIES)}.`,
  (pick) => `We sell it with a ${pick(QUALITIES)} ${pick(PARTS)} and one year of service.`,
];
const ASKED = [
  (pick) => `Is the ${pick(NAMES)} good for ${pick(USES)}, or is the ${pick(NAMES)} better?`,
  (pick) => `How is the ${pick(PARTS)} of the ${pick(NAMES)} when I use it ${pick(TIMES)}?`,
  (pick) => `I do ${pick(USES)} and some ${pick(USES)}; which one has the most ${pick(QUALITIES)} ${pick(PARTS)}?`,
];
const TEMPLATE_TOKENS = 5; // that a usual chat template puts around each message

const QUESTIONS = {
  A: "Which laptop should I buy for college?",
  B: "Please compare all of these laptops in detail, with what we said before, and say which one I should buy and why.",
  C: "Which laptop should I buy to edit video?",
};

/** The messages of one request of about `tokens` tokens. `random` gives numbers from 0 to below 1. */
export function messagesOf(letter, tokens, random = Math.random) {
  const pick = (list) => list[Math.floor(random() * list.length)];
  const greeting = `${pick(NAMES)} ${pick(USES)} ${pick(QUALITIES)} ${pick(PARTS)} shop: recommend a laptop from this list.`;
  const question = QUESTIONS[letter];
  const room = Math.max(tokens - tokensOf(greeting) - tokensOf(question) - 3 * TEMPLATE_TOKENS, 12);
  const system = (share) => ({ role: "system", content: `${greeting} ${prose(Math.floor(room * share), SENTENCES, pick)}` });
  const last = { role: "user", content: question };
  if (letter !== "B") return [system(1), last];
  const history = [];
  let left = room * 0.4;
  while (left > 120) {
    const [asked, answered] = [prose(24, ASKED, pick), prose(70, SENTENCES, pick)];
    history.push({ role: "user", content: asked }, { role: "assistant", content: answered });
    left -= tokensOf(asked) + tokensOf(answered) + 2 * TEMPLATE_TOKENS;
  }
  return [system(0.6), ...history, last];
}

/** Sentences of about so many tokens. */
function prose(tokens, kinds, pick) {
  const sentences = [];
  let left = tokens;
  while (left > 4) {
    const sentence = pick(kinds)(pick);
    sentences.push(sentence);
    left -= tokensOf(sentence);
  }
  return sentences.join(" ");
}

/** Words and signs: what a usual tokeniser makes of such text. */
function tokensOf(text) {
  return text.match(/[A-Za-z]+|[^A-Za-z\s]/g)?.length ?? 0;
}
