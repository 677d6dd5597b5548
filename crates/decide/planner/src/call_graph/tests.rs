use std::ops::Range;

use fairmesh_model::{CallPath, CallRates, ServedPath, ServedRates};

use super::*;

fn node(text: &str) -> CallNode {
    let (service, class) = text.split_once('/').unwrap_or((text, ""));
    CallNode {
        service: ServiceName::new(format!("shop/{service}")).unwrap(),
        class: (!class.is_empty()).then(|| class.parse().unwrap()),
    }
}

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

/// A sum of reports: calls per second that servers in `eu` processed, and those of each edge or, without a parent, of a root.
fn sum(served: &[(&str, u64)], calls: &[(Option<&str>, &str, u64)]) -> TrafficReport {
    let served = served.iter().map(|(name, calls)| {
        let path = ServedPath { node: node(name), region: region("eu"), bucket: None };
        (path, ServedRates { calls: calls * 1_000, exclusive_us: 0 })
    });
    let calls = calls.iter().map(|(parent, child, calls)| {
        let child = node(child);
        let path = CallPath {
            service: child.service,
            from: region("eu"),
            to: Some(region("eu")),
            class: child.class,
            caller: None,
            from_zone: None,
            to_zone: None,
            parent: parent.map(node),
        };
        let rates = CallRates {
            offered: calls * 1_000,
            attempts: calls * 1_000,
            answered: calls * 1_000,
            time_us: calls * 4_000,
            bytes: calls * 300,
            request_bytes: calls * 20,
            ..CallRates::default()
        };
        (path, rates)
    });
    TrafficReport { served: served.collect(), calls: calls.collect(), ..TrafficReport::default() }
}

/// A graph that saw the same sum for a minute.
fn observed(sum: &TrafficReport) -> CallGraph {
    let mut graph = CallGraph::default();
    (0..=60).for_each(|second| graph.observe(sum, second * 1_000));
    graph
}

fn edge<'a>(edges: &'a [GraphEdge], parent: &str, child: &str) -> &'a GraphEdge {
    edges.iter().find(|edge| edge.parent == node(parent) && edge.child == node(child)).unwrap()
}

#[test]
fn call_graph_edges_have_multiplicities_sizes_and_times() {
    let graph = observed(&sum(
        &[("web", 30), ("web/search", 10)],
        &[(None, "web", 30), (Some("web"), "cart", 60), (Some("web/search"), "cart", 5)],
    ));
    let edges = graph.edges(60_000);
    assert_eq!(edges.len(), 2);
    let cart = edge(&edges, "web", "cart");
    assert!((cart.multiplicity.unwrap() - 2.0).abs() < 1e-9, "{cart:?}");
    assert!((cart.from[&region("eu")] - 60.0).abs() < 1e-9, "{cart:?}");
    assert!((cart.response_bytes - 300.0).abs() < 1e-9 && (cart.request_bytes - 20.0).abs() < 1e-9);
    assert!((cart.time_us.unwrap() - 4_000.0).abs() < 1e-9);
    assert!((edge(&edges, "web/search", "cart").multiplicity.unwrap() - 0.5).abs() < 1e-9);

    let nodes = graph.nodes(60_000);
    let of = |name: &str| nodes.iter().find(|one| one.node == node(name)).unwrap();
    assert!((of("web").demand[&region("eu")] - 30.0).abs() < 1e-9);
    assert!((of("web/search").demand[&region("eu")] - 10.0).abs() < 1e-9, "callers outside of the mesh");
    assert!(of("cart").demand.is_empty() && of("cart").served.is_empty());
}

#[test]
fn edge_multiplicity_counts_parent_calls_since_first_report_of_edge() {
    let mut graph = CallGraph::default();
    let (before, after) = (sum(&[("web", 10)], &[]), sum(&[("web", 10)], &[(Some("web"), "cart", 20)]));
    (0..=100).for_each(|second| graph.observe(&before, second * 1_000));
    (101..=105).for_each(|second| graph.observe(&after, second * 1_000));
    let edges = graph.edges(105_000);
    assert!((edges[0].multiplicity.unwrap() - 2.0).abs() < 1e-9, "{edges:?}");
    // The program calls once for each call from now on.
    let changed = sum(&[("web", 10)], &[(Some("web"), "cart", 10)]);
    (106..=230).for_each(|second| graph.observe(&changed, second * 1_000));
    let multiplicity = graph.edges(230_000)[0].multiplicity.unwrap();
    assert!((multiplicity - 1.0).abs() < 0.02, "{multiplicity}");
}

#[test]
fn call_graph_edge_of_silent_program_ages_and_is_forgotten() {
    let mut graph = observed(&sum(&[("web", 10)], &[(Some("web"), "cart", 20)]));
    graph.observe(&TrafficReport::default(), 120_000);
    assert_eq!(graph.edges(120_000)[0].age_ms, 60_000);
    graph.observe(&TrafficReport::default(), 660_000);
    assert!(graph.edges(660_000).is_empty() && graph.nodes(660_000).is_empty());
}

#[test]
fn call_graph_cycles_are_cut_at_their_smallest_edge() {
    let graph = observed(&sum(
        &[],
        &[
            (Some("web"), "cart", 30),
            (Some("cart"), "stock", 20),
            (Some("stock"), "cart", 5),
            (Some("stock"), "web", 3),
            (Some("stock"), "db", 1),
            (Some("web"), "web", 2),
        ],
    ));
    let edges = graph.edges(60_000);
    let cut: Vec<_> = edges.iter().filter(|edge| edge.is_cut).map(|e| (&e.parent, &e.child)).collect();
    let expected = [("stock", "cart"), ("stock", "web"), ("web", "web")].map(|(p, c)| (node(p), node(c)));
    assert_eq!(cut, expected.iter().map(|(parent, child)| (parent, child)).collect::<Vec<_>>());
}

#[test]
fn call_graph_below_service_contains_direct_and_indirect_callees() {
    let graph = observed(&sum(
        &[],
        &[(Some("web"), "cart", 30), (Some("cart/bulk"), "db", 20), (Some("admin"), "audit", 5)],
    ));
    let below = graph.below(&node("web").service);
    assert_eq!(below, ["web", "cart", "db"].map(|name| node(name).service).into());
}

#[test]
fn call_graph_is_bounded_and_counts_nodes_left_out() {
    let names: Vec<String> = (0..MAX_GRAPH_NODES + 7).map(|number| format!("s{number}")).collect();
    let calls: Vec<_> = names.iter().map(|name| (None, name.as_str(), 1)).collect();
    let graph = observed(&sum(&[], &calls));
    assert_eq!((graph.nodes(60_000).len(), graph.left_out()), (MAX_GRAPH_NODES, 7));
}

#[test]
fn tenant_with_many_invented_services_leaves_call_graph_nodes_to_others() {
    let mut flood = sum(&[("web", 30), ("cart", 60)], &[(None, "web", 30), (Some("web"), "cart", 60)]);
    let (path, rates) = flood.calls.iter().next().map(|(path, rates)| (path.clone(), *rates)).unwrap();
    for tenant in ["ads", "zoo"] {
        let invented = (0..2 * MAX_GRAPH_NODES).map(|n| ServiceName::new(format!("{tenant}/s{n}")).unwrap());
        flood
            .calls
            .extend(invented.map(|service| (CallPath { service, parent: None, ..path.clone() }, rates)));
    }
    let graph = observed(&flood);
    let (nodes, edges) = (graph.nodes(60_000), graph.edges(60_000));
    assert_eq!((nodes.len(), edges.len()), (MAX_GRAPH_NODES, 1));
    assert!(["web", "cart"].iter().all(|name| nodes.iter().any(|one| one.node == node(name))));
    assert!((edge(&edges, "web", "cart").multiplicity.unwrap() - 2.0).abs() < 1e-9);
}

#[test]
fn excluded_service_keeps_its_call_rates_and_edge_multiplicities() {
    let all = sum(
        &[("web", 30), ("cart", 60), ("db", 30)],
        &[(None, "web", 30), (Some("web"), "cart", 60), (Some("cart"), "db", 30)],
    );
    let mut graph = observed(&all);
    let before = (graph.nodes(60_000), graph.edges(60_000));
    let without_cart = sum(&[("web", 30), ("db", 30)], &[(None, "web", 30), (Some("cart"), "db", 30)]);
    let held = BTreeSet::from([node("cart").service]);
    (61..=160).for_each(|second| graph.observe_except(&held, &without_cart, second * 1_000));
    for (now, before) in graph.nodes(160_000).iter().zip(&before.0) {
        let rate = |node: &GraphNode| node.served[&region("eu")];
        assert!((rate(now) - rate(before)).abs() < 1e-6, "{now:?}, before {before:?}");
    }
    for (now, before) in graph.edges(160_000).iter().zip(&before.1) {
        let of = |edge: &GraphEdge| (edge.from[&region("eu")], edge.multiplicity.unwrap());
        let ((now_rate, now_calls), (rate, calls)) = (of(now), of(before));
        assert!((now_rate - rate).abs() < 1e-6 && (now_calls - calls).abs() < 1e-6, "{now:?}");
    }
}

#[test]
fn significant_demand_rise_is_adopted_at_once_and_fall_is_not() {
    let (mut recent, mut latest) = (CallGraph::with_half_life(3_000.0), CallGraph::with_half_life(1.0));
    let mut second = 0;
    let mut next = |calls: u64| {
        let sum = sum(&[("web", calls)], &[(None, "web", calls), (Some("web"), "cart", calls)]);
        second += 1;
        recent.observe(&sum, second * 1_000);
        latest.observe(&sum, second * 1_000);
        let has_risen = recent.adopt_rises(&latest);
        let demand = recent.nodes(second * 1_000).last().map(|web| web.demand[&region("eu")]);
        (has_risen, demand.unwrap_or_default())
    };
    for _ in 0..60 {
        next(100);
    }
    let (has_risen, demand) = next(130);
    assert!(!has_risen && demand < 110.0, "three standard deviations: {demand}");
    let (has_risen, demand) = next(300);
    assert!(has_risen && (demand - 300.0).abs() < 1e-6, "{demand}");
    let (has_risen, demand) = next(300);
    assert!(!has_risen && (demand - 300.0).abs() < 1e-6, "{demand}");
    let (has_risen, demand) = next(100);
    assert!(!has_risen && demand > 200.0, "{demand}");
}

#[test]
fn calls_served_from_backlog_do_not_count_as_outside_demand() {
    let (mut recent, mut slow) = (CallGraph::with_half_life(3_000.0), CallGraph::default());
    let mut observe = |served, sent, seconds: Range<u64>| {
        let sum = sum(&[("web", served)], &[(None, "web", sent)]);
        for at in seconds {
            recent.observe(&sum, at * 1_000);
            slow.observe(&sum, at * 1_000);
        }
        recent.with_recent_demand(&slow, 0).remove(0)
    };
    observe(100, 100, 0..60);
    observe(100, 150, 60..64);
    let node = observe(130, 100, 64..68);
    assert!(node.outside.is_empty() && node.demand[&region("eu")] < 130.0, "{node:?}");
    let node = observe(150, 100, 68..128);
    assert!((node.outside[&region("eu")] - 50.0).abs() < 1.0, "callers outside of the mesh: {node:?}");
}
