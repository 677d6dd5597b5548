//! The graph as a text tree. A node with several parents is drawn below each, but its children only once.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_console::output::{ago, decimal};
use fairmesh_wire::v1::{GraphEdge, GraphNode, TrafficGraphResponse};

use super::{MICROS, label, times, total};

/// Column headings.
pub(super) const HEAD: [&str; 7] = ["NODE", "EACH", "CALLS/S", "MEAN TIME", "REQUEST", "RESPONSE", "AGE"];

struct Tree<'a> {
    nodes: BTreeMap<String, &'a GraphNode>,
    children: BTreeMap<String, Vec<&'a GraphEdge>>,
    drawn: BTreeSet<String>,
    rows: Vec<Vec<String>>,
}

/// The rows of the graph, starting from the classes of a service, or from all nodes without a caller.
pub(super) fn rows(graph: &TrafficGraphResponse, service: Option<&str>) -> Vec<Vec<String>> {
    let mut children = BTreeMap::<String, Vec<&GraphEdge>>::new();
    for edge in &graph.edges {
        children.entry(label(edge.parent.as_ref())).or_default().push(edge);
    }
    let called: BTreeSet<String> =
        graph.edges.iter().filter(|edge| !edge.is_cut).map(|edge| label(edge.child.as_ref())).collect();
    let is_root = |node: &GraphNode| match service {
        Some(service) => node.node.as_ref().is_some_and(|node| node.service == service),
        None => !called.contains(&label(node.node.as_ref())),
    };
    let nodes = graph.nodes.iter().map(|node| (label(node.node.as_ref()), node)).collect();
    let mut tree = Tree { nodes, children, drawn: BTreeSet::new(), rows: Vec::new() };
    for root in graph.nodes.iter().filter(|node| is_root(node)) {
        tree.draw_root(root);
    }
    tree.rows
}

impl Tree<'_> {
    fn draw_root(&mut self, root: &GraphNode) {
        let name = label(root.node.as_ref());
        let calls = decimal(total(&root.served).max(total(&root.demand)), 1);
        let dash = || "-".to_owned();
        self.rows.push(vec![name.clone(), dash(), calls, dash(), dash(), dash(), ago(root.age_ms)]);
        self.draw_children(&name, "");
    }

    fn draw_children(&mut self, name: &str, indent: &str) {
        if !self.drawn.insert(name.to_owned()) {
            return;
        }
        let edges = self.children.get(name).cloned().unwrap_or_default();
        for (position, edge) in edges.iter().enumerate() {
            let is_last = position + 1 == edges.len();
            let child = label(edge.child.as_ref());
            let has_more = !edge.is_cut && self.children.contains_key(&child) && self.drawn.contains(&child);
            let mark = match (edge.is_cut, has_more) {
                (true, _) => " (closes a cycle)",
                (_, true) => " (see above)",
                _ => "",
            };
            let branch = if is_last { "└─ " } else { "├─ " };
            self.rows.push(row(format!("{indent}{branch}{child}{mark}"), edge));
            // Nodes outside the graph below a service have no children here.
            if !edge.is_cut && self.nodes.contains_key(&child) {
                let deeper = if is_last { "   " } else { "│  " };
                self.draw_children(&child, &format!("{indent}{deeper}"));
            }
        }
    }
}

fn row(name: String, edge: &GraphEdge) -> Vec<String> {
    let time = edge.time_us.map(|micros| decimal(micros / MICROS, 1) + " ms");
    vec![
        name,
        times(edge.multiplicity),
        decimal(total(&edge.from), 1),
        time.unwrap_or_else(|| "-".to_owned()),
        decimal(edge.request_bytes, 0) + " B",
        decimal(edge.response_bytes, 0) + " B",
        ago(edge.age_ms),
    ]
}
