"""Style: the page's colours and measures, for light and dark screens."""

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--card:#f6f8fa;--line:#d8dee4;--bad:#b42318;
--bad-card:#fef3f2;--committed:#2f7d5b;--rolled:#8c959f;--discarded:#c4432b;--pending:#2f6fdb;--unknown:#8e5bb5}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa5b1;--paper:#0f1419;--card:#171d24;--line:#2c343d;
--bad:#ff8f80;--bad-card:#2c1613;--committed:#4fb286;--rolled:#6e7883;--discarded:#ef6a52;--pending:#6ca4ff;
--unknown:#b98add}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.2;margin:0}
h2{font-size:18px;margin:0 0 8px}
small{color:var(--soft);font-weight:400}
header p,.words,.legend,section>p{color:var(--soft)}
header p{margin:6px 0 0;overflow-wrap:anywhere}
section{margin-top:36px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(max(230px,22%),1fr));gap:12px;margin-top:24px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;display:flex;
flex-direction:column}
.tile h2{font-size:13px;font-weight:500;color:var(--soft);margin:0}
.tile strong{font-size:26px;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{font-size:13px;color:var(--soft)}
.tile.bad{background:var(--bad-card);border-color:var(--bad)}
.tile.bad strong{color:var(--bad)}
.attention{margin:0;padding-left:20px}
.attention a{color:var(--bad)}
.attention .clean{color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 6px;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.chart{width:100%;height:auto;display:block}
.chart text{font-size:12px;fill:var(--soft)}
.chart .grid{stroke:var(--line);stroke-width:1}
.chart .base{stroke:var(--soft);stroke-width:1}
.chart g:hover rect{opacity:.75}
.share{width:110px;height:12px;display:block}
.committed{fill:var(--committed);background:var(--committed)}
.rolled_back{fill:var(--rolled);background:var(--rolled)}
.discarded{fill:var(--discarded);background:var(--discarded)}
.pending{fill:var(--pending);background:var(--pending)}
.finished_unknown{fill:var(--unknown);background:var(--unknown)}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{padding:6px 9px;text-align:left;white-space:nowrap;border-top:1px solid var(--line)}
thead th{border-top:0;color:var(--soft);font-weight:500;background:var(--card)}
tbody th{font-weight:500}
tbody tr:hover{background:var(--card)}
.number{text-align:right;font-variant-numeric:tabular-nums}
.zero{color:var(--soft)}
code{font:12.5px/1.4 ui-monospace,SFMono-Regular,Menlo,monospace}
@media print{.wide{overflow:visible}main{max-width:none}}
""".replace("\n", "")
