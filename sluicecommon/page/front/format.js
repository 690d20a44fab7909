// Formats numbers with their units, and times in the viewer's time zone.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === undefined || value === null) return "–";
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${left >= 100 || Number.isInteger(left) ? Math.round(left) : left.toFixed(1)} ${UNITS[unit]}`;
}

export function percent(ratio) {
  if (ratio === undefined || ratio === null) return "–";
  const value = ratio * 100;
  return `${value >= 10 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} %`;
}

export function amount(resource, value) {
  if (value === undefined || value === null) return "no limit";
  const name = resource.toLowerCase();
  if (name === "cpu") return `${trim(value / 1000)} cores`;
  if (name.endsWith("gpumem")) return bytes(value * 1048576);
  if (name === "memory" || name === "ephemeral-storage" || name.startsWith("hugepages-")) return bytes(value);
  if (name.endsWith("gpucores") || name.endsWith("-percentage")) return `${value} %`;
  return value.toLocaleString();
}

// Requests in one line, with `short` names without their domain.
export function requested(requests, short = false) {
  return Object.entries(requests || {})
    .map(([name, value]) => `${short ? name.replace(/^.*\//, "") : name} ${amount(name, value)}`.replaceAll(" ", "\u00a0"))
    .join(", ");
}

function trim(value) {
  return Number.isInteger(value) ? String(value) : value.toFixed(1);
}

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
  return `${Math.round(s / 86400)} d`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });

export function time(unix) {
  return unix ? CLOCK.format(new Date(unix * 1000)) : "–";
}

export function age(unix, now = Date.now() / 1000) {
  return unix ? duration(now - unix) : "–";
}

// Numbers in order, with runs as ranges: 0–3, 5.
export function ranges(numbers) {
  const runs = [];
  for (const one of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && one === last[1] + 1) last[1] = one;
    else runs.push([one, one]);
  }
  return runs.map(([first, last]) => (first === last ? String(first) : last === first + 1 ? `${first}, ${last}` : `${first}–${last}`)).join(", ");
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString()} ${number === 1 ? one : many}`;
}
