"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const { figures: plots, texts } = read("plots");
  const templates = read("templates");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");
  const config = {
    responsive: true,
    displaylogo: false,
    scrollZoom: false,
  };
  // Named one by one: Plotly's own set has a button that sends the chart to its makers' server.
  const buttons = { scatter3d: ["toImage", "resetCameraDefault3d"], scatter: ["toImage", "resetScale2d"], parcoords: ["toImage"] };

  for (const plot of Object.values(plots)) {
    for (const trace of plot.data) {
      if (Array.isArray(trace.text)) trace.text = trace.text.map((index) => texts[index]);
    }
  }

  const farther = (camera) => {
    const eye = Object.fromEntries(Object.entries(camera.eye).map(([axis, value]) => [axis, 1.35 * value]));
    return { ...camera, eye };
  };

  const draw = (scheme) => {
    for (const element of document.querySelectorAll("[data-figure]")) {
      const plot = plots[element.dataset.figure];
      const { type, dimensions } = plot.data[0];
      if (type === "parcoords") element.style.minWidth = `${92 * dimensions.length}px`;
      const layout = { ...plot.layout, template: templates[scheme] };
      if (narrow.matches) {
        layout.font = { size: 11 };
        if (layout.scene) layout.scene = { ...layout.scene, camera: farther(layout.scene.camera) };
      }
      Plotly.react(element, plot.data, layout, { ...config, modeBarButtons: [buttons[type]] }).catch((error) => {
        element.textContent = `This figure could not be drawn here (${error.message}).`;
        console.error(error);
      });
    }
  };
  const redraw = () => draw(dark.matches ? "dark" : "light");

  const sortBy = (table, column, button) => {
    const heading = button.parentElement;
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.key;
    const compare = (a, b) => {
      const [left, right] = [Number(key(a)), Number(key(b))];
      return Number.isNaN(left) || Number.isNaN(right) ? key(a).localeCompare(key(b)) : left - right;
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * compare(a, b));
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("thead button").forEach((button, column) => {
      button.addEventListener("click", () => sortBy(table, column, button));
    });
  }

  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    draw("light");
  });
  window.addEventListener("afterprint", redraw);
  redraw();
})();
