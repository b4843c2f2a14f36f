"""The report's page: HTML, CSS and script in one text, so that it opens anywhere.

It works in an iframe that allows scripts but not same-origin (MLflow's artifact view): no storage,
no links to fragments, nothing fetched. Without scripts every elite is simply shown.
"""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { --bg:#f6f7f9; --card:#fff; --ink:#1d2733; --faint:#5b6773; --rule:#dfe3e8; --accent:#1f5fa8;
  --good:#1a7f4b; --warn:#9a6700; --bad:#b3261e; --empty:#ececec; --code:#f3f5f8; }
@media (prefers-color-scheme: dark) { :root { --bg:#12161c; --card:#1a2029; --ink:#e4e9f0;
  --faint:#98a4b3; --rule:#303946; --accent:#7db4f5; --good:#5cc98f; --warn:#e0b050; --bad:#ff8a80;
  --empty:#252c36; --code:#141920; } }
* { box-sizing:border-box }
body { margin:0; background:var(--bg); color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; }
main { max-width:1240px; margin:0 auto; padding:28px 24px 60px }
h1 { font-size:26px; margin:0 0 4px } h2 { font-size:18px; margin:0 0 12px } h3 { margin:0 }
section, article { background:var(--card); border:1px solid var(--rule); border-radius:10px;
  padding:18px 20px; margin-top:18px; overflow-x:auto }
.faint { color:var(--faint) } .small { font-size:13px } p { margin:6px 0 }
.pill { display:inline-block; padding:1px 9px; border-radius:99px; border:1px solid currentColor;
  font-size:12.5px; vertical-align:middle; white-space:nowrap }
.good { color:var(--good) } .warn { color:var(--warn) } .bad { color:var(--bad) }
.cards { display:flex; flex-wrap:wrap; gap:12px; margin-top:18px }
.cards div { flex:1 1 170px; background:var(--card); border:1px solid var(--rule);
  border-radius:10px; padding:12px 16px }
.cards b { display:block; font-size:22px; line-height:1.3; white-space:nowrap }
table { border-collapse:collapse; font-variant-numeric:tabular-nums }
th, td { text-align:left; padding:5px 12px 5px 0; border-bottom:1px solid var(--rule);
  vertical-align:top }
th { color:var(--faint); font-weight:600; font-size:13px; white-space:nowrap }
td.n, th.n { text-align:right } table.wide { width:100% }
.verdict { min-width:240px } .nowrap { white-space:nowrap }
th button { all:unset; cursor:pointer } th button:hover, th button:focus-visible {
  color:var(--accent); text-decoration:underline }
th[aria-sort=ascending] button::after { content:" \\2191" }
th[aria-sort=descending] button::after { content:" \\2193" }
tr[data-elite] { cursor:pointer } tr[data-elite]:hover td { background:var(--code) }
tr.chosen td { background:var(--code); box-shadow:inset 0 -2px var(--accent) }
.group td { border-bottom:0; padding-top:9px }
.map { display:grid; grid-template-columns:repeat(auto-fit,minmax(490px,1fr)); gap:20px 24px }
.map table { font-size:13px; justify-self:start }
.map caption { text-align:left; padding-bottom:6px; font-weight:600 }
.map th, .map td { border:0; padding:2px; font-weight:400; text-align:center; font-size:12px }
.map th[scope=row] { text-align:right; padding-right:6px }
.map th { vertical-align:middle }
.map .cell { display:block; width:92px; height:46px; line-height:46px; border:0; border-radius:5px;
  background:var(--empty); font-size:14px; padding:0 }
.map button.cell { cursor:pointer } .map button.light { color:#1d2733 }
.map button.dark { color:#fff } .map button.cell:hover, .map button.cell:focus-visible {
  outline:2px solid var(--accent); outline-offset:1px }
.map button.best { box-shadow:0 0 0 2.5px #d7263d; font-weight:700 }
.charts { display:flex; flex-wrap:wrap; gap:18px } .charts figure { flex:1 1 420px; margin:0 }
figcaption { font-weight:600; font-size:14px } .chart { width:100%; height:auto }
.chart .grid { stroke:var(--rule) } .chart .tick { fill:var(--faint); font-size:11.5px }
.chart .line { fill:none; stroke:var(--accent); stroke-width:2 }
.chart .band { fill:var(--accent); opacity:.18 } .chart .dot { fill:var(--accent) }
.bar { display:inline-block; height:11px; border-radius:3px; background:var(--accent);
  margin-right:8px; vertical-align:middle; min-width:2px }
pre { background:var(--code); border:1px solid var(--rule); border-radius:8px; padding:12px 14px;
  overflow-x:auto; font:13px/1.45 ui-monospace,"SFMono-Regular",Menlo,"DejaVu Sans Mono",monospace }
.cols { display:flex; flex-wrap:wrap; gap:10px 44px } .cols > div { min-width:220px }
h4 { margin:14px 0 4px; font-size:14px }
code { font:13px ui-monospace,Menlo,"DejaVu Sans Mono",monospace; overflow-wrap:anywhere }
pre .c,pre .c1,pre .cm { color:var(--faint); font-style:italic } pre .cp { color:var(--warn) }
pre .k,pre .kt,pre .kd,pre .kr,pre .kn { color:var(--accent) } pre .nf { font-weight:600 }
pre .mi,pre .mf,pre .mh,pre .s,pre .s1,pre .s2 { color:var(--good) }
</style>
</head>
<body><main>
<header>
  <h1>{{ info.task }} on {{ info.backend }}
    <span class="pill {{ status_class }}">{{ summary.status }}</span>
    <span class="pill">{{ time_kind }}</span></h1>
  {% if info.description %}<p>{{ info.description }}</p>{% endif %}
  <p class="faint">{{ summary.device.name }}{% if summary.message %} &middot; {{ summary.message }}
  {%- endif %}</p>
</header>
<div class="cards">
{% for card in cards %}<div><span class="small faint">{{ card.name }}</span><b>{{ card.value }}</b>
<span class="small faint">{{ card.note }}</span></div>
{% endfor %}</div>

<section><h2>Confirmed speed-ups over the baseline</h2>
{% if confirm %}
<table class="wide"><thead><tr><th>elite</th><th>cell</th><th>workload</th><th class="n">baseline
</th><th class="n">latency</th><th class="n">speed-up, 95 % interval</th><th class="n">of roofline
</th><th>verdict</th></tr></thead><tbody>
{% for row in confirm %}
<tr class="group"{% if row.listed %} data-elite="{{ row.id }}"{% endif %}><td><b>{{ row.id }}</b>
</td><td class="nowrap">{{ row.cell }}</td><td>{{ row.scope }}</td><td></td><td></td>
<td class="n nowrap"><b>{{ row.speedup }}</b></td><td></td>
<td class="verdict {{ row.verdict_class }}">{{ row.verdict }}
<span class="faint small">search said {{ row.search }} on its own workloads;
{{ row.samples }}</span></td></tr>
{% for item in row.workloads %}
<tr><td></td><td></td><td>{{ item.workload }}{% if item.confirm_only %}*{% endif %}</td>
<td class="n nowrap">{{ item.baseline }}</td><td class="n nowrap">{{ item.latency }}</td>
<td class="n nowrap">{{ item.speedup }}</td><td class="n nowrap">{{ item.sol }}</td><td></td></tr>
{% endfor %}{% endfor %}
</tbody></table>
<p class="small faint">{{ confirm_caption }}</p>
{% else %}<p class="warn">No confirm pass was made: the speed-ups below are the search's own
estimates, which favour lucky measurements.</p>{% endif %}
</section>

<section><h2>Archive <span class="faint small">{{ archive_line }}</span></h2>
<div class="map">
{% for slice in slices %}<table><caption>{{ slice.name }}</caption>
{% for row in slice.rows %}<tr><th scope="row">{{ row.name }}</th>
{% for cell in row.cells %}<td>{% if cell.id %}<button type="button" data-elite="{{ cell.id }}"
 class="cell {{ cell.shade }}{% if cell.best %} best{% endif %}"
 style="background:{{ cell.colour }}" title="{{ cell.tip }}">{{ cell.text }}</button>
{% else %}<span class="cell"></span>{% endif %}</td>
{% endfor %}</tr>{% endfor %}
<tr><th></th>{% for name in slice.columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr>
</table>{% endfor %}
</div>
<p class="small faint">Rows: {{ axis_names[0] }}. Columns: {{ axis_names[1] }}. Speed-ups are the
search's estimates. Choose a cell or a row to see its kernel.</p>
</section>

<section><h2>Progress</h2><div class="charts">
{% for chart in charts %}<figure><figcaption>{{ chart.name }}</figcaption>{{ chart.svg }}</figure>
{% endfor %}
</div></section>

<section><h2>Outcomes <span class="faint small">{{ outcome_line }}</span></h2>
<table>{% for row in outcomes %}<tr><th>{{ row.name }}</th><td class="n">{{ row.count }}</td>
<td><span class="bar" style="width:{{ row.width }}px"></span>
<span class="faint small">{{ row.meaning }}</span></td></tr>{% endfor %}</table></section>

<section><h2>Elites</h2>
<table class="wide" id="elites"><thead><tr>
{% for name in elite_columns %}<th{% if loop.index0 in numeric %} class="n"{% endif %}
 {%- if loop.index0 == 2 %} aria-sort="descending"{% endif %}>
<button type="button">{{ name }}</button></th>{% endfor %}</tr></thead><tbody>
{% for elite in elites %}<tr data-elite="{{ elite.id }}">
{% for value in elite.columns %}<td data-value="{{ value.key }}"
 {%- if loop.index0 in numeric %} class="n nowrap"{% elif loop.index0 < 2 %} class="nowrap"
 {%- endif %}>{{ value.text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></section>

<div id="details">
{% for elite in elites %}<article data-detail="{{ elite.id }}">
<h3>{{ elite.id }} <span class="faint">{{ elite.levels }}</span></h3>
<div class="cols"><div><h4>Speed-up (search)</h4>{{ elite.speedup }}<br>
<span class="faint small">{{ elite.samples }}</span>
<h4>Parameters</h4><table>{% for name, value in elite.params %}<tr><th>{{ name }}</th>
<td>{{ value }}</td></tr>{% endfor %}</table></div>
<div><h4>Timings</h4><table><tr><th>workload</th><th class="n">baseline</th><th class="n">latency
</th><th class="n">speed-up</th><th class="n">of roofline</th></tr>
{% for item in elite.workloads %}<tr><td>{{ item.workload }}</td><td class="n">{{ item.baseline }}
</td><td class="n">{{ item.latency }}</td><td class="n">{{ item.speedup }}</td>
<td class="n">{{ item.sol }}</td></tr>{% endfor %}</table>
<h4>Compiler</h4>{{ elite.resources }}</div>
<div><h4>Correctness</h4>{{ elite.correctness }}</div></div>
<h4>Lineage</h4><pre>{{ elite.lineage }}</pre>
<h4>Source <span class="faint small">{{ elite.template }}</span></h4>
{% if elite.source %}<pre>{{ elite.source }}</pre>{% else %}<p class="faint">Not recorded.</p>
{% endif %}
</article>{% endfor %}
</div>

<section><h2>How this was made</h2><table>
{% for name, value in facts %}<tr><th>{{ name }}</th><td><code>{{ value }}</code></td></tr>
{% endfor %}</table>
{% if info.resolved_yaml %}<details><summary>Whole configuration</summary>
<pre>{{ info.resolved_yaml }}</pre></details>{% endif %}</section>
</main>
<script>
(function () {
  "use strict";
  var details = document.querySelectorAll("[data-detail]");
  function choose(id, scroll) {
    details.forEach(function (item) {
      item.hidden = item.dataset.detail !== id;
      if (!item.hidden && scroll) item.scrollIntoView({behavior: "smooth", block: "start"});
    });
    document.querySelectorAll("tr[data-elite]").forEach(function (row) {
      row.classList.toggle("chosen", row.dataset.elite === id);
    });
  }
  document.addEventListener("click", function (event) {
    var target = event.target.closest("[data-elite]");
    if (target) choose(target.dataset.elite, true);
  });
  if (details.length) choose(details[0].dataset.detail, false);
  var table = document.getElementById("elites"), heads = table.querySelectorAll("th");
  heads.forEach(function (head, column) {
    head.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") !== "descending", body = table.tBodies[0];
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      Array.from(body.rows).sort(function (a, b) {
        var x = a.cells[column].dataset.value, y = b.cells[column].dataset.value;
        var order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return down ? -order : order;
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
})();
</script>
</body></html>
"""
