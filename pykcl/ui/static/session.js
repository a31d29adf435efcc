// The token of the printed address is exchanged for a cookie that scripts cannot read, and for the page's own secret,
// which stays in this tab and goes with everything that acts.

const PAGE = "pykcl-page";

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
  if (!answer.ok) return "That is not the token. It is made anew whenever the page is started.";
  const told = await answer.json();
  try { sessionStorage.setItem(PAGE, told.page); } catch { return "This browser keeps nothing for a tab; allow that."; }
  return "";
}

export function pageSecret() {
  try { return sessionStorage.getItem(PAGE) ?? ""; } catch { return ""; }
}
