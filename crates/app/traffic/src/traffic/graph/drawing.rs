//! The graph as a picture, for Graphviz and as SVG.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use fairmesh_wire::v1::{GraphEdge, TrafficGraphResponse};

use super::{label, times, total};

/// Width and height of a box, and the horizontal and vertical distances between boxes.
const BOX: (usize, usize) = (190, 44);
const GAP: (usize, usize) = (130, 26);
const MARGIN: usize = 20;

/// Formats the graph in the language of Graphviz.
pub(super) fn dot(graph: &TrafficGraphResponse) -> String {
    let mut text = "digraph calls {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
    for (name, calls) in boxes(graph) {
        let _ = writeln!(text, "  {} [label={}];", quoted(&name), quoted(&format!("{name}\\n{calls:.1}/s")));
    }
    for edge in &graph.edges {
        let style = if edge.is_cut { ", style=dashed, constraint=false" } else { "" };
        let (parent, child) = (label(edge.parent.as_ref()), label(edge.child.as_ref()));
        let [parent, child, text_of] = [&parent, &child, &edge_text(edge)].map(|text| quoted(text));
        let _ = writeln!(text, "  {parent} -> {child} [label={text_of}{style}];");
    }
    text + "}\n"
}

/// Draws the graph as SVG: callers on the left, and each node to the right of all its callers.
pub(super) fn svg(graph: &TrafficGraphResponse) -> String {
    let (boxes, columns) = (boxes(graph), columns(graph));
    let mut used = BTreeMap::<usize, usize>::new();
    let mut places = BTreeMap::new();
    for name in boxes.keys() {
        let column = columns.get(name).copied().unwrap_or_default();
        let row = used.entry(column).or_default();
        let x = MARGIN + column * (BOX.0 + GAP.0);
        places.insert(name.as_str(), (x, MARGIN + *row * (BOX.1 + GAP.1)));
        *row += 1;
    }
    let width = 2 * MARGIN + BOX.0 + used.keys().max().unwrap_or(&0) * (BOX.0 + GAP.0);
    let height = 2 * MARGIN + used.values().max().unwrap_or(&0) * (BOX.1 + GAP.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for edge in &graph.edges {
        draw_edge(&mut svg, edge, &places);
    }
    for (name, calls) in &boxes {
        draw_box(&mut svg, places[name.as_str()], name, *calls);
    }
    svg + "</svg>\n"
}

/// Returns all nodes with their calls per second: the greatest of calls over edges, served calls and client demand.
fn boxes(graph: &TrafficGraphResponse) -> BTreeMap<String, f64> {
    let mut boxes = BTreeMap::<String, f64>::new();
    for edge in &graph.edges {
        *boxes.entry(label(edge.child.as_ref())).or_default() += total(&edge.from);
        boxes.entry(label(edge.parent.as_ref())).or_default();
    }
    for node in &graph.nodes {
        let calls = boxes.entry(label(node.node.as_ref())).or_default();
        *calls = calls.max(total(&node.served)).max(total(&node.demand));
    }
    boxes
}

/// Returns the column of each node: the length of the longest path to it, ignoring cut edges.
fn columns(graph: &TrafficGraphResponse) -> BTreeMap<String, usize> {
    let edges: BTreeSet<_> = graph.edges.iter().filter(|edge| !edge.is_cut).map(ends).collect();
    let mut columns = BTreeMap::<String, usize>::new();
    // Each round settles one more column, and there are no cycles.
    for _ in 0..=graph.nodes.len() {
        let mut changed = false;
        for (parent, child) in &edges {
            let after = columns.get(parent).copied().unwrap_or_default() + 1;
            let column = columns.entry(child.clone()).or_default();
            changed |= *column < after;
            *column = (*column).max(after);
        }
        if !changed {
            break;
        }
    }
    columns
}

fn ends(edge: &GraphEdge) -> (String, String) {
    (label(edge.parent.as_ref()), label(edge.child.as_ref()))
}

fn edge_text(edge: &GraphEdge) -> String {
    format!("{} · {:.1}/s", times(edge.multiplicity), total(&edge.from))
}

fn draw_edge(svg: &mut String, edge: &GraphEdge, places: &BTreeMap<&str, (usize, usize)>) {
    let (parent, child) = ends(edge);
    let (Some(from), Some(to)) = (places.get(parent.as_str()), places.get(child.as_str())) else { return };
    let (x1, y1, x2, y2) = (from.0 + BOX.0, from.1 + BOX.1 / 2, to.0, to.1 + BOX.1 / 2);
    let (bend, dash) = (GAP.0 / 2, if edge.is_cut { " stroke-dasharray=\"5 4\"" } else { "" });
    let (bend1, bend2) = (x1 + bend, x2.saturating_sub(bend));
    let _ = writeln!(
        svg,
        "<path d=\"M{x1} {y1} C{bend1} {y1} {bend2} {y2} {x2} {y2}\" fill=\"none\" stroke=\"#4878a8\"{dash}/>"
    );
    let (x, y) = (x1.midpoint(x2), y1.midpoint(y2).saturating_sub(4));
    let text = escaped(&edge_text(edge));
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#444\">{text}</text>");
}

fn draw_box(svg: &mut String, (x, y): (usize, usize), name: &str, calls: f64) {
    let (width, height) = BOX;
    let (middle, upper, lower, name) = (x + width / 2, y + 18, y + 35, escaped(name));
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"5\" fill=\"#eef3f8\" stroke=\"#4878a8\"/>\n\
         <text x=\"{middle}\" y=\"{upper}\" text-anchor=\"middle\">{name}</text>\n\
         <text x=\"{middle}\" y=\"{lower}\" text-anchor=\"middle\" fill=\"#444\">{calls:.1}/s</text>"
    );
}

/// Quotes a name. Names of services and classes need no escapes, but contain `/` and spaces.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\\""))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
