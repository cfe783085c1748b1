// Small parts of every view: elements, keyed lists, and how numbers and times are written.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; text is only ever set as text, so nothing a peer says becomes markup. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Set text only when it differs: the page is rewritten often and changes rarely. */
export function say(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function mark(element, name, value) {
  if (value === undefined || value === null || value === "") element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Children of `parent`, one for each item, in order; an item keeps its element, and with it focus and scroll. */
export function keyed(parent, items, { key, create, update }) {
  const held = (parent.keyed ??= new Map());
  const wanted = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let element = held.get(name);
    if (!element) held.set(name, (element = create(item)));
    update(element, item);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  for (const [name, element] of held) {
    if (!wanted.has(name)) {
      element.remove();
      held.delete(name);
    }
  }
}

/** A table's rows as text, with a head; numbers to the right. */
export function fillTable(table, head, rows) {
  const cell = (tag, value, name) => {
    const element = make(tag, {
      class: typeof value === "number" || name ? "num" : null,
      scope: tag === "th" ? "col" : null,
    });
    element.append(typeof value === "number" ? number(value) : (value ?? "–"));
    return element;
  };
  const isNumber = head.map((_, place) => rows.some((row) => typeof row[place] === "number"));
  table.replaceChildren(
    make("thead", {}, make("tr", {}, ...head.map((text, place) => cell("th", text, isNumber[place])))),
    make(
      "tbody",
      {},
      ...rows.map((row) => make("tr", {}, ...row.map((value, place) => cell("td", value, isNumber[place])))),
    ),
  );
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function number(value) {
  if (typeof value !== "number" || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return whole.format(value);
  const size = Math.abs(value);
  if (size >= 100) return whole.format(value);
  if (size >= 0.001 || size === 0) return value.toFixed(size >= 10 ? 1 : 3);
  return value.toExponential(1);
}

export const clock = (ts) => (ts ? new Date(ts * 1000).toLocaleTimeString("en-GB") : "");
export const shorten = (text, left = 8, right = 4) =>
  text && text.length > left + right + 2 ? `${text.slice(0, left)}…${text.slice(-right)}` : text || "";

/** A part of a whole in percent; what is not all is never called all, nor what is some nothing. */
export function share(part, all) {
  if (!all) return "–";
  const percent = Math.round((100 * part) / all);
  if (percent === 0 && part) return "<1%";
  return percent === 100 && part < all ? ">99%" : `${percent}%`;
}

export const words = (reason) => String(reason || "").replaceAll("_", " ");

export function bytes(count) {
  if (!count) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log10(count) / 3));
  return `${number(count / 1000 ** power)} ${units[power]}`;
}

export function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} days`;
}

/** A colour of the theme in use. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A canvas as large as its place, in device pixels; its context draws in CSS pixels. */
export function fitCanvas(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
