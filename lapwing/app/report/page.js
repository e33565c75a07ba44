"use strict";
// Values on hover or touch, tables sorted by a click on their heads, one run at a time, light or dark.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const show = (event) => {
    const found = event.target.closest && event.target.closest("[data-tip]");
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = found.dataset.tip;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(event.clientX + 14, 6), window.innerWidth - box.width - 6);
    const above = event.clientY - box.height - 12;
    tip.style.left = `${Math.max(left, 6)}px`;
    tip.style.top = `${above > 6 ? above : event.clientY + 18}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  const value = (cell) => {
    const text = cell.textContent.trim().replace(/−/g, "-").replace(/,/g, "");
    if (text.startsWith("∞")) return Infinity;
    if (text.startsWith("-∞")) return -Infinity;
    const number = parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b);
  };
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (up ? 1 : -1) * compare(value(a.cells[column]), value(b.cells[column])));
      table.tBodies[0].append(...rows);
    }));
  });

  const chooser = document.getElementById("chooser");
  if (chooser) {
    document.getElementById("choose").hidden = false;
    const runs = [...document.querySelectorAll("article.run")];
    const choose = (id) => runs.forEach((run) => { run.hidden = run.id !== id; });
    chooser.addEventListener("change", () => { choose(chooser.value); history.replaceState(null, "", `#${chooser.value}`); });
    const follow = () => {
      const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      const run = place && place.closest("article.run");
      chooser.value = run ? run.id : "compare";
      choose(chooser.value);
      if (run && place !== run) place.scrollIntoView();
    };
    window.addEventListener("hashchange", follow);
    follow();
  }

  const theme = document.getElementById("theme");
  const dark = () => document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-pressed", String(dark())); };
  theme.hidden = false;
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();
})();
