"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const { figures: plots, texts, trials } = read("plots");
  const templates = read("templates");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");
  const config = {
    responsive: true,
    displaylogo: false,
    scrollZoom: false,
  };
  // Named one by one: Plotly's own set has a button that sends the chart to its makers' server.
  const buttons = { scatter3d: ["toImage", "resetCameraDefault3d"], parcoords: ["toImage"] };
  const usual = ["toImage", "resetScale2d"];

  // The trials: which are shown, which one is picked, and their settings.
  const feasible = new Set(trials.feasible);
  const unused = new Set(trials.unused);
  const valueOf = (number, index) => trials.values[index][trials.rows[number][index]];
  const differing = trials.names.map((_, index) => index).filter((index) => trials.values[index].length > 1);
  const chosen = new Map();
  let feasibleOnly = false;
  let brushed = null;
  let picked = null;

  const isShown = (number) =>
    (!feasibleOnly || feasible.has(number)) &&
    (brushed === null || brushed.has(number)) &&
    [...chosen].every(([index, value]) => valueOf(number, index) === value);

  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const hover = (number) => {
    const parts = differing
      .filter((index) => !unused.has(valueOf(number, index)))
      .map((index) => plain(`${trials.names[index]}: ${valueOf(number, index)}`));
    const lines = [];
    for (let i = 0; i < parts.length; i += 3) lines.push(parts.slice(i, i + 3).join(" · "));
    return lines.length ? `<br>${lines.join("<br>")}` : "";
  };
  for (const plot of Object.values(plots)) {
    for (const trace of plot.data) {
      if (!Array.isArray(trace.text) || !Array.isArray(trace.customdata)) continue;
      trace.text = trace.text.map((index, i) => texts[index] + hover(trace.customdata[i]));
    }
  }

  const farther = (camera) => {
    const eye = Object.fromEntries(Object.entries(camera.eye).map(([axis, value]) => [axis, 1.35 * value]));
    return { ...camera, eye };
  };

  // A trace without the points that are not shown; those of figures without trials are left as they are.
  const filtered = (trace) => {
    if (trace.type === "parcoords") return trace;
    if (!Array.isArray(trace.customdata)) return trace;
    const keep = trace.customdata.map(isShown);
    if (keep.every(Boolean)) return trace;
    const pass = (values) => (Array.isArray(values) ? values.filter((_, i) => keep[i]) : values);
    const left = { ...trace, marker: { ...trace.marker, color: pass(trace.marker.color) } };
    for (const key of ["x", "y", "z", "text", "customdata"]) if (trace[key]) left[key] = pass(trace[key]);
    return left;
  };
  const ringed = (data) => {
    const home = data.find((trace) => Array.isArray(trace.customdata));
    if (!home) return [];
    const ring = { type: home.type, mode: "markers", showlegend: false, hoverinfo: "skip", x: [], y: [] };
    ring.marker = home.type === "scatter3d"
      ? { symbol: "circle-open", size: 16, color: "#1f9ad6", line: { width: 4 } }
      : { symbol: "circle-open", size: 24, color: "#1f9ad6", line: { width: 3 } };
    if (home.type === "scatter3d") ring.z = [];
    for (const trace of data) {
      const at = Array.isArray(trace.customdata) ? trace.customdata.indexOf(picked) : -1;
      if (at >= 0) for (const key of ["x", "y", "z"]) if (trace[key]) ring[key] = [trace[key][at]];
    }
    return [ring];
  };

  const drawOne = (element, scheme) => {
    const plot = plots[element.dataset.figure];
    const { type, dimensions } = plot.data[0];
    if (type === "parcoords") element.style.minWidth = `${92 * dimensions.length}px`;
    const layout = { ...plot.layout, template: templates[scheme] };
    if (narrow.matches) {
      layout.font = { size: 11 };
      if (layout.scene) layout.scene = { ...layout.scene, camera: farther(layout.scene.camera) };
    }
    const data = [...plot.data.map(filtered), ...ringed(plot.data)];
    return Plotly.react(element, data, layout, { ...config, modeBarButtons: [buttons[type] ?? usual] }).catch((error) => {
      element.textContent = `This figure could not be drawn here (${error.message}).`;
      console.error(error);
    });
  };
  const elements = () => [...document.querySelectorAll("[data-figure]")];
  const waiting = new Set(elements());
  const root = document.documentElement;
  const scheme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  // Plotly is read when the first figure is drawn: the first screen has none.
  const load = () => {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.body.append(script);
  };
  const first = (element, wanted = scheme()) => {
    if (!waiting.delete(element)) return Promise.resolve();
    load();
    return drawOne(element, wanted).then(() => listen(element));
  };
  const draw = (wanted) => elements().filter((element) => !waiting.has(element)).forEach((element) => drawOne(element, wanted));
  const redraw = () => draw(scheme());
  const ofTrials = (element) => !waiting.has(element) && plots[element.dataset.figure].data.some((trace) => Array.isArray(trace.customdata));
  const redrawTrials = () => elements().filter(ofTrials).forEach((element) => drawOne(element, scheme()));

  // A deployment picked in a figure or in the table: ringed in every figure, and described.
  const panel = document.getElementById("picked");
  const row = (name, value) => {
    const line = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = name;
    const cell = document.createElement("td");
    cell.textContent = value;
    line.append(head, cell);
    return line;
  };
  const pick = (number) => {
    picked = number;
    panel.hidden = number === null;
    panel.replaceChildren();
    if (number !== null) {
      const title = document.createElement("h3");
      title.textContent = `Trial ${number}: ${feasible.has(number) ? "meets the SLO" : "misses the SLO"}`;
      const close = document.createElement("button");
      close.type = "button";
      close.textContent = "Close";
      close.addEventListener("click", () => pick(null));
      const table = document.createElement("table");
      table.className = "compact";
      trials.names.forEach((name, index) => {
        const value = valueOf(number, index);
        if (!unused.has(value)) table.append(row(name, value));
      });
      panel.append(title, close, table);
    }
    redrawTrials();
  };
  const listen = (element) => {
    if (!element.on) return;
    element.on("plotly_click", (event) => {
      const number = event.points[0]?.customdata;
      if (Number.isInteger(number)) pick(number);
    });
    const lines = plots[element.dataset.figure].data[0];
    if (lines.type === "parcoords") {
      element.on("plotly_restyle", () => {
        const passes = (dimension, i) => {
          const range = dimension.constraintrange;
          if (!range || range.length === 0) return true;
          const ranges = Array.isArray(range[0]) ? range : [range];
          return ranges.some(([low, high]) => dimension.values[i] >= low && dimension.values[i] <= high);
        };
        const { dimensions } = element.data[0];
        const kept = lines.meta.filter((_, i) => dimensions.every((dimension) => passes(dimension, i)));
        brushed = dimensions.some((dimension) => dimension.constraintrange?.length) ? new Set(kept) : null;
        refilter();
      });
    }
  };

  // Filters: a choice for each of the settings that tell the trials apart best.
  const form = document.getElementById("controls");
  const numbers = Object.keys(trials.rows).map(Number);
  const refilter = () => {
    const left = numbers.filter(isShown).length;
    const shown = document.getElementById("shown");
    if (!shown) return;
    shown.textContent =
      `${left.toLocaleString("en")} of ${numbers.length.toLocaleString("en")} shown`;
    redrawTrials();
  };
  const offered = ["accelerator", "engine", "tensor parallel", "replicas", "router", "tier 1 (GiB)"];
  const setUpFilters = () => {
    if (!form || numbers.length < 2) return;
    for (const name of offered) {
      const index = trials.names.indexOf(name);
      if (!differing.includes(index)) continue;
      const label = document.createElement("label");
      label.textContent = name;
      const select = document.createElement("select");
      select.name = name;
      select.append(new Option("all", ""));
      const numeric = (a, b) => a.localeCompare(b, "en", { numeric: true });
      for (const value of [...trials.values[index]].sort(numeric)) select.append(new Option(value, value));
      select.addEventListener("change", () => {
        if (select.selectedIndex === 0) chosen.delete(index);
        else chosen.set(index, select.value);
        refilter();
      });
      label.append(select);
      document.getElementById("choices").append(label);
    }
    form.elements.feasible.addEventListener("change", (event) => {
      feasibleOnly = event.target.checked;
      refilter();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => {
      chosen.clear();
      feasibleOnly = false;
      brushed = null;
      for (const element of elements()) {
        const lines = element.data?.[0];
        if (lines?.type !== "parcoords") continue;
        const none = Object.fromEntries(lines.dimensions.map((_, i) => [`dimensions[${i}].constraintrange`, null]));
        Plotly.restyle(element, none, 0);
      }
      refilter();
    });
    form.hidden = false;
  };
  const filterBy = (query) => {
    if (!form) return;
    form.reset();
    for (const select of form.querySelectorAll("select")) {
      if (!query.has(select.name)) continue;
      select.value = query.get(select.name);
      select.dispatchEvent(new Event("change"));
    }
    if (query.get("feasible") === "1") form.elements.feasible.click();
  };

  for (const button of document.querySelectorAll("button.pick")) {
    button.addEventListener("click", () => pick(Number(button.dataset.trial)));
  }

  root.addEventListener("scheme", redraw);
  narrow.addEventListener("change", redraw);
  window.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && picked !== null) pick(null);
  });
  root.addEventListener("print", () => {
    elements().forEach((element) => first(element, "light"));
    draw("light");
  });
  root.addEventListener("filter", (event) => filterBy(event.detail));
  setUpFilters();

  // The figures of a tab are drawn when it opens, those in view first; one at a time, so that the page stays responsive.
  const pause = () => new Promise((resolve) => setTimeout(resolve, 0));
  const drawPanel = async (panel) => {
    const mine = [...panel.querySelectorAll("[data-figure]")];
    for (const element of mine) {
      if (panel.hidden) return;
      if (waiting.has(element)) await pause().then(() => first(element));
      else Plotly.Plots.resize(element);
    }
    root.dataset.drawn = panel.id;
  };
  root.addEventListener("tab", (event) => drawPanel(event.detail));
  if (numbers.length > 1) refilter();
})();
