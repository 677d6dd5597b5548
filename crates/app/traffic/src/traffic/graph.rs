//! `fairmesh traffic graph`.

mod drawing;
mod pool_costs;
mod tree;

use std::{fs, path::PathBuf, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_model::ServiceName;
use fairmesh_wire::{
    handshake::Connection,
    v1::{self, CallNode, GraphEdge, GraphNode, RegionCalls, TrafficGraphResponse},
};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Time for which calls are counted before the first output. It covers the delay of the request: each level between a
/// program and the control plane learns within 5 s that its calls are requested.
const COUNTED_MS: u64 = 10_000;
/// Interval at which the graph is polled during this time.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Microseconds per millisecond.
const MICROS: f64 = 1_000.0;

/// Arguments of `fairmesh traffic graph`.
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// Only what is called for the calls of this service, as tenant/service; programs begin to report that, for a minute [default: all
    /// that is reported at present].
    service: Option<ServiceName>,
    /// Print the graph in the language of Graphviz.
    #[arg(long, conflicts_with = "output")]
    dot: bool,
    /// Write a picture into this file as well.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Draws the graph.
pub(super) async fn graph(args: GraphArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let graph = counted(&connection, &args).await?;
    tell_what_is_missing(&graph);
    if let Some(path) = &args.svg {
        fs::write(path, drawing::svg(&graph)).map_err(|error| {
            let remedy = "name a file in a folder that exists";
            Failure::failed_with(format!("cannot write {}: {error}", path.display()), remedy)
        })?;
    }
    match args.dot {
        true => output::write(&drawing::dot(&graph)),
        false => output::print_one(args.output.format(), &document(&graph), &text(&args, &graph)),
    }
}

/// Returns the graph after calls have been counted for a while.
async fn counted(connection: &Connection, args: &GraphArgs) -> Result<TrafficGraphResponse, Failure> {
    let service = args.service.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut has_told = false;
    loop {
        let request = v1::TrafficGraphRequest { service: service.clone() };
        let graph = connection.traffic_planner().graph(request).await?.into_inner();
        if graph.counted_ms >= COUNTED_MS {
            return Ok(graph);
        }
        if !std::mem::replace(&mut has_told, true) {
            output::note("calls are counted from now on, since you look at them; that takes 10 s");
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn tell_what_is_missing(graph: &TrafficGraphResponse) {
    if graph.left_out > 0 {
        output::warn(format!(
            "the graph has no room for calls to {} services and classes: name a service",
            graph.left_out
        ));
    }
    if graph.not_watched > 0 {
        output::warn(format!(
            "the calls of {} services are not reported, since too many services are looked at: name a service nearer to them",
            graph.not_watched
        ));
    }
    let cut = graph.edges.iter().filter(|edge| edge.is_cut).count();
    if cut > 0 {
        output::note(format!(
            "{cut} edges close a cycle; planners cut each at its smallest edge, marked here"
        ));
    }
}

fn text(args: &GraphArgs, graph: &TrafficGraphResponse) -> String {
    let rows = tree::rows(graph, args.service.as_ref().map(ToString::to_string).as_deref());
    match rows.is_empty() {
        true => {
            output::note(match &args.service {
                Some(service) => format!("{service} processes no reported calls, and makes none"),
                None => "no calls are reported; name a service, whose programs then report them".to_owned(),
            });
            String::new()
        }
        false => output::table(&tree::HEAD, &rows) + &pool_costs::table(&graph.pools),
    }
}

fn document(graph: &TrafficGraphResponse) -> Value {
    json!({
        "nodes": graph.nodes.iter().map(node_document).collect::<Vec<_>>(),
        "edges": graph.edges.iter().map(edge_document).collect::<Vec<_>>(),
        "pools": graph.pools.iter().map(pool_costs::document).collect::<Vec<_>>(),
        "countedMs": graph.counted_ms,
        "leftOut": graph.left_out,
        "notWatched": graph.not_watched,
    })
}

fn node_document(node: &GraphNode) -> Value {
    json!({
        "node": named(node.node.as_ref()),
        "servedPerSecond": by_region(&node.served),
        "demandPerSecond": by_region(&node.demand),
        "ageMs": node.age_ms,
    })
}

fn edge_document(edge: &GraphEdge) -> Value {
    json!({
        "parent": named(edge.parent.as_ref()),
        "child": named(edge.child.as_ref()),
        "callsPerSecond": total(&edge.from),
        "callsPerSecondFrom": by_region(&edge.from),
        "callsPerParentCall": edge.multiplicity,
        "requestBytes": edge.request_bytes,
        "responseBytes": edge.response_bytes,
        "meanTimeMicros": edge.time_us,
        "isCut": edge.is_cut,
        "ageMs": edge.age_ms,
    })
}

fn named(node: Option<&CallNode>) -> Value {
    let node = node.cloned().unwrap_or_default();
    json!({"service": node.service, "class": Some(node.class).filter(|class| !class.is_empty())})
}

fn by_region(calls: &[RegionCalls]) -> Value {
    calls.iter().map(|one| (one.region.clone(), json!(one.calls))).collect::<serde_json::Map<_, _>>().into()
}

/// Calls per second over all regions.
fn total(calls: &[RegionCalls]) -> f64 {
    calls.iter().map(|one| one.calls).sum()
}

/// Label such as `shop/cart`, or `shop/cart [bulk]` with a class.
fn label(node: Option<&CallNode>) -> String {
    match node {
        Some(CallNode { service, class }) if class.is_empty() => service.clone(),
        Some(CallNode { service, class }) => format!("{service} [{class}]"),
        None => String::new(),
    }
}

/// Multiplicity such as `×2.00`; `-` if unknown.
fn times(multiplicity: Option<f64>) -> String {
    multiplicity.map_or_else(|| "-".to_owned(), |times| format!("×{times:.2}"))
}

#[cfg(test)]
mod tests;
