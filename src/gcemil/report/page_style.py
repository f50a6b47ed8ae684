"""The style of a page: quiet, printable, two inks and one accent. No address, no import, no font to fetch."""

from __future__ import annotations

from gcemil.report.style import ATTENTION_COLOR, EVIDENCE_COLOR, INK, LINE, MUTED

STYLE = (
    ":root{"
    f"--ink:{INK};--muted:{MUTED};--line:{LINE};--accent:{EVIDENCE_COLOR};--held:{ATTENTION_COLOR};"
    "--wash:#f5f7f8;--paper:#fff}"
    """
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0;color:var(--ink);background:var(--paper);font:16px/1.55 "Source Sans 3","Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
  display:grid;grid-template-columns:13rem minmax(0,62rem);gap:0 3rem;justify-content:center;padding:0 1.5rem}
nav{position:sticky;top:0;align-self:start;padding:3.4rem 0 2rem;max-height:100vh;overflow:auto;font-size:.88rem}
nav ul{list-style:none;margin:0;padding:0;border-left:1px solid var(--line)}
nav a{display:block;padding:.22rem 0 .22rem .9rem;margin-left:-1px;border-left:2px solid transparent;color:var(--muted);text-decoration:none}
nav a:hover,nav a:focus-visible{color:var(--ink);border-left-color:var(--accent)}
main{padding:2.6rem 0 5rem}
h1{font-size:1.9rem;line-height:1.2;margin:.1rem 0 .3rem;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.35rem;margin:0 0 .8rem;letter-spacing:-.005em}
h3{font-size:1.04rem;margin:2rem 0 .5rem}
h4{font-size:.92rem;margin:1rem 0 .35rem}
p{margin:.5rem 0;max-width:46rem}
a{color:inherit;text-decoration-color:var(--muted);text-underline-offset:.16em}
section{padding:2.6rem 0 0;margin-top:2.6rem;border-top:1px solid var(--line);scroll-margin-top:0}
code{font:.84em/1.4 ui-monospace,"SF Mono",Consolas,"DejaVu Sans Mono",monospace;background:var(--wash);border:1px solid var(--line);border-radius:3px;padding:.08em .38em;overflow-wrap:anywhere}
small{color:var(--muted);font-size:.8em;font-weight:400;margin-left:.3em;white-space:nowrap}
.eyebrow{color:var(--muted);font-size:.84rem;letter-spacing:.06em;text-transform:uppercase;margin:0}
.facts{color:var(--muted);margin:0 0 1.4rem}
.note,figcaption{color:var(--muted);font-size:.87rem;line-height:1.5}
.caution{border-left:3px solid #e6a000;padding:.15rem 0 .15rem .8rem;font-size:.92rem}
.answer{font-size:1.42rem;line-height:1.35;margin:.2rem 0 1rem;max-width:46rem}
.answer b{color:var(--accent);font-weight:700}
.criteria{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:1rem;margin:1.3rem 0}
.criterion{border:1px solid var(--line);border-radius:6px;padding:1rem 1.1rem}
.criterion h3{margin:0;font-size:.95rem}
.criterion .big{font-size:1.9rem;line-height:1.2;font-variant-numeric:tabular-nums;margin:.25rem 0 .1rem}
.criterion .big small{font-size:.46em}
.criterion p{font-size:.89rem;margin:.45rem 0 0}
.bar{display:block;position:relative;height:.55rem;background:#e9edef;border-radius:2px;min-width:5rem;margin:.35rem 0}
.bar .fill{position:absolute;inset:0 auto 0 0;background:var(--accent);border-radius:2px}
.bar .mark{position:absolute;top:-.2rem;bottom:-.2rem;width:2px;margin-left:-1px;background:var(--ink)}
.bar.attention .fill{background:var(--held)}.bar.random .fill{background:#a8a8a8}.bar.oracle .fill{background:#1b1b1b}
.rivals{display:grid;grid-template-columns:max-content 1fr max-content;gap:.1rem .7rem;align-items:center;font-size:.84rem;color:var(--muted);margin-top:.6rem}
.rivals .bar{height:.36rem;margin:0}
.scroll{overflow-x:auto;margin:.9rem 0 .4rem}
table{border-collapse:collapse;width:100%;font-size:.89rem;font-variant-numeric:tabular-nums;line-height:1.35}
caption{text-align:left;font-weight:600;padding:0 0 .45rem;font-size:.95rem}
th{font-weight:600;text-align:left;vertical-align:bottom;border-bottom:1.5px solid var(--ink);padding:.3rem .6rem .35rem 0;font-size:.84rem}
th.group{border:0;color:var(--muted);font-weight:400;padding:0 0 .1rem .9rem;text-align:right}
th.group span{display:block;border-bottom:1px solid var(--line);padding-bottom:.1rem}
td{border-bottom:1px solid var(--line);padding:.34rem .6rem .34rem 0;vertical-align:baseline}
td.number{text-align:right;white-space:nowrap;padding-left:.6rem}
th.number{text-align:right;padding-left:.6rem;min-width:4.6rem}
td.name{white-space:nowrap}
tr.own td:first-child{box-shadow:inset 3px 0 0 var(--accent);padding-left:.6rem}
tr.control{color:var(--muted)}
figure{margin:1.4rem 0}
figure img{max-width:100%;height:auto;display:block}
figcaption{margin-top:.45rem;max-width:46rem}
.missing{border:1px dashed #b9c1c7;border-radius:6px;padding:.7rem 1rem;margin:1rem 0;font-size:.92rem;color:var(--muted)}
.missing code{color:var(--ink)}
.chips{display:flex;flex-wrap:wrap;gap:.3rem}
.chip{border:1px solid var(--line);border-radius:999px;font-size:.76rem;padding:.02rem .5rem;color:var(--muted);white-space:nowrap}
.chip.held{border-color:var(--held);color:var(--held)}
.chip.failed{border-color:var(--accent);color:var(--accent)}
.filter{display:flex;flex-wrap:wrap;gap:.4rem 1.1rem;margin:.9rem 0;font-size:.9rem}
.filter label{cursor:pointer}
details.bag{border-top:1px solid var(--line)}
details.bag:last-of-type{border-bottom:1px solid var(--line)}
details.bag>summary{display:grid;grid-template-columns:minmax(9rem,1fr) minmax(9rem,1fr) 28rem;gap:.2rem 1rem;padding:.5rem 0;cursor:pointer;list-style:none;align-items:baseline}
details.bag>summary::-webkit-details-marker{display:none}
details.bag>summary::before{content:"▸";position:absolute;margin-left:-1.1rem;color:var(--muted)}
details.bag[open]>summary::before{content:"▾"}
details.bag>summary:hover{background:var(--wash)}
details.bag .name{font-weight:600;overflow-wrap:anywhere}
.sheet{display:grid;grid-template-columns:minmax(0,1.35fr) minmax(0,1fr);gap:.4rem 2.4rem;padding:.3rem 0 1.4rem}
.sheet img{max-width:100%;height:auto;image-rendering:auto}
.outputs{display:grid;grid-template-columns:max-content 1fr max-content;gap:.25rem .8rem;align-items:center;font-size:.87rem;font-variant-numeric:tabular-nums}
.outputs .bar{margin:0}
.anchors{display:grid;grid-template-columns:minmax(0,1.5fr) minmax(4rem,1fr) max-content;gap:.15rem .8rem;align-items:center;font-size:.83rem;font-variant-numeric:tabular-nums}
.anchors .bar{height:.4rem;margin:0;background:#e9edef}
.anchors .bar .fill{background:#5b6770}
.verdicts{margin:.2rem 0 .6rem;padding:0;list-style:none;font-size:.88rem}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.85rem;color:var(--muted);margin:.5rem 0}
.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem;vertical-align:-.08rem;border:1px solid transparent}
dl{display:grid;grid-template-columns:minmax(8rem,max-content) minmax(0,1fr);gap:.15rem 1.2rem;font-size:.89rem;margin:.8rem 0}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}
pre{background:var(--wash);border:1px solid var(--line);border-radius:4px;padding:.8rem 1rem;font:.8rem/1.5 ui-monospace,Consolas,"DejaVu Sans Mono",monospace;overflow-x:auto}
.fold>summary{cursor:pointer;font-size:.92rem;padding:.3rem 0;color:var(--muted)}
.fold>summary:hover{color:var(--ink)}
#slides:has(#show-failing:checked) details.bag:not(.failing),#slides:has(#show-wrong:checked) details.bag:not(.wrong),
#slides:has(#show-unheld:checked) details.bag:not(.unheld){display:none}
@media(max-width:60rem){body{display:block;padding:0 1.1rem}nav{position:static;padding:1.4rem 0 0;max-height:none}nav ul{columns:2}.sheet{grid-template-columns:1fr}
  details.bag>summary{grid-template-columns:1fr;padding-left:1.1rem}details.bag>summary::before{margin-left:-1.1rem}}
@media print{body{display:block;font-size:10pt;padding:0}nav,.filter{display:none}main{padding:0}section{break-inside:auto;margin-top:1rem;padding-top:1rem}
  figure,tr,.criterion{break-inside:avoid}a{text-decoration:none}.scroll{overflow:visible}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
)
