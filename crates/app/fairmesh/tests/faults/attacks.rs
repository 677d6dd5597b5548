//! Malicious or broken programs and servers: each gets an error or is disconnected, and no other peer is affected.

mod bodies;
mod crosstalk;
mod frames;
mod heads;
mod many;
mod resources;
mod servers;

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

use crate::harness::{Process, Proxy};

/// Asserts that a call of another program succeeds.
async fn others_are_served(proxy: &Proxy) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{}/", proxy.for_one)).body(Empty::new()).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(10), client.request(request)).await;
    assert_eq!(answer.expect("it waits").unwrap().status(), StatusCode::OK);
}

/// Resident memory of a process, in bytes.
pub(crate) fn memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}
