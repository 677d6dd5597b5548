//! A region drain: the calls of the region's own callers to a planned service must go where the forecast says.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_wire::v1;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::{call_stats::CallStats, error::DemoError, fleet::Fleet};

const REGION: &str = "us";
const SERVICE: &str = "shop/catalog";
/// Name of the calls to the service in the report.
const CALL: &str = "GET catalog";
/// Timeout of the forecast. After the preceding outage, the planner waits for reports.
const FORECAST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the drain: ten steps, each confirmed by reports.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(90);
/// Number of calls that are counted after the drain.
const COUNTED: u64 = 60;
/// Maximum difference between the shares of calls and the forecast, in percentage points.
const TOLERANCE: f64 = 15.0;

/// Drains the region as fast as reports confirm its steps, compares calls by region with the forecast, and undrains the
/// region. Returns a description.
pub(super) async fn run(fleet: &mut Fleet, tally: &CallStats) -> Result<String, DemoError> {
    let mut planner = fleet.control_connection().await?.traffic_planner();
    let forecast = until("the forecast", FORECAST_TIMEOUT, async || {
        let request = v1::ForecastDrainRequest { region: REGION.into() };
        let services = planner.clone().forecast_drain(request).await.map_err(failed)?.into_inner().services;
        let service = services.into_iter().find(|one| one.service == SERVICE && one.refusal.is_empty());
        Ok(service.map(|service| shares(service.regions.iter().map(|one| (one.region.clone(), one.calls)))))
    })
    .await?;
    let start = Instant::now();
    let drain = |undrain| v1::DrainRegionRequest { region: REGION.into(), undrain, over_ms: 0 };
    planner.drain_region(drain(false)).await.map_err(failed)?;
    until("the drain", DRAIN_TIMEOUT, async || {
        let drains = planner.clone().drains(v1::DrainsRequest {}).await.map_err(failed)?.into_inner().drains;
        Ok(drains.iter().any(|drain| drain.state == "done").then_some(()))
    })
    .await?;
    let took = start.elapsed().as_secs_f64();
    let seen = calls_by_region(tally).await?;
    planner.drain_region(drain(true)).await.map_err(failed)?;
    let regions = forecast.keys().chain(seen.keys());
    let of = |shares: &BTreeMap<String, f64>, region: &str| shares.get(region).copied().unwrap_or_default();
    let farthest =
        regions.map(|region| (of(&forecast, region) - of(&seen, region)).abs()).fold(0.0, f64::max);
    let text = format!("forecast {}, seen {}", words(&forecast), words(&seen));
    if farthest > TOLERANCE {
        return Err(DemoError::Fleet(format!("the drain of {REGION} went otherwise than foretold: {text}")));
    }
    Ok(format!("catalog calls left {REGION} in {took:.1} s: {text}; they return"))
}

/// Returns the next calls of the region's callers, as percentages by region.
async fn calls_by_region(tally: &CallStats) -> Result<BTreeMap<String, f64>, DemoError> {
    let before = tally.answers(CALL, REGION);
    until("calls", FORECAST_TIMEOUT, async || {
        let mut now = tally.answers(CALL, REGION);
        for (region, count) in &mut now {
            *count -= before.get(region).copied().unwrap_or_default();
        }
        let enough = now.values().sum::<u64>() >= COUNTED;
        Ok(enough.then(|| shares(now.into_iter().map(|(region, count)| (region, count as f64)))))
    })
    .await
}

/// Converts rates to percentages of their sum.
fn shares(rates: impl Iterator<Item = (String, f64)>) -> BTreeMap<String, f64> {
    let mut shares: BTreeMap<String, f64> = rates.collect();
    let sum: f64 = shares.values().sum();
    shares.values_mut().for_each(|rate| *rate = *rate / sum.max(f64::MIN_POSITIVE) * 100.0);
    shares
}

fn words(shares: &BTreeMap<String, f64>) -> String {
    let words = shares.iter().filter(|(_, share)| **share >= 0.5);
    words.map(|(region, share)| format!("{region} {share:.0} %")).collect::<Vec<_>>().join(" ")
}

fn failed(status: Status) -> DemoError {
    DemoError::Fleet(status.message().to_owned())
}

/// Retries until there is a value.
async fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>, DemoError>,
) -> Result<T, DemoError> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(value) = ask().await? {
            return Ok(value);
        }
        sleep(Duration::from_millis(200)).await;
    }
    Err(DemoError::Fleet(format!("{what} was not there after {limit:?}; see control.log")))
}
