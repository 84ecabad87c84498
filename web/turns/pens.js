// Two pens for one drawing: one puts it on a canvas, one writes it down as SVG.
//
// A pen knows rectangles, lines, shapes and words, and how a hatched area looks. It knows nothing of what they stand for.
// Both have the same methods; lengths are CSS pixels, colours are those of the theme.

const TILE = 6; // of the hatching
const SANS = '-apple-system, BlinkMacSystemFont, "Segoe UI", Roboto, Cantarell, Ubuntu, "Noto Sans", "Liberation Sans", Arial, sans-serif';
const TINT = 0.28;

export class CanvasPen {
  #context;
  #ratio = 1;
  #ground = "";
  #patterns = new Map(); // colour -> hatching, made once
  #shift = new DOMMatrix();
  #colour = null;
  #alpha = 1;
  #strips = new Map(); // name -> {context, key, end}: what has been drawn and only moves on

  constructor(context) {
    this.#context = context;
  }

  /** A clean sheet. `shift`: how far the hatching has moved to the left, in pixels, so that it moves with what it covers. */
  begin(width, height, ratio, ground, shift) {
    const { canvas } = this.#context;
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    if (this.#ratio !== ratio || this.#ground !== ground) this.#patterns.clear();
    this.#ratio = ratio;
    this.#ground = ground;
    this.#shift = new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, -shift, 0]);
    for (const pattern of this.#patterns.values()) pattern.setTransform(this.#shift);
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#context.globalAlpha = 1;
    this.#alpha = 1;
    this.#context.fillStyle = ground;
    this.#colour = ground;
    this.#context.fillRect(0, 0, width, height);
    this.#context.direction = "ltr";
  }

  fill(x, y, width, height, colour, { hatched = false, alpha = 1 } = {}) {
    const wanted = hatched ? this.#hatching(colour) : colour;
    if (this.#colour !== wanted) this.#context.fillStyle = this.#colour = wanted;
    if (this.#alpha !== alpha) this.#context.globalAlpha = this.#alpha = alpha;
    this.#context.fillRect(x, y, width, height);
  }

  frame(x, y, width, height, colour, { thick = 1, alpha = 1 } = {}) {
    this.#stroke(colour, thick, null, alpha);
    this.#context.strokeRect(x + thick / 2, y + thick / 2, Math.max(width - thick, 0), Math.max(height - thick, 0));
  }

  line(points, colour, { thick = 1, dash = null, alpha = 1 } = {}) {
    this.#stroke(colour, thick, dash, alpha);
    this.#trace(points);
    this.#context.stroke();
  }

  shape(points, colour) {
    if (this.#colour !== colour) this.#context.fillStyle = this.#colour = colour;
    if (this.#alpha !== 1) this.#context.globalAlpha = this.#alpha = 1;
    this.#trace(points);
    this.#context.fill();
  }

  words(x, y, text, colour, { size = 11, anchor = "start", bold = false } = {}) {
    if (this.#colour !== colour) this.#context.fillStyle = this.#colour = colour;
    if (this.#alpha !== 1) this.#context.globalAlpha = this.#alpha = 1;
    this.#context.font = font(size, bold);
    this.#context.textAlign = anchor === "middle" ? "center" : anchor;
    this.#context.fillText(text, x, y);
  }

  measure(text, { size = 11, bold = false } = {}) {
    this.#context.font = font(size, bold);
    return this.#context.measureText(text).width;
  }

  /** What `draw` draws belongs together, and has a title that a picture can show. */
  group(_title, draw) {
    draw();
  }

  clipped(x, y, width, height, draw) {
    this.#context.save();
    this.#context.beginPath();
    this.#context.rect(x, y, width, height);
    this.#context.clip();
    draw();
    this.#context.restore();
    this.#colour = null;
    this.#alpha = this.#context.globalAlpha;
  }

  /** A part of the sheet that moves to the left and is otherwise as it was, as long as `key` is the same. `end` counts its
   *  pixels' columns at the right edge; from `changed`, an x, it has to be drawn anew. `draw(from)` draws what lies at and
   *  behind that x. */
  strip(name, { x, y, width, height, key, end, changed }, draw) {
    const ratio = this.#ratio;
    const whole = `${key} ${x} ${y} ${width} ${height} ${ratio} ${this.#ground}`;
    let strip = this.#strips.get(name);
    if (strip === undefined) {
      strip = { context: document.createElement("canvas").getContext("2d"), key: null, end: 0 };
      this.#strips.set(name, strip);
    }
    const { canvas } = strip.context;
    const by = end - strip.end;
    const moves = strip.key === whole && by >= 0 && by < width && Number.isInteger(by * ratio);
    if (!moves) [canvas.width, canvas.height] = [Math.ceil(width * ratio), Math.ceil(height * ratio)];
    const from = moves ? Math.max(Math.min(changed, x + width - by), x) : x;
    strip.context.setTransform(1, 0, 0, 1, 0, 0);
    if (moves && by > 0) {
      strip.context.globalCompositeOperation = "copy";
      strip.context.drawImage(canvas, -by * ratio, 0);
      strip.context.globalCompositeOperation = "source-over";
    }
    Object.assign(strip, { key: whole, end });
    if (from < x + width) this.#onto(strip.context, [ratio, 0, 0, ratio, -x * ratio, -y * ratio], () => {
      strip.context.clearRect(from, y, x + width - from, height);
      this.clipped(from, y, x + width - from, height, () => draw(from));
    });
    this.#context.drawImage(canvas, x, y, canvas.width / ratio, canvas.height / ratio);
  }

  /** Draws somewhere else meanwhile. */
  #onto(context, transform, draw) {
    const sheet = this.#context;
    this.#context = context;
    context.setTransform(...transform);
    [this.#colour, this.#alpha] = [null, context.globalAlpha];
    draw();
    this.#context = sheet;
    if (this.#alpha !== 1 || sheet.globalAlpha !== 1) sheet.globalAlpha = 1;
    [this.#colour, this.#alpha] = [null, 1];
  }

  #stroke(colour, thick, dash, alpha) {
    this.#context.strokeStyle = colour;
    this.#context.lineWidth = thick;
    this.#context.setLineDash(dash ?? []);
    if (this.#alpha !== alpha) this.#context.globalAlpha = this.#alpha = alpha;
  }

  #trace(points) {
    this.#context.beginPath();
    points.forEach(([x, y], place) => (place === 0 ? this.#context.moveTo(x, y) : this.#context.lineTo(x, y)));
  }

  #hatching(colour) {
    const known = this.#patterns.get(colour);
    if (known !== undefined) return known;
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(TILE * this.#ratio);
    const context = tile.getContext("2d");
    context.scale(tile.width / TILE, tile.height / TILE);
    context.fillStyle = this.#ground;
    context.fillRect(0, 0, TILE, TILE);
    context.globalAlpha = TINT;
    context.fillStyle = colour;
    context.fillRect(0, 0, TILE, TILE);
    context.globalAlpha = 1;
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.beginPath();
    for (const [from, to] of STROKES) {
      context.moveTo(...from);
      context.lineTo(...to);
    }
    context.stroke();
    const pattern = this.#context.createPattern(tile, "repeat");
    pattern.setTransform(this.#shift);
    this.#patterns.set(colour, pattern);
    return pattern;
  }
}

// One diagonal through the tile, and the corners of its neighbours.
const STROKES = [
  [[-1, TILE + 1], [TILE + 1, -1]],
  [[-1, 1], [1, -1]],
  [[TILE - 1, TILE + 1], [TILE + 1, TILE - 1]],
];

function font(size, bold) {
  return `${bold ? "600 " : ""}${size}px ${SANS}`;
}

export class SvgPen {
  #width;
  #height;
  #title;
  #ground;
  #measure;
  #lines = [];
  #hatched = new Map(); // colour -> id of its pattern
  #clips = [];

  /** `measure(text, style)` as a CanvasPen's, so that both place words alike. */
  constructor({ width, height, title, ground, measure }) {
    this.#width = width;
    this.#height = height;
    this.#title = title;
    this.#ground = ground;
    this.#measure = measure;
  }

  fill(x, y, width, height, colour, { hatched = false, alpha = 1 } = {}) {
    const fill = hatched ? `url(#${this.#hatching(colour)})` : colour;
    this.#lines.push(`<rect ${place(x, y, width, height)} fill="${escaped(fill)}"${opacity(alpha)}/>`);
  }

  frame(x, y, width, height, colour, { thick = 1, alpha = 1 } = {}) {
    const inner = place(x + thick / 2, y + thick / 2, Math.max(width - thick, 0), Math.max(height - thick, 0));
    this.#lines.push(`<rect ${inner} fill="none" stroke="${escaped(colour)}" stroke-width="${round(thick)}"${opacity(alpha)}/>`);
  }

  line(points, colour, { thick = 1, dash = null, alpha = 1 } = {}) {
    const dashes = dash === null ? "" : ` stroke-dasharray="${dash.map(round).join(" ")}"`;
    const stroke = `stroke="${escaped(colour)}" stroke-width="${round(thick)}"${dashes}${opacity(alpha)}`;
    this.#lines.push(`<polyline points="${corners(points)}" fill="none" ${stroke}/>`);
  }

  shape(points, colour) {
    this.#lines.push(`<polygon points="${corners(points)}" fill="${escaped(colour)}"/>`);
  }

  words(x, y, text, colour, { size = 11, anchor = "start", bold = false } = {}) {
    const weight = bold ? ' font-weight="600"' : "";
    const style = `font-size="${size}" text-anchor="${anchor}"${weight} fill="${escaped(colour)}"`;
    this.#lines.push(`<text x="${round(x)}" y="${round(y)}" ${style}>${escaped(text)}</text>`);
  }

  measure(text, style) {
    return this.#measure(text, style);
  }

  group(title, draw) {
    this.#lines.push("<g>", `<title>${escaped(title())}</title>`);
    draw();
    this.#lines.push("</g>");
  }

  clipped(x, y, width, height, draw) {
    this.#clips.push(`<clipPath id="clip-${this.#clips.length}"><rect ${place(x, y, width, height)}/></clipPath>`);
    this.#lines.push(`<g clip-path="url(#clip-${this.#clips.length - 1})">`);
    draw();
    this.#lines.push("</g>");
  }

  strip(_name, { x, y, width, height }, draw) {
    this.clipped(x, y, width, height, () => draw(x));
  }

  /** The whole document, which needs nothing beside itself. */
  document() {
    const size = `width="${round(this.#width)}" height="${round(this.#height)}" viewBox="0 0 ${round(this.#width)} ${round(this.#height)}"`;
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${escaped(SANS)}" role="img">`,
      `<title>${escaped(this.#title)}</title>`,
      "<defs>",
      ...[...this.#hatched].map(([colour, id]) => patternOf(colour, id)),
      ...this.#clips,
      "</defs>",
      `<rect width="100%" height="100%" fill="${escaped(this.#ground)}"/>`,
      ...this.#lines,
      "</svg>",
      "",
    ].join("\n");
  }

  #hatching(colour) {
    if (!this.#hatched.has(colour)) this.#hatched.set(colour, `hatched-${this.#hatched.size}`);
    return this.#hatched.get(colour);
  }
}

function patternOf(colour, id) {
  const stroke = STROKES.map(([from, to]) => `M${from.join(" ")}L${to.join(" ")}`).join("");
  const paint = escaped(colour);
  return (
    `<pattern id="${id}" width="${TILE}" height="${TILE}" patternUnits="userSpaceOnUse">` +
    `<rect width="${TILE}" height="${TILE}" fill="${paint}" opacity="${TINT}"/>` +
    `<path d="${stroke}" stroke="${paint}" stroke-width="2"/></pattern>`
  );
}

function place(x, y, width, height) {
  return `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;
}

function corners(points) {
  return points.map(([x, y]) => `${round(x)},${round(y)}`).join(" ");
}

function opacity(alpha) {
  return alpha === 1 ? "" : ` opacity="${alpha}"`;
}

function round(value) {
  return Math.round(value * 100) / 100;
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** Text as XML allows it: characters that no XML document may hold are shown as such. */
function escaped(text) {
  return String(text)
    .toWellFormed()
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[&<>"']/g, (sign) => ENTITIES[sign]);
}
