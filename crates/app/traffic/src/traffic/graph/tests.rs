use super::*;

fn node(text: &str) -> Option<CallNode> {
    let (service, class) = text.split_once(' ').unwrap_or((text, ""));
    Some(CallNode { service: service.to_owned(), class: class.to_owned() })
}

fn calls(calls: f64) -> Vec<RegionCalls> {
    vec![RegionCalls { region: "eu".into(), calls }]
}

fn edge(parent: &str, child: &str, each: f64, is_cut: bool) -> GraphEdge {
    GraphEdge {
        parent: node(parent),
        child: node(child),
        from: calls(each * 10.0),
        multiplicity: Some(each),
        request_bytes: 12.0,
        response_bytes: 340.4,
        time_us: Some(4_200.0),
        is_cut,
        age_ms: 600,
    }
}

fn graph() -> TrafficGraphResponse {
    let nodes = ["shop/web", "shop/web bulk", "shop/cart", "shop/db"];
    let node = |name| GraphNode { node: node(name), served: calls(10.0), demand: Vec::new(), age_ms: 500 };
    TrafficGraphResponse {
        nodes: nodes.map(node).into(),
        edges: vec![
            edge("shop/web", "shop/cart", 2.0, false),
            edge("shop/web", "shop/db", 0.5, false),
            edge("shop/web bulk", "shop/cart", 1.0, false),
            edge("shop/cart", "shop/db", 1.0, false),
            edge("shop/db", "shop/cart", 0.1, true),
        ],
        counted_ms: 12_000,
        ..TrafficGraphResponse::default()
    }
}

#[test]
fn call_graph_tree_shows_shared_callees_once_and_cuts_cycles() {
    let rows = tree::rows(&graph(), None);
    let names: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    let expected = [
        "shop/web",
        "├─ shop/cart",
        "│  └─ shop/db",
        "│     └─ shop/cart (closes a cycle)",
        "└─ shop/db (see above)",
        "shop/web [bulk]",
        "└─ shop/cart (see above)",
    ];
    assert_eq!(names, expected);
    assert_eq!(rows[1][1..], ["×2.00", "20.0", "4.2 ms", "12 B", "340 B", "0.6 s"]);
    let below: Vec<_> =
        tree::rows(&graph(), Some("shop/cart")).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(below, ["shop/cart", "└─ shop/db", "   └─ shop/cart (closes a cycle)"]);
}

#[test]
fn call_graph_drawings_have_every_node_and_edge() {
    let dot = drawing::dot(&graph());
    for part in ["digraph calls", "\"shop/web\" -> \"shop/cart\" [label=\"×2.00 · 20.0/s\"]", "style=dashed"]
    {
        assert!(dot.contains(part), "{part} in {dot}");
    }
    let svg = drawing::svg(&graph());
    assert_eq!((svg.matches("<path").count(), svg.matches("<rect").count()), (5, 5));
    assert!(svg.contains("shop/web [bulk]") && svg.contains("stroke-dasharray"), "{svg}");
}

#[test]
fn call_graph_document_names_classes_and_regions() {
    let document = document(&graph());
    assert_eq!(document["nodes"][1]["node"], json!({"service": "shop/web", "class": "bulk"}));
    assert_eq!(document["edges"][0]["callsPerSecondFrom"], json!({"eu": 20.0}));
    assert_eq!(document["edges"][0]["parent"]["class"], Value::Null);
}
