// The token of the printed address is exchanged for a cookie that scripts cannot read.

/** The token behind the #, which is taken out of the address at once; null where there is none. */
export function tokenOfAddress() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (location.hash !== "") history.replaceState(null, "", location.pathname);
  return found === null ? null : found[1];
}

/** "" once there is a session, else what is wrong. */
export async function begin(token) {
  let answer;
  try {
    answer = await fetch("/session", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
    });
  } catch {
    return "Nobody answers at this address any more.";
  }
  return answer.ok ? "" : "That is not the token. It is made anew whenever the page is started.";
}
