//! The page of a mesh with 2,000 services and 10,000 pairs.

use std::fmt::Write as _;

use fairmesh_test_support::alone;
use fairmesh_wire::v1;
use serde_json::json;
use tokio::runtime::Runtime;

use super::{Browser, Mesh};

const SERVICES: usize = 2_000;
const PAIRS: usize = 10_000;
const TENANTS: usize = 40;
/// Rows per report.
const MAX_ROWS: usize = 4_000;
/// Documents per command.
const MAX_DOCUMENTS: usize = 500;

fn service(number: usize) -> String {
    let number = number % SERVICES;
    format!("tenant-{}/service-{number}", number % TENANTS)
}

fn declare(mesh: &Mesh) {
    for first in (0..SERVICES).step_by(MAX_DOCUMENTS) {
        let mut documents = String::new();
        for number in first..first + MAX_DOCUMENTS {
            let name = service(number);
            // Writing to a string cannot fail.
            let _ = write!(
                documents,
                "---\nkind: Service\nname: {name}\n---\nkind: Policy\nservice: {name}\ntimeout: 2s\n"
            );
        }
        mesh.apply(&documents).ok();
    }
}

/// Reports calls of each pair, as many agents would.
fn report(mesh: &Mesh) {
    let pair = |number: usize| v1::CountedCalls {
        caller: service(number),
        service: service(number * 7 + 1 + number / SERVICES * 13),
        from: "eu".into(),
        to: "eu".into(),
        calls: 10 + number as u64 % 90,
        responses: vec![0, 10 + number as u64 % 90],
        latency: vec![0, 0, 10 + number as u64 % 90],
        ..v1::CountedCalls::default()
    };
    let runtime = Runtime::new().unwrap();
    for (reporter, first) in (0..PAIRS).step_by(MAX_ROWS).enumerate() {
        let calls = (first..PAIRS.min(first + MAX_ROWS)).map(pair).collect();
        let interval =
            v1::CountedInterval { age_ms: 0, span_ms: 1_000, calls, denied: Vec::new(), cpu: Vec::new() };
        let reporter = 1 + reporter as u64;
        let counts = v1::CountReport { reporter, number: 1, intervals: vec![interval], left_out: 0 };
        let report = v1::ReportSignalsRequest { counts: Some(counts), ..v1::ReportSignalsRequest::default() };
        runtime.block_on(async { mesh.connect().await.signals().report(report).await.unwrap() });
    }
}

#[test]
fn web_page_of_large_mesh_opens_and_filters_quickly() {
    let _machine = Runtime::new().unwrap().block_on(alone());
    let mesh = Mesh::start();
    let pages = mesh.pages();
    let Some(mut browser) = Browser::start(&format!("http://{pages}/ui/")) else { return };
    declare(&mesh);
    report(&mesh);
    // The list shows a bounded number of rows. Eleven names contain "service-199", and one contains "service-1999".
    let filters = json!([["service-199", 11], ["service-1999", 1], ["no such name", 0], ["", 100]]);
    let took = browser.step(&json!({"do": "measure", "rows": 100, "filters": filters}));
    println!("{SERVICES} services, {PAIRS} pairs: {took}");
    assert!(took["openMs"].as_u64().unwrap() <= 3_000, "{took}");
    assert!(took["filterMs"].as_f64().unwrap() <= 200.0, "{took}");
}
