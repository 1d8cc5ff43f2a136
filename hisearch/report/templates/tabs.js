"use strict";
// Tabs, colour scheme and tables. Without this script all parts stand below each other.
(() => {
  const root = document.documentElement;
  const list = document.getElementById("tabs");
  const links = [...list.querySelectorAll("a")];
  const panels = new Map(links.map((link) => [link, document.getElementById(link.hash.slice(1))]));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  list.setAttribute("role", "tablist");
  for (const [link, panel] of panels) {
    link.setAttribute("role", "tab");
    link.setAttribute("aria-controls", panel.id);
    panel.setAttribute("role", "tabpanel");
  }

  const tell = (name, detail) => root.dispatchEvent(new CustomEvent(name, { detail }));
  const open = (link) => {
    for (const [other, panel] of panels) {
      const chosen = other === link;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      panel.hidden = !chosen;
      panel.tabIndex = chosen ? 0 : -1;
    }
    link.scrollIntoView({ block: "nearest", inline: "nearest" });
    root.dataset.tab = link.hash.slice(1);
    tell("tab", panels.get(link));
  };

  // Addresses: #trials, #prices (a place within a tab), #trials?accelerator=h200 (with filters).
  const follow = (event) => {
    const [place, query] = decodeURIComponent(location.hash.slice(1)).split("?");
    const target = place && document.getElementById(place);
    const link = links.find((one) => target && panels.get(one).contains(target)) ?? links[0];
    open(link);
    for (let within = target; within; within = within.parentElement) if (within.tagName === "DETAILS") within.open = true;
    if (target && target !== panels.get(link) && panels.get(link).contains(target)) target.scrollIntoView();
    else if (event?.type === "hashchange") window.scrollTo(0, 0);
    if (query) tell("filter", new URLSearchParams(query));
  };
  const show = (link) => {
    if (location.hash !== link.hash) history.pushState(null, "", link.hash);
    open(link);
    window.scrollTo(0, 0);
  };
  list.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    show(link);
  });
  list.addEventListener("keydown", (event) => {
    const at = links.indexOf(document.activeElement);
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: links.length - 1 };
    if (event.key === " " && at >= 0) show(links[at]);
    else if (event.key in moves && at >= 0) {
      const next = links.at(moves[event.key] % links.length);
      next.focus();
      show(next);
    } else return;
    event.preventDefault();
  });
  window.addEventListener("hashchange", follow);
  window.addEventListener("popstate", follow);

  // The colour scheme: the browser's, unless the button says otherwise.
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `${button.textContent} colours`);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    tell("scheme");
  });
  dark.addEventListener("change", () => {
    name();
    tell("scheme");
  });
  button.hidden = false;
  name();

  const sortBy = (table, column, heading) => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (line) => line.cells[column].dataset.key;
    const compare = (a, b) => {
      const [left, right] = [Number(key(a)), Number(key(b))];
      return Number.isNaN(left) || Number.isNaN(right) ? key(a).localeCompare(key(b)) : left - right;
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * compare(a, b));
    table.tBodies[0].append(...rows);
    table.classList.add("whole");
    more.hidden = true;
  };
  const more = document.getElementById("all-rows") ?? document.createElement("button");
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("thead button").forEach((control, column) => {
      control.addEventListener("click", () => sortBy(table, column, control.parentElement));
    });
    more.hidden = !table.querySelector(".more");
    more.addEventListener("click", () => {
      table.classList.add("whole");
      more.hidden = true;
    });
  }

  // Paper has no tabs: everything is shown.
  window.addEventListener("beforeprint", () => {
    for (const panel of panels.values()) panel.hidden = false;
    for (const details of document.querySelectorAll("details")) details.open = true;
    tell("print");
  });
  window.addEventListener("afterprint", () => {
    tell("scheme");
    open(links.find((link) => link.getAttribute("aria-selected") === "true") ?? links[0]);
  });
  root.classList.add("tabbed");
  follow();  // at once, so that nothing else is painted; and again when the figures listen
  document.addEventListener("DOMContentLoaded", follow);
})();
