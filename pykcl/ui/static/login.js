import { begin, tokenOfAddress } from "/static/session.js";

const form = document.getElementById("form");
const problem = document.getElementById("problem");

async function enter(token) {
  problem.textContent = "";
  const why = await begin(token);
  if (why === "") location.replace("/");
  else problem.textContent = why;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = document.getElementById("token").value.trim();
  enter(text.includes("#token=") ? text.slice(text.indexOf("#token=") + 7) : text);
});

const token = tokenOfAddress();
if (token !== null) enter(token);
else document.getElementById("token").focus();
