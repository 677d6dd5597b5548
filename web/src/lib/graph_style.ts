import type { StylesheetJson } from "cytoscape";
import { colour } from "./theme.ts";

export const WIDTH = 152;
export const HEIGHT = 40;
const FONT = "system-ui, Segoe UI, Roboto, Arial, DejaVu Sans, sans-serif";

/** How the graph is drawn in the colours of the page. */
export function graphStyle(): StylesheetJson {
  const byLevel = (name: string) => ({ selector: `edge.${name}`, style: { "line-color": colour(name), "target-arrow-color": colour(name), color: colour(name), label: "data(short)" } });
  return [
    {
      selector: "node",
      style: {
        shape: "round-rectangle", width: WIDTH, height: HEIGHT,
        "background-color": colour("panel"), "border-width": 1, "border-color": colour("line-strong"),
        label: "data(text)", "text-wrap": "wrap", "text-max-width": `${WIDTH - 12}px`, "line-height": 1.25,
        "text-valign": "center", "text-halign": "center",
        "font-family": FONT, "font-size": 11.5, color: colour("text"),
      },
    },
    { selector: "node.focus", style: { "border-width": 2.5, "border-color": colour("accent") } },
    { selector: "node.folded", style: { "border-style": "double", "border-width": 4 } },
    { selector: "node.bad", style: { "border-color": colour("bad"), "background-color": colour("bad-soft"), "border-width": 2 } },
    { selector: "node.warn", style: { "border-color": colour("warn"), "border-width": 2 } },
    { selector: "node.unnamed", style: { "border-style": "dashed", color: colour("muted") } },
    // Without a position all would lie on each other.
    { selector: "node.unplaced", style: { display: "none" } },
    {
      selector: "edge",
      style: {
        width: "data(width)", "curve-style": "bezier", "target-arrow-shape": "triangle", "arrow-scale": 0.9,
        "line-color": colour("edge"), "target-arrow-color": colour("edge"),
        "font-family": FONT, "font-size": 10.5, color: colour("muted"), "text-wrap": "wrap", "text-margin-y": "data(offset)",
        "text-background-color": colour("ground"), "text-background-opacity": 0.92, "text-background-padding": "2px",
      },
    },
    { selector: "edge.loop", style: { "loop-direction": "0deg", "loop-sweep": "60deg", "control-point-step-size": 40 } },
    {
      selector: "edge.bent",
      style: { "curve-style": "segments", "edge-distances": "node-position", "segment-weights": "data(weights)", "segment-distances": "data(distances)" },
    },
    byLevel("warn"),
    byLevel("bad"),
    { selector: "edge.old", style: { "line-style": "dashed", "line-color": colour("old"), "target-arrow-color": colour("old") } },
    { selector: "edge.none", style: { "line-style": "dotted" } },
    {
      selector: "edge.shown",
      style: {
        label: "data(text)", "font-size": 11.5, color: colour("text"), "underlay-color": colour("accent"), "underlay-opacity": 0.25, "underlay-padding": 4,
        "text-background-color": colour("panel"), "text-background-opacity": 1, "text-background-padding": "4px",
        "text-border-color": colour("line-strong"), "text-border-width": 1, "text-border-opacity": 1,
        // Over nodes and other edges.
        "z-compound-depth": "top", "z-index-compare": "manual", "z-index": 10,
      },
    },
  ] as unknown as StylesheetJson;
}
