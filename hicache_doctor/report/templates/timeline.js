(() => {
  const box = document.getElementById("timeline");
  const spec = JSON.parse(document.getElementById("timeline-data").textContent);
  const font = getComputedStyle(document.body).fontFamily;
  const inks = () => {
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--ink").trim();
    const faint = css.getPropertyValue("--rule").trim();
    const paper = css.getPropertyValue("--paper").trim();
    return {
      "font": {family: font, size: 12, color: ink},
      "xaxis.gridcolor": faint, "xaxis.linecolor": faint, "yaxis.linecolor": faint,
      "hoverlabel": {bgcolor: paper, bordercolor: faint, font: {color: ink, size: 12}, align: "left"},
    };
  };
  Plotly.newPlot(box, spec.data, spec.layout, {displayModeBar: false, responsive: true})
    .then(() => Plotly.relayout(box, inks()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Plotly.relayout(box, inks()));
})();
