// Numbers and times as people read them.

/** Seconds as "0.4s", "38s", "2m07s", "1h05m", "3d04h", like the command line does it. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  for (const [size, unit, smaller, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
    if (whole >= size) return `${Math.floor(whole / size)}${unit}${String(Math.floor((whole % size) / smaller)).padStart(2, "0")}${small}`;
  }
  return `${whole}s`;
}

/** The same for an axis: no more digits than it needs. */
export function ticks(seconds) {
  if (seconds < 1) return seconds === 0 ? "0" : `${+seconds.toFixed(2)}s`;
  if (seconds < 60) return `${+seconds.toFixed(1)}s`;
  if (seconds < 3600) return seconds % 60 === 0 ? `${seconds / 60}m` : duration(seconds);
  return seconds % 3600 === 0 ? `${seconds / 3600}h` : duration(seconds);
}

export function number(value) {
  if (value >= 10000) return `${(value / 1000).toFixed(value >= 100000 ? 0 : 1)}k`;
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(1);
}

export function clock(millis, withSeconds = true) {
  const at = new Date(millis);
  const parts = [at.getHours(), at.getMinutes(), ...(withSeconds ? [at.getSeconds()] : [])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

export function checkpoint(text) {
  const [digits, sub] = (text ?? "–").split(":");
  const short = /^\d{13,}$/.test(digits) ? `${digits.slice(0, 4)}…${digits.slice(-6)}` : digits;
  return sub === undefined || sub === "0" ? short : `${short}:${sub}`;
}

export function counted(many, noun) {
  return many === 1 ? `1 ${noun}` : `${many} ${noun}s`;
}
