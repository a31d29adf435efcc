// Before anything is drawn, so that nobody is dazzled: the theme that was chosen here before, else the system's.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("pykcl-theme"); } catch { chosen = null; }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
