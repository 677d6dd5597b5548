//! The distances between regions as measured by the mesh, compared with the relay's delays.

use std::time::Duration;

use comfy_table::Table;
use fairmesh_model::{Prefix, Record, RecordKey, Region, RoundTrips};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{error::DemoError, fleet::Fleet, report, topology::REGIONS};

/// Timeout of the measurements. The first ones take a few rounds. A distance distorted by the demo's load is replaced
/// once the median of calm rounds has differed from it three times.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The timers of the relay round up to a millisecond in each direction.
const TIMER: Duration = Duration::from_millis(2);

/// The distances of every pair of regions.
#[derive(Debug)]
pub(super) struct Distances(Vec<Distance>);

#[derive(Debug)]
struct Distance {
    from: &'static str,
    to: &'static str,
    relay: Duration,
    measured: Duration,
}

/// Waits until each region has measured its distances to the others, within 20 % and 2 ms of the relay's delays. After
/// the time limit, as on a busy machine, returns the distances measured so far.
pub(super) async fn measured(fleet: &Fleet) -> Result<Distances, DemoError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match read(fleet).await? {
            Ok(distances) if distances.are_those_of_the_relay() || Instant::now() > deadline => {
                return Ok(distances);
            }
            Err(missing) if Instant::now() > deadline => {
                let problem = format!("the distance from {missing} was not measured within {TIMEOUT:?}");
                return Err(DemoError::Fleet(problem));
            }
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// The distances, or a pair that is not measured yet.
async fn read(fleet: &Fleet) -> Result<Result<Distances, String>, DemoError> {
    let mut trips = RoundTrips::default();
    for (key, record) in fleet.records(Prefix::topology()).await? {
        if let (RecordKey::MeasuredDistances(from), Record::MeasuredDistances(distances)) = (key, record) {
            trips.set_measured(from, Some(distances));
        }
    }
    let named = |name: &str| Region::new(name).map_err(|e| DemoError::Fleet(e.to_string()));
    let mut rows = Vec::new();
    for from in REGIONS {
        for to in REGIONS.into_iter().filter(|to| *to != from) {
            let Some(measured) = trips.measured(&named(from.name)?, &named(to.name)?) else {
                return Ok(Err(format!("{} to {}", from.name, to.name)));
            };
            let (relay, measured) = (from.round_trip(to), measured.round_trip);
            rows.push(Distance { from: from.name, to: to.name, relay, measured });
        }
    }
    Ok(Ok(Distances(rows)))
}

impl Distances {
    fn are_those_of_the_relay(&self) -> bool {
        self.0.iter().all(|one| one.measured.abs_diff(one.relay) <= one.relay / 5 + TIMER)
    }

    /// The distances as a table.
    pub(super) fn table(&self) -> Table {
        let mut table = report::table(&["from", "to", "relay ms", "measured ms"]);
        for Distance { from, to, relay, measured } in &self.0 {
            let millis = |round_trip: &Duration| format!("{:.1}", round_trip.as_secs_f64() * 1000.0);
            table.add_row([*from, *to, &millis(relay), &millis(measured)]);
        }
        report::align_right(&mut table, 2..4);
        table
    }

    /// The distances as JSON.
    pub(super) fn json(&self) -> Value {
        let row = |Distance { from, to, relay, measured }: &Distance| {
            let micros = |round_trip: &Duration| u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
            json!({"from": from, "to": to, "relayUs": micros(relay), "measuredUs": micros(measured)})
        };
        self.0.iter().map(row).collect()
    }
}
