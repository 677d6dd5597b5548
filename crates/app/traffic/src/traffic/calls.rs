//! `fairmesh traffic calls`.

use std::time::Duration;

use fairmesh_console::{
    arguments::Format,
    connect,
    failure::Failure,
    output::{self, Listing, ago, decimal},
};
use fairmesh_model::MAX_CALLING_PROCESSES;
use fairmesh_wire::{
    handshake::Connection,
    v1::{self, TrafficCallsResponse},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{CallsArgs, status::class, warn_of_left_out};
use crate::reconnect::Reconnect;

/// Interval between two tables printed with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which the first reports are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time until all programs report the calls of an observed service: each level between a program and the
/// control plane polls every 5 s.
const ALL_REPORT_MS: u64 = 20_000;
/// Factor from thousandths to one.
const MILLI: f64 = 1_000.0;

/// Prints the calls, repeatedly with `--watch`.
pub(super) async fn calls(args: CallsArgs) -> Result<(), Failure> {
    let mut connection = connect::connect(&args.target).await?;
    let mut response = first(&connection, &args).await?;
    warn_of_left_out(response.left_out);
    tell_what_is_missing(&args, &response);
    loop {
        let listing = listing(&args, &response);
        if !args.watch {
            return listing.print(args.output.format());
        }
        if !output::write_while_open(text(&args, &listing)?.as_bytes())? {
            return Ok(());
        }
        sleep(WATCH_INTERVAL).await;
        response = next(&mut connection, &args).await?;
    }
}

/// Reads the current calls. After a lost connection, connects again.
async fn next(connection: &mut Connection, args: &CallsArgs) -> Result<TrafficCallsResponse, Failure> {
    loop {
        match read(connection, args).await {
            Err(lost) if lost.is_connection_lost() => {
                *connection = Reconnect::new(connection.clone(), &lost).next().await?;
                output::note("connected again");
            }
            response => return response,
        }
    }
}

async fn read(connection: &Connection, args: &CallsArgs) -> Result<TrafficCallsResponse, Failure> {
    let name = |name: &Option<fairmesh_model::ServiceName>| {
        name.as_ref().map(ToString::to_string).unwrap_or_default()
    };
    let request = v1::TrafficCallsRequest { service: name(&args.service), caller: name(&args.caller) };
    Ok(connection.traffic_planner().calls(request).await?.into_inner())
}

/// Reads the first calls. If the calls of the service were not reported so far, waits for reports.
async fn first(connection: &Connection, args: &CallsArgs) -> Result<TrafficCallsResponse, Failure> {
    let mut has_told = false;
    loop {
        let response = read(connection, args).await?;
        let is_new = response.watched_ms.is_some_and(|watched| watched < ALL_REPORT_MS);
        if args.watch || !response.calls.is_empty() || !is_new {
            return Ok(response);
        }
        if !std::mem::replace(&mut has_told, true) {
            output::note(
                "programs begin to report these calls, since you look at them; that takes some seconds",
            );
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn tell_what_is_missing(args: &CallsArgs, response: &TrafficCallsResponse) {
    if let (false, Some(watched)) = (response.calls.is_empty(), response.watched_ms)
        && watched < ALL_REPORT_MS
        && !args.watch
    {
        let all = ALL_REPORT_MS / 1_000;
        output::note(format!(
            "these calls are looked at since {}: further programs may begin to report within {all} s",
            ago(watched)
        ));
    }
    if let (Some(unnamed), false) = (unnamed(response), args.watch) {
        output::note(unnamed);
    }
    if response.not_shown > 0 {
        output::note(format!("{} paths with fewer calls are not shown: name a service", response.not_shown));
    }
}

/// Explains rows without a calling service.
fn unnamed(response: &TrafficCallsResponse) -> Option<&'static str> {
    response.calls.iter().any(|calls| calls.caller.is_empty()).then_some(
        "a caller in parentheses is a process that calls as no service, such as a shared proxy, by its client id: 'fairmesh proxy \
         --service SERVICE' names the service of its programs; - is a process of a release before",
    )
}

/// The calling service, or the processes that call as none, of which rows name a few.
fn caller(calls: &v1::CallRates) -> String {
    match &calls.processes[..] {
        names if calls.caller.is_empty() && !names.is_empty() => {
            let more = if names.len() < MAX_CALLING_PROCESSES { "" } else { ", …" };
            format!("({}{more})", names.join(", "))
        }
        _ => class(&calls.caller),
    }
}

/// Formats a table or document for one point in time.
fn text(args: &CallsArgs, listing: &Listing) -> Result<String, Failure> {
    Ok(match args.output.format() {
        Format::Table if listing.rows.is_empty() => "no calls are reported yet\n\n".to_owned(),
        Format::Table => output::table(&listing.head, &listing.rows) + "\n",
        Format::Json => output::json(&listing.items)?,
        Format::Yaml => format!("---\n{}", output::yaml(&listing.items)?),
    })
}

fn listing(args: &CallsArgs, response: &TrafficCallsResponse) -> Listing {
    let mut listing = Listing::new(&[
        "CALLER",
        "SERVICE",
        "CLASS",
        "FROM",
        "TO",
        "OFFERED/S",
        "ANSWERED/S",
        "SHED/S",
        "MEAN TIME",
        "BYTES/S",
        "AGE",
    ]);
    for calls in &response.calls {
        let per_second = |rate: u64| decimal(rate as f64 / MILLI, 1);
        let time = mean_time_us(calls).map(|micros| decimal(micros as f64 / MILLI, 1) + " ms");
        let row = vec![
            caller(calls),
            calls.service.clone(),
            class(&calls.class),
            calls.from.clone(),
            class(&calls.to),
            per_second(calls.offered),
            per_second(calls.answered),
            per_second(calls.shed),
            time.unwrap_or_else(|| "-".to_owned()),
            calls.bytes.to_string(),
            ago(calls.age_ms.into()),
        ];
        listing.add(row, item(calls));
    }
    listing.why_empty = Some(match &args.service {
        Some(service) => format!(
            "no call to {service} is reported: no program calls it now, or agents between are of a release before"
        ),
        None => "no calls are reported: of services without a planner they are while you look at them ('fairmesh traffic calls SERVICE')"
            .to_owned(),
    });
    listing
}

/// Mean time until a response begins, in microseconds.
fn mean_time_us(calls: &v1::CallRates) -> Option<u64> {
    let micros = u128::from(calls.time_us) * 1_000;
    micros.checked_div(calls.answered.into()).map(|mean| u64::try_from(mean).unwrap_or(u64::MAX))
}

fn item(calls: &v1::CallRates) -> Value {
    let some = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let per_second = |rate: u64| rate as f64 / MILLI;
    json!({
        "caller": some(&calls.caller),
        "callerProcesses": calls.processes,
        "service": calls.service,
        "class": some(&calls.class),
        "from": calls.from,
        "to": some(&calls.to),
        "offeredPerSecond": per_second(calls.offered),
        "attemptsPerSecond": per_second(calls.attempts),
        "answeredPerSecond": per_second(calls.answered),
        "shedPerSecond": per_second(calls.shed),
        "meanTimeMicros": mean_time_us(calls),
        "bytesPerSecond": calls.bytes,
        "ageMs": calls.age_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_without_calling_service_are_explained() {
        let response = |caller: &str| TrafficCallsResponse {
            calls: vec![v1::CallRates { caller: caller.into(), ..v1::CallRates::default() }],
            ..TrafficCallsResponse::default()
        };
        assert!(unnamed(&response("")).is_some_and(|note| note.contains("--service")));
        assert_eq!(unnamed(&response("shop/web")), None);
    }

    #[test]
    fn calls_without_calling_service_name_their_processes() {
        let shown = |service: &str, processes: &[&str]| {
            let processes = processes.iter().map(ToString::to_string).collect();
            caller(&v1::CallRates { caller: service.into(), processes, ..v1::CallRates::default() })
        };
        assert_eq!(shown("shop/web", &[]), "shop/web");
        assert_eq!(shown("", &[]), "-");
        assert_eq!(shown("", &["web-1/edge", "web-2/edge"]), "(web-1/edge, web-2/edge)");
        assert_eq!(shown("", &["a", "b", "c", "d"]), "(a, b, c, d, …)");
    }

    #[test]
    fn mean_call_latency_covers_calls_with_response_only() {
        let calls = |answered, time_us| v1::CallRates { answered, time_us, ..v1::CallRates::default() };
        assert_eq!(mean_time_us(&calls(50_000, 400_000)), Some(8_000));
        assert_eq!(mean_time_us(&calls(0, 0)), None);
    }
}
