//! Calls of each pair of services, as counted by callers and by servers.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{ServiceName, SpiffePath};
use fairmesh_wire::v1::{CountedCalls, ReadCallsRequest};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{error::DemoError, fleet::Fleet, open_loop_load, report};

/// Service identity that the calls here use. The demo's shoppers have no identity until the end, and so no name in counts.
const CALLER: &str = "shop/web";
/// Number of calls.
const CALLS: u64 = 300;
/// Maximum relative difference between the two counts of a pair.
const TOLERANCE: f64 = 0.005;
/// Interval at which counts are read, since views cover the last second.
const INTERVAL: Duration = Duration::from_millis(1_500);
/// Maximum time for counts to arrive.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Numbers of requests by caller and service: sent by the caller, and received by servers.
type Counts = BTreeMap<(String, String), [u64; 2]>;

/// Counts of the same calls on both sides.
#[derive(Debug)]
pub(super) struct Pairs(Counts);

/// The identity of callers that counts name.
pub(super) fn caller() -> Result<SpiffePath, DemoError> {
    let name = ServiceName::new(CALLER).map_err(|e| DemoError::Fleet(e.to_string()))?;
    Ok(SpiffePath::Service(name))
}

/// Calls the shop while nothing else does, and returns the counts of these calls.
pub(super) async fn count(fleet: &Fleet) -> Result<Pairs, DemoError> {
    let (caller, before) = (caller()?, settled(fleet).await?);
    open_loop_load::call_all(fleet, CALLS, &caller).await?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        sleep(INTERVAL).await;
        let pairs = Pairs(since(read(fleet).await?, &before));
        if (pairs.0.values().any(|sides| *sides != [0; 2]) && pairs.differing().is_empty())
            || Instant::now() > deadline
        {
            return Ok(pairs);
        }
    }
}

/// Returns the counts once they have stopped changing.
async fn settled(fleet: &Fleet) -> Result<Counts, DemoError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut last = read(fleet).await?;
    loop {
        // Processes and their agents report every second while someone reads.
        sleep(2 * INTERVAL).await;
        let counts = read(fleet).await?;
        if counts == last || Instant::now() > deadline {
            return Ok(counts);
        }
        last = counts;
    }
}

async fn read(fleet: &Fleet) -> Result<Counts, DemoError> {
    let connection = fleet.control_connection().await?;
    let request = ReadCallsRequest { window_s: 3_600, ..ReadCallsRequest::default() };
    let response = connection.admin().read_calls(request).await;
    let rows = response.map_err(|e| DemoError::Fleet(e.message().to_owned()))?.into_inner().rows;
    let mut counts = Counts::new();
    for CountedCalls { caller, service, by_server, calls, retries, .. } in
        rows.into_iter().filter_map(|row| row.calls)
    {
        // Servers do not know callers without an identity.
        if !caller.is_empty() {
            counts.entry((caller, service)).or_default()[usize::from(by_server)] += calls + retries;
        }
    }
    Ok(counts)
}

fn since(mut counts: Counts, before: &Counts) -> Counts {
    for (pair, sides) in &mut counts {
        let [callers, servers] = before.get(pair).copied().unwrap_or_default();
        *sides = [sides[0].saturating_sub(callers), sides[1].saturating_sub(servers)];
    }
    counts.retain(|_, sides| *sides != [0; 2]);
    counts
}

impl Pairs {
    /// The pairs whose sides differ by more than half a percent.
    pub(super) fn differing(&self) -> Vec<String> {
        let differs = |(_, [callers, servers]): &(&(String, String), &[u64; 2])| {
            callers.abs_diff(*servers) as f64 > *callers.max(servers) as f64 * TOLERANCE
        };
        let differing = self.0.iter().filter(differs);
        differing.map(|((caller, service), _)| format!("{caller} to {service}")).collect()
    }

    /// The pairs as a table.
    pub(super) fn text(&self) -> String {
        let mut table = report::table(&["caller", "service", "counted by callers", "counted by servers"]);
        for ((caller, service), [callers, servers]) in &self.0 {
            table.add_row([caller, service, &callers.to_string(), &servers.to_string()]);
        }
        report::align_right(&mut table, 2..4);
        format!("{table}\n")
    }

    /// The figures: `[{"caller", "service", "byCallers", "byServers"}]`.
    pub(super) fn json(&self) -> Value {
        let pair = |((caller, service), [callers, servers]): (&(String, String), &[u64; 2])| json!({ "caller": caller, "service": service, "byCallers": callers, "byServers": servers });
        self.0.iter().map(pair).collect()
    }
}
