"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const KINDS = ["bound", "lost", "raw"];
  const MARKS = {
    refused: { label: "Refused", symbol: "triangle-down", row: 2 },
    lost: { label: "Lost", symbol: "x", row: 1 },
    returned: { label: "Returned", symbol: "circle", row: 0 },
  };
  const LIGHT = ["#4477aa", "#228833", "#aa3377", "#997700", "#66339a", "#008b8b", "#994455", "#557799", "#336600"];
  const DARK = ["#77aadd", "#44bb99", "#ee99cc", "#eedd88", "#bba4f0", "#66cccc", "#ee8866", "#99ddff", "#aaaa00"];
  const COLUMNS = 240;
  const PAGE_NODES = 12;
  const PAGE_LANES = 72;
  const LABELLED_ROWS = 40;
  const MOST_ROWS = 2000;
  const TABLE_ROWS = 50;

  const view = { resource: "", filter: "", order: "events", page: 0, rows: TABLE_ROWS, range: null };
  const by = (id) => document.getElementById(id);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const word = (index) => data.texts[index];
  /* Plotly reads a little markup in its labels; names and messages must come out as they are. */
  const plain = (value) => String(value).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const moment = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", "").replace(/\.000$/, "");
  const time = (offset) => data.start + offset;
  const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many || one + "s"}`;

  function make(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "onclick") made.addEventListener("click", value);
      else if (value !== "") made.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) made.append(child instanceof Node ? child : String(child));
    }
    return made;
  }

  /* What is known of each node and resource name. */

  const key = (node, name) => `${node} ${name}`;
  const seriesOf = new Map(data.series.map(([node, name, points]) => [key(node, name), points]));
  const heightOf = new Map(data.heights.map(([node, name, height]) => [key(node, name), height]));
  const barsOf = new Map();
  const searchOf = data.nodes.map((name) => [name]);
  const namesOf = new Map();
  const note = (name, node) => {
    if (!namesOf.has(name)) namesOf.set(name, new Set());
    namesOf.get(name).add(node);
  };
  data.series.forEach(([node, name]) => note(name, node));
  data.bars.forEach((bar) => {
    const name = word(bar[7]);
    const own = key(bar[0], name);
    if (!barsOf.has(own)) barsOf.set(own, []);
    barsOf.get(own).push(bar);
    searchOf[bar[0]].push(word(bar[4]), word(bar[5]), word(bar[6]));
    note(name, bar[0]);
  });
  const haystack = searchOf.map((words) => [...new Set(words)].join("\n").toLowerCase());
  const placeOf = new Map([...data.bars.entries(), ...data.marks.entries()].map(([index, item]) => [item, index]));
  const lossesOf = new Map();
  const indexOf = new Map(data.nodes.map((name, index) => [name, index]));
  data.marks.forEach((mark) => {
    const node = indexOf.get(mark.node);
    if (mark.kind === "lost" && node !== undefined) lossesOf.set(node, (lossesOf.get(node) || 0) + 1);
  });

  /* Tenants of some bars, the one with the most first: it gets the first colour. */
  function tenantsOf(bars) {
    const weight = new Map();
    bars.forEach((bar) => weight.set(word(bar[4]), (weight.get(word(bar[4])) || 0) + bar[8]));
    return [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a) || (a < b ? -1 : 1));
  }
  const tenantColour = (index) => (dark.matches ? DARK : LIGHT)[index] || (dark.matches ? "#8895a7" : "#7a8594");

  const last = (points) => (points && points.length ? points[points.length - 1] : null);
  const use = (node) => {
    const found = last(seriesOf.get(key(node, view.resource)));
    return found && found[1] > 0 ? (found[2] + found[3]) / found[1] : 0;
  };

  function shownNodes() {
    const found = [...(namesOf.get(view.resource) || [])].filter((node) => haystack[node].includes(view.filter));
    const name = (a, b) => data.nodes[a].localeCompare(data.nodes[b], "en", { numeric: true });
    const losses = (node) => lossesOf.get(node) || 0;
    const orders = {
      name,
      use: (a, b) => use(b) - use(a) || name(a, b),
      events: (a, b) => losses(b) - losses(a) || use(b) - use(a) || name(a, b),
    };
    return found.sort(orders[view.order]);
  }

  function shownMarks() {
    const text = view.filter;
    return data.marks.filter((mark) => {
      if (mark.resources && !mark.resources.includes(view.resource)) return false;
      const words = [mark.subject, mark.node, mark.reason, mark.action].join("\n").toLowerCase();
      return words.includes(text);
    });
  }

  const inWindow = (mark) => {
    const [from, to] = visible();
    return mark.at >= from && mark.at <= to;
  };

  /* Charts. */

  /* The whole time has a little room at both ends, so that marks at the very end can be seen and clicked. */
  const room = Math.max((data.end - data.start) / 80, 500);
  const visible = () => view.range || [data.start - room, data.end + room];

  function layout(extra) {
    const ink = css("--ink");
    const line = css("--line");
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, family: "system-ui, sans-serif", size: 12 },
      margin: { l: 130, r: 16, t: 8, b: 36 },
      hoverlabel: { bgcolor: css("--raised"), bordercolor: line, font: { color: ink }, align: "left" },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      ...extra,
      xaxis: { ...axis, type: "date", range: visible(), hoverformat: "%Y-%m-%d %H:%M:%S", ...(extra.xaxis || {}) },
      yaxis: { ...axis, ...(extra.yaxis || {}) },
    };
  }

  const CONFIG = {
    displayModeBar: false,
    responsive: true,
  };

  function draw(id, traces, shape) {
    const place = by(id);
    return window.Plotly.react(place, traces, layout(shape), CONFIG).then(() => {
      if (place.dataset.bound) return;
      place.dataset.bound = "yes";
      place.on("plotly_click", (event) => clicked(id, event.points[0]));
      place.on("plotly_relayout", (change) => zoomed(change));
    });
  }

  function zoomed(change) {
    if (change["xaxis.autorange"]) view.range = null;
    else if (change["xaxis.range[0]"] !== undefined) {
      const at = (value) => (typeof value === "number" ? value : Date.parse(`${value.replace(" ", "T")}Z`));
      view.range = [at(change["xaxis.range[0]"]), at(change["xaxis.range[1]"])];
    } else return;
    drawAll();
  }

  function drawUnits() {
    const points = data.totals[view.resource] || [];
    const x = points.map((point) => time(point[0]));
    const columns = [1, 2, 3, 4, 5, 7].map((index) => points.map((point) => point[index]));
    if (points.length) {
      x.push(data.end);
      columns.forEach((column) => column.push(column[column.length - 1]));
    }
    const [served, placed, raw, free, held, beyond] = columns;
    /* Up to the served line: what is in use of it, free and not usable. Above it: what is in use beyond it. */
    const used = placed.map((units, index) => units + raw[index] - beyond[index]);
    const usedPlaced = placed.map((units, index) => Math.min(units, used[index]));
    const usedRaw = used.map((units, index) => units - usedPlaced[index]);
    const other = served.map((units, index) => Math.max(0, units - used[index] - free[index]));
    const line = { shape: "hv", width: 0.5 };
    const area = (name, y, told, colour, pattern) => ({
      name, x, y, customdata: told, stackgroup: "units", mode: "lines", line: { ...line, color: colour },
      fillcolor: colour, fillpattern: pattern ? { shape: pattern, fgcolor: css("--quiet"), bgcolor: colour, size: 6 } : undefined,
      hovertemplate: `%{customdata} ${name}<extra></extra>`,
    });
    const step = (name, y, colour, dash) => ({
      name, x, y, mode: "lines", line: { shape: "hv", width: 2, color: colour, dash },
      hovertemplate: `%{y} ${name}<extra></extra>`,
    });
    const bright = dark.matches;
    const traces = [
      area("placed", usedPlaced, placed, bright ? "#3f86c4" : "#4c8fc9"),
      area("raw use", usedRaw, raw, bright ? "#d98b3a" : "#e39b4b"),
      area("free", free, free, bright ? "#2f4f45" : "#d6ece0"),
      area("not usable now", other, other, bright ? "#3a414d" : "#e6e9ee", "/"),
      area("in use, not served", beyond, beyond, bright ? "#8c3a50" : "#e3a3b3", "x"),
      step("served", served, css("--ink"), "solid"),
      step("held, running nowhere", held, css("--accent"), "dot"),
    ];
    return draw("units", traces, {
      height: 330,
      hovermode: "x",
      yaxis: { rangemode: "tozero", title: { text: "units", standoff: 12 } },
      legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", traceorder: "normal" },
      margin: { l: 130, r: 16, t: 4, b: 50 },
    });
  }

  function drawEvents() {
    const marks = shownMarks();
    const traces = Object.entries(MARKS).map(([kind, style]) => {
      const own = marks.filter((mark) => mark.kind === kind);
      return {
        name: style.label, x: own.map((mark) => mark.at), y: own.map(() => style.row), mode: "markers",
        customdata: own.map((mark) => placeOf.get(mark)),
        text: own.map((mark) => plain(`${mark.subject}${mark.node ? " on " + mark.node : ""} ${mark.reason || ""}`)),
        hovertemplate: `${style.label}: %{text}<br>%{x}<extra></extra>`,
        marker: { symbol: style.symbol, size: 11, color: css(`--${kind}`), opacity: 0.85 },
      };
    });
    const rows = Object.values(MARKS);
    return draw("events", traces, {
      height: 100,
      hovermode: "closest",
      showlegend: false,
      xaxis: { showticklabels: false },
      yaxis: {
        range: [-0.6, 2.6], tickvals: rows.map((row) => row.row), ticktext: rows.map((row) => row.label),
        fixedrange: true, zeroline: false,
      },
      margin: { l: 130, r: 16, t: 4, b: 4 },
    });
  }

  /* The value of a series at the end of each column. */
  function sampled(points, ends) {
    const found = [];
    let index = -1;
    for (const end of ends) {
      while (points && index + 1 < points.length && time(points[index + 1][0]) <= end) index += 1;
      found.push(index < 0 ? null : points[index]);
    }
    return found;
  }

  function drawNodes(nodes) {
    const [from, to] = visible();
    const width = (to - from) / COLUMNS;
    const ends = Array.from({ length: COLUMNS }, (_, index) => from + width * (index + 1));
    const rows = nodes.slice(0, MOST_ROWS).reverse();
    const names = rows.map((node) => plain(data.nodes[node]));
    const points = rows.map((node) => sampled(seriesOf.get(key(node, view.resource)), ends));
    const cells = (value) => points.map((row) => row.map((point, column) =>
      (point === null || ends[column] - width > data.end ? null : value(point))));
    const used = cells((point) => (point[1] > 0 ? Math.min(100, Math.round((100 * (point[2] + point[3])) / point[1])) : null));
    const silent = cells((point) => (point[1] < 0 ? 1 : null));
    const heat = (z, colours, most, words) => ({
      type: "heatmap", x: ends.map((end) => end - width / 2), y: names, z, zmin: 0, zmax: most, showscale: false,
      colorscale: [[0, colours[0]], [1, colours[1]]], hoverongaps: false, ygap: labelled ? 1 : 0,
      hovertemplate: `%{y}: ${words}<br>%{x}<extra></extra>`,
    });
    const labelled = rows.length <= LABELLED_ROWS;
    const place = new Set(rows);
    const lost = shownMarks().filter((mark) => mark.kind === "lost" && place.has(indexOf.get(mark.node)));
    const losses = {
      mode: "markers", x: lost.map((mark) => mark.at), y: lost.map((mark) => plain(mark.node)), showlegend: false,
      cliponaxis: false,
      customdata: lost.map((mark) => placeOf.get(mark)),
      text: lost.map((mark) => plain(`${mark.subject} on ${mark.node}`)),
      hovertemplate: "Lost: %{text}<br>%{x}<extra></extra>",
      marker: { symbol: "x", size: 9, color: css("--lost"), line: { width: 1, color: css("--back") } },
    };
    const height = Math.min(620, Math.max(110, 60 + rows.length * (labelled ? 20 : 2)));
    const all = (namesOf.get(view.resource) || new Set()).size.toLocaleString("en");
    by("nodes-note").textContent = `${count(nodes.length, "node")} of ${all}, a row each; click a row to see its holders` +
      (nodes.length > MOST_ROWS ? `; the first ${MOST_ROWS.toLocaleString("en")} are drawn, filter for the others` : "");
    return draw("nodes", [
      heat(used, [css("--unused"), css("--used")], 100, "%{z} % used"),
      heat(silent, [css("--silent"), css("--silent")], 1, "silent"),
      losses,
    ], {
      height,
      yaxis: {
        type: "category", categoryorder: "array", categoryarray: names, range: [-0.5, Math.max(rows.length, 1) - 0.5],
        fixedrange: labelled, showgrid: false, zeroline: false, showticklabels: labelled, ticks: "", dtick: 1,
        title: labelled ? undefined : { text: count(rows.length, "node"), standoff: 12 },
      },
    });
  }

  function pages(nodes) {
    const found = [];
    let lanes = PAGE_LANES;
    for (const node of nodes) {
      const height = lanesOf(node);
      const current = found[found.length - 1];
      if (!current || current.length >= PAGE_NODES || lanes + height > PAGE_LANES) {
        found.push([node]);
        lanes = height;
      } else {
        current.push(node);
        lanes += height;
      }
    }
    return found.length ? found : [[]];
  }

  function lanesOf(node) {
    const points = seriesOf.get(key(node, view.resource)) || [];
    const served = points.reduce((most, point) => Math.max(most, point[1]), 0);
    return Math.max(1, served, heightOf.get(key(node, view.resource)) || 0);
  }

  function drawHolders(nodes) {
    const all = pages(nodes);
    view.page = Math.min(view.page, all.length - 1);
    const shown = all[view.page];
    const tenants = tenantsOf(shown.flatMap((node) => barsOf.get(key(node, view.resource)) || []));
    const groups = new Map();
    const bands = [];
    const ticks = [];
    let offset = 0;
    shown.forEach((node, index) => {
      const height = lanesOf(node);
      const found = last(seriesOf.get(key(node, view.resource)));
      const served = found && found[1] >= 0 ? found[1] : "?";
      ticks.push([-(offset + height / 2), `${plain(data.nodes[node])} (${served})`]);
      bands.push({
        type: "rect", xref: "paper", x0: 0, x1: 1, y0: -offset, y1: -(offset + height), layer: "below",
        line: { width: 0 }, fillcolor: css("--raised"), opacity: index % 2 ? 0.55 : 1,
      });
      for (const bar of barsOf.get(key(node, view.resource)) || []) {
        const tenant = Math.min(tenants.indexOf(word(bar[4])), LIGHT.length);
        if (!groups.has(tenant)) groups.set(tenant, []);
        groups.get(tenant).push([bar, -(offset + bar[9] + bar[8] / 2)]);
      }
      offset += height + 0.5;
    });
    const traces = [...groups.keys()].sort((a, b) => a - b).map((tenant) =>
      holders(tenant, tenant < LIGHT.length ? tenants[tenant] : "other tenants", groups.get(tenant)));
    const from = shown.length ? all.slice(0, view.page).reduce((sum, page) => sum + page.length, 0) + 1 : 0;
    const dropped = data.droppedBars ? `; ${count(data.droppedBars, "older bar")} left out` : "";
    by("holders-note").textContent =
      `nodes ${from} to ${from + Math.max(shown.length - 1, 0)} of ${nodes.length.toLocaleString("en")}, a lane a unit` +
      `; crossed: lost, striped: raw use${dropped}`;
    by("previous").disabled = view.page === 0;
    by("next").disabled = view.page >= all.length - 1;
    return draw("holders", traces, {
      height: Math.max(140, 90 + offset * (offset > 40 ? 15 : 22)),
      barmode: "overlay",
      shapes: bands,
      showlegend: true,
      yaxis: {
        range: [-Math.max(offset, 1), 0.2], fixedrange: true, showgrid: false, zeroline: false,
        tickvals: ticks.map((tick) => tick[0]), ticktext: ticks.map((tick) => tick[1]),
      },
    });
  }

  function holders(tenant, name, bars) {
    const what = (bar) => word(bar[6]) || word(bar[5]);
    return {
      type: "bar", orientation: "h", name: plain(name),
      base: bars.map(([bar]) => time(bar[1])),
      x: bars.map(([bar]) => Math.max(bar[2] - bar[1], 1)),
      y: bars.map(([, y]) => y),
      width: bars.map(([bar]) => bar[8] - 0.12),
      text: bars.map(([bar]) => plain(what(bar))),
      textposition: "inside", insidetextanchor: "start", textangle: 0, constraintext: "none", cliponaxis: true,
      insidetextfont: { color: dark.matches ? "#10151c" : "#ffffff", size: 11 },
      customdata: bars.map(([bar]) => [
        placeOf.get(bar), plain(`${word(bar[4])}/${word(bar[5])}`),
        word(bar[6]) ? plain(`VM ${word(bar[6])}, `) : "", count(bar[8], "unit"), KINDS[bar[3]],
        `${moment(time(bar[1]))} to ${bar[11] ? "now" : moment(time(bar[2]))}`,
      ]),
      hovertemplate: "%{customdata[1]}<br>%{customdata[2]}%{customdata[3]}, %{customdata[4]}<br>%{customdata[5]}<extra></extra>",
      marker: {
        color: tenantColour(tenant),
        line: { width: 1, color: css("--back") },
        pattern: {
          shape: bars.map(([bar]) => ["", "x", "/"][bar[3]]), fillmode: "overlay",
          fgcolor: dark.matches ? "#10151c" : "#ffffff", size: 6, solidity: 0.35,
        },
      },
    };
  }

  /* The table. */

  function drawTable(marks) {
    const rows = marks.slice(0, view.rows).map((mark) => make("tr", {},
      make("td", { class: "number" }, mark.journal ? `${mark.seq} of ${mark.journal}` : mark.seq),
      make("td", { class: "moment" }, moment(mark.at)),
      make("td", {}, make("span", { class: `tag ${mark.kind}` }, MARKS[mark.kind].label)),
      make("td", {}, make("button", { type: "button", onclick: () => explainMark(mark) }, mark.subject)),
      make("td", {}, mark.node || ""),
      make("td", { class: "wrap" }, mark.reason ? make("b", {}, mark.reason) : null,
        mark.reason && mark.message ? ": " : "", mark.message || "",
        mark.again ? ` (and ${count(mark.again, "time")} again)` : ""),
      make("td", { class: "number" }, asked(mark)),
      make("td", { class: "number" }, mark.missing || ""),
    ));
    by("marks").tBodies[0].replaceChildren(...rows);
    const told = Object.values(data.counts).reduce((sum, number) => sum + number, 0);
    const left = told - data.marks.length;
    by("marks-note").textContent = `${count(rows.length, "line")} of ${marks.length.toLocaleString("en")}, the newest first` +
      (left > 0 ? `; ${count(left, "older one")} not on this page` : "");
    by("more").hidden = marks.length <= view.rows;
  }

  function asked(mark) {
    const units = Object.entries(mark.asked || {});
    return units.length === 1 ? units[0][1] : units.map(([name, number]) => `${number} ${name}`).join(", ");
  }

  /* What the lines of the table add up to. */
  function drawFigures(nodes, marks) {
    const figures = [[nodes.length, nodes.length === 1 ? "node" : "nodes"]];
    Object.keys(MARKS).forEach((kind) => figures.push([marks.filter((mark) => mark.kind === kind).length, kind]));
    const reasons = new Map();
    marks.filter((mark) => mark.kind === "refused" && mark.reason)
      .forEach((mark) => reasons.set(mark.reason, (reasons.get(mark.reason) || 0) + 1));
    [...reasons].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 4)
      .forEach(([reason, number]) => figures.push([number, reason]));
    by("figures").replaceChildren(...figures.map(([number, what]) =>
      make("li", {}, make("b", {}, number.toLocaleString("en")), ` ${what}`)));
  }

  /* The panel. */

  function show(...children) {
    const panel = by("panel");
    panel.replaceChildren(...children.filter(Boolean));
    panel.scrollTop = 0;
  }

  function clicked(id, point) {
    if (id === "holders") explainBar(data.bars[point.customdata[0]]);
    else if (typeof point.customdata === "number") explainMark(data.marks[point.customdata]);
    else if (id === "nodes") {
      const node = shownNodes().find((index) => plain(data.nodes[index]) === point.y);
      by("filter").value = data.nodes[node];
      filterChanged();
    }
  }

  function explainMark(mark) {
    const found = data.explanations[mark.key];
    if (found) return showExplanation(found, mark.kind, null, mark.journal);
    return show(
      make("h2", {}, `${mark.action} ${mark.subject}`),
      make("p", { class: `tag ${mark.kind}` }, MARKS[mark.kind].label, mark.node ? ` on ${mark.node}` : ""),
      make("p", {}, [mark.reason, mark.message].filter(Boolean).join(": ")),
      make("p", { class: "quiet" }, `${entryOf(mark.seq, mark.journal)}, ${moment(mark.at)} UTC. The reasons of this one are not on the page; ask the journal: `,
        make("code", {}, `gpu-binder explain ${mark.journal || "FILE"} … --seq ${mark.seq}`)),
    );
  }

  function explainBar(bar) {
    const kind = KINDS[bar[3]];
    const facts = make("p", {},
      `${word(bar[4])}/${word(bar[5])}${word(bar[6]) ? ` for VM ${word(bar[6])}` : ""}: ${count(bar[8], "unit")} of ` +
      `${word(bar[7])} on ${data.nodes[bar[0]]}, ${kind} from ${moment(time(bar[1]))} to ${bar[11] ? "the end of the page" : moment(time(bar[2]))}`);
    const found = data.explanations[bar[10]];
    if (found) return showExplanation(found, kind, facts);
    const why = kind === "raw"
      ? "Raw use: a pod asks for the units by their resource name and no device covers it. Nobody decided this here."
      : bar[10] ? `Decided at entry ${bar[10]}; its reasons are not on the page.` : "Decided before this page begins, or by another replica.";
    return show(make("h2", {}, `${word(bar[4])}/${word(bar[6]) || word(bar[5])}`), facts, make("p", { class: "quiet" }, why));
  }

  function entryOf(seq, journal) {
    return journal ? `entry ${seq} of ${journal}` : `entry ${seq}`;
  }

  function showExplanation(found, kind, facts, journal) {
    const asked = Object.entries(found.needs || {}).map(([name, units]) => `${units} ${name}`).join(", ");
    const held = Object.entries(found.holds || {}).flatMap(([name, sizes]) =>
      Object.entries(sizes).map(([size, number]) => `${number} of ${size} ${name}`));
    show(
      make("h2", {}, `${found.action} ${found.subject}${found.node ? ` on ${found.node}` : ""}`),
      facts,
      found.reason || found.message ? make("p", {}, make("span", { class: `tag ${kind}` }, found.reason || ""),
        found.reason && found.message ? ": " : "", found.message || "") : null,
      make("p", { class: "quiet" }, `${entryOf(found.seq, journal)}, ${moment(found.at)} UTC, by the ${found.by}` +
        (found.missing ? `; ${count(found.missing, "unit")} missing` : "")),
      asked ? make("p", {}, `asked for ${asked}`) : null,
      held.length ? make("p", {}, `held and placed nowhere: ${held.join(", ")}`) : null,
      ...nodeTable(found),
      ...budgetTable(found.budgets || []),
    );
  }

  function nodeTable(found) {
    if (!found.groups.length) return [];
    const total = found.groups.reduce((sum, group) => sum + group.nodes.length, 0);
    const rows = found.groups.map((group) => {
      const names = group.nodes.map((node) => data.nodes[node]);
      const chosen = found.action === "Bind" && names.includes(found.node);
      const verdict = chosen ? "chosen" : group.why ? "no" : "fits";
      const left = group.why ? "" : found.action === "Bind" && !chosen ? `would leave ${group.left} free` : `${group.left} left`;
      const which = names.length <= 3 ? names.join(", ") : make("details", {},
        make("summary", {}, `${names[0]} and ${(names.length - 1).toLocaleString("en")} more`), names.join(", "));
      return make("tr", {},
        make("td", { class: "wrap" }, which),
        make("td", {}, verdict),
        make("td", { class: "number" }, Object.values(group.free).join(", ")),
        make("td", { class: "number" }, group.missing || ""),
        make("td", { class: "wrap" }, group.why || left));
    });
    return [make("h3", {}, `Every node (${total.toLocaleString("en")})`), make("div", { class: "scroll" }, make("table", {},
      head(["Node", "", "Free", "Missing", "Why"], [2, 3]), make("tbody", {}, rows)))];
  }

  function budgetTable(budgets) {
    if (!budgets.length) return [];
    const rows = budgets.map((line) => make("tr", {},
      make("td", { class: "wrap" }, line.tenant), make("td", { class: "wrap" }, line.key),
      make("td", { class: "number" }, line.budget === undefined || line.budget === null ? "none" : line.budget),
      make("td", { class: "number" }, line.charge),
      make("td", { class: "number" }, line.error ? line.error : line.left === undefined || line.left === null ? "" : line.left)));
    return [make("h3", {}, "Budgets, nearest tenant first"), make("div", { class: "scroll" }, make("table", {},
      head(["Tenant", "Key", "Budget", "Charged", "Left"], [2, 3, 4]), make("tbody", {}, rows)))];
  }

  function head(titles, numbers) {
    return make("thead", {}, make("tr", {}, titles.map((title, index) =>
      make("th", { scope: "col", class: numbers.includes(index) ? "number" : "" }, title))));
  }

  /* All together. */

  function drawAll() {
    const nodes = shownNodes();
    const points = last(data.totals[view.resource]);
    by("units-note").textContent = points
      ? `at the end: ${points[1]} served, ${points[2]} placed, ${points[3]} raw, ${points[4]} free, ${points[5]} held and placed nowhere` +
        (points[6] ? `; ${count(points[6], "node")} silent` : "") +
        (points[7] ? `; ${points[7]} in use, not served` : "") +
        (data.step > 1 ? `; changes within ${data.step / 1000} s of each other are drawn as one` : "")
      : "nothing served";
    const marks = shownMarks().filter(inWindow).reverse();
    drawFigures(nodes, marks);
    drawTable(marks);
    return Promise.all([drawEvents(), drawUnits(), drawNodes(nodes), drawHolders(nodes)]);
  }

  function filterChanged() {
    view.filter = by("filter").value.trim().toLowerCase();
    view.page = 0;
    view.rows = TABLE_ROWS;
    drawAll();
  }

  function begin() {
    const names = [...namesOf.keys()].sort((a, b) => namesOf.get(b).size - namesOf.get(a).size || (a < b ? -1 : 1));
    view.resource = names[0] || "";
    by("resource").replaceChildren(...names.map((name) => {
      const classes = data.classes[name] || [];
      return make("option", { value: name }, classes.length ? `${name} (${classes.join(", ")})` : name);
    }));
    by("controls").addEventListener("submit", (event) => event.preventDefault());
    by("resource").addEventListener("change", () => { view.resource = by("resource").value; view.page = 0; drawAll(); });
    by("order").addEventListener("change", () => { view.order = by("order").value; view.page = 0; drawAll(); });
    let waiting = 0;
    by("filter").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filterChanged, 200); });
    by("all-time").addEventListener("click", () => { view.range = null; drawAll(); });
    by("previous").addEventListener("click", () => { view.page -= 1; drawHolders(shownNodes()); });
    by("next").addEventListener("click", () => { view.page += 1; drawHolders(shownNodes()); });
    by("more").addEventListener("click", () => { view.rows += 10 * TABLE_ROWS; drawAll(); });
    dark.addEventListener("change", () => drawAll());
    drawAll().then(() => { document.documentElement.dataset.ready = "yes"; });
  }

  begin();
})();
