//! `fairmesh drain --region` and `fairmesh undrain --region`: a whole region, at a configurable pace, with a forecast.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
    stop_signals::{self, StopSignal},
};
use fairmesh_model::{DrainPhase, Region, RegionDrain, Share, spec::write_duration};
use fairmesh_wire::{handshake::Connection, v1};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use fairmesh_traffic::region_drain;

/// Interval at which the progress is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time of a step's wait after which the reason is printed.
const LONG_WAIT: Duration = Duration::from_secs(5);
/// Default duration of a drain.
const DEFAULT_OVER: Duration = Duration::from_secs(600);

/// The requested operation.
#[derive(Debug)]
pub(super) struct RegionArgs<'a> {
    pub(super) region: &'a Region,
    pub(super) undrain: bool,
    /// Duration of the operation. `None` means the default duration, or the schedule that is already in progress.
    pub(super) over: Option<Duration>,
    pub(super) yes: bool,
    pub(super) dry_run: bool,
    pub(super) detach: bool,
    pub(super) target: &'a TargetArgs,
    pub(super) output: &'a OutputArgs,
}

impl RegionArgs<'_> {
    /// Whether a drain in progress already does this. Repeating a command does not restart its schedule.
    fn is_under_way(&self, drain: &RegionDrain) -> bool {
        drain.returns == self.undrain && self.over.is_none_or(|over| over == drain.over)
    }
}

/// Shows a forecast, asks for confirmation, starts the operation, and waits until it has finished.
pub(super) async fn run(args: RegionArgs<'_>) -> Result<ExitCode, Failure> {
    let connection = connect::connect(args.target).await?;
    let before = drain_of(&connection, args.region).await?;
    let under_way = before.filter(|drain| args.is_under_way(drain));
    let over = under_way.map_or(args.over.unwrap_or(DEFAULT_OVER), |drain| drain.over);
    let mut item = json!({ "region": args.region.to_string(), "overMs": millis(over) });
    if !args.undrain {
        let forecast = forecast(&connection, args.region).await?;
        if args.output.format() == Format::Table {
            output::write(&text(args.region, &forecast, before.as_ref()))?;
        }
        item["forecast"] = forecast_item(&forecast);
        if args.dry_run {
            return finish(&args, &item);
        }
        // An operation that is already under way needs no confirmation.
        if under_way.is_none() {
            confirm(&args, &forecast, over)?;
        }
    }
    match &under_way {
        Some(drain) => output::note(follows(args.region, drain)),
        None => begin(&connection, &args, over).await?,
    }
    item["done"] = json!(!args.detach);
    if args.detach {
        output::note("it goes on by itself; see 'fairmesh traffic status'");
        return finish(&args, &item);
    }
    let stop = stop_signals::stop_signal().map_err(Failure::failed)?;
    let mut seen = None;
    // This includes the forecast of what stays, which may take as long as the control plane needs.
    let ended = tokio::select! {
        code = until_arrived(&connection, &args, &mut seen, &mut item) => Ok(code?),
        signal = stop => Err(signal),
    };
    let code = ended.unwrap_or_else(|signal| interrupted(&args, seen.as_ref(), signal, &mut item));
    finish(&args, &item)?;
    Ok(code)
}

async fn begin(connection: &Connection, args: &RegionArgs<'_>, over: Duration) -> Result<(), Failure> {
    let request = v1::DrainRegionRequest {
        region: args.region.to_string(),
        undrain: args.undrain,
        over_ms: millis(over),
    };
    connection.traffic_planner().drain_region(request).await?;
    Ok(())
}

async fn forecast(connection: &Connection, region: &Region) -> Result<v1::ForecastDrainResponse, Failure> {
    let request = v1::ForecastDrainRequest { region: region.to_string() };
    Ok(connection.traffic_planner().forecast_drain(request).await?.into_inner())
}

/// The control plane's status of a region drain.
async fn status_of(
    connection: &Connection,
    region: &Region,
) -> Result<Option<v1::RegionDrainStatus>, Failure> {
    let drains = connection.traffic_planner().drains(v1::DrainsRequest {}).await?.into_inner().drains;
    Ok(drains.into_iter().find(|drain| drain.region == region.as_str()))
}

/// Returns the drain or undrain of a region; `None` also if a later release began it.
async fn drain_of(connection: &Connection, region: &Region) -> Result<Option<RegionDrain>, Failure> {
    Ok(status_of(connection, region).await?.as_ref().and_then(read))
}

fn read(status: &v1::RegionDrainStatus) -> Option<RegionDrain> {
    status.drain.and_then(|drain| RegionDrain::try_from(drain).ok())
}

/// Message that the command joins an operation in progress instead of starting one.
fn follows(region: &Region, drain: &RegionDrain) -> String {
    let sentence = region_drain::sentence(region.as_str(), drain);
    match drain.phase() {
        DrainPhase::Drained => sentence,
        _ => format!("{sentence}; it keeps its schedule, which another --over would change"),
    }
}

/// Waits until a drain has finished, and returns the exit code.
async fn until_arrived(
    connection: &Connection,
    args: &RegionArgs<'_>,
    seen: &mut Option<v1::RegionDrainStatus>,
    item: &mut Value,
) -> Result<ExitCode, Failure> {
    let arrival = follow(connection, args.region, args.undrain, seen).await?;
    arrived(connection, args, &arrival, item).await
}

/// Prints the result of a finished drain, and returns the exit code.
async fn arrived(
    connection: &Connection,
    args: &RegionArgs<'_>,
    arrival: &Arrival,
    item: &mut Value,
) -> Result<ExitCode, Failure> {
    let stays = match args.undrain {
        true => Vec::new(),
        false => stays(connection, args.region, arrival).await?,
    };
    item["movesCalls"] = json!(arrival.moves);
    item["stays"] = json!(stays);
    if args.output.format() == Format::Table {
        let done = done(args.undrain, arrival.moves, &stays);
        output::write(&format!("region {} {done}\n", args.region))?;
    }
    let have_left = args.undrain || (arrival.moves && stays.is_empty());
    Ok(if have_left { ExitCode::SUCCESS } else { ExitCode::from(super::EXIT_CALLERS_REMAIN) })
}

fn finish(args: &RegionArgs<'_>, item: &Value) -> Result<ExitCode, Failure> {
    if args.output.format() != Format::Table {
        output::print_one(args.output.format(), item, "")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes a finished drain or undrain.
fn done(undrain: bool, moves: bool, stays: &[String]) -> String {
    match (undrain, moves) {
        (true, _) => "has its calls back".to_owned(),
        (false, false) => {
            "is drained, but no call has left it: no planner plans for a service there (see docs/regions-planner.md)"
                .to_owned()
        }
        (false, true) if stays.is_empty() => "is drained".to_owned(),
        (false, true) => format!("is drained, but these calls have not left it: {}", stays.join("; ")),
    }
}

/// Prints the progress of an interrupted drain, which continues without this command because its record controls it.
/// Returns the exit code.
fn interrupted(
    args: &RegionArgs<'_>,
    seen: Option<&v1::RegionDrainStatus>,
    signal: StopSignal,
    item: &mut Value,
) -> ExitCode {
    output::note(interruption(args.region, args.undrain, seen));
    item["done"] = json!(false);
    item["interruptedBy"] = json!(signal.name());
    item["drain"] = seen.and_then(read).map_or(Value::Null, |drain| region_drain::item(&drain));
    signal.exit_code()
}

/// Describes what continues after an interruption.
fn interruption(region: &Region, undrain: bool, seen: Option<&v1::RegionDrainStatus>) -> String {
    let (what, other) = if undrain { ("return", "drain") } else { ("drain", "undrain") };
    let is_drained = |status: &&v1::RegionDrainStatus| {
        read(status).is_some_and(|drain| drain.phase() == DrainPhase::Drained)
    };
    match seen.filter(is_drained) {
        Some(status) => {
            let progress = region_drain::progress(status);
            format!("{progress}; give it its calls back with 'fairmesh undrain --region {region}'")
        }
        None => format!(
            "the {what} of region {region} goes on; see 'fairmesh traffic status', turn it with 'fairmesh {other} --region \
             {region}'"
        ),
    }
}

/// Returns the calls and shards that stay in a drained region: services with serving endpoints there whose calls are
/// not moved, and shards without a copy elsewhere.
async fn stays(connection: &Connection, region: &Region, arrival: &Arrival) -> Result<Vec<String>, Failure> {
    let unmoved = unmoved_by_reason(&forecast(connection, region).await?);
    Ok(unmoved.into_iter().chain(arrival.staying.iter().cloned()).collect())
}

/// Asks the user for confirmation. Without a terminal, `--yes` is required.
fn confirm(
    args: &RegionArgs<'_>,
    forecast: &v1::ForecastDrainResponse,
    over: Duration,
) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    let refused =
        || Failure::refused("the drain is not confirmed", "add --yes, or --dry-run for the forecast alone");
    if !io::stdin().is_terminal() {
        return Err(refused());
    }
    let is_full = |service: &v1::ServiceForecast| {
        service.dropped > 0.0 || service.regions.iter().any(|region| region.is_full)
    };
    let warning = match &forecast.services {
        services if services.iter().any(|service| !service.hold.is_empty()) => {
            " It will be held until these services may be moved."
        }
        services if services.iter().any(is_full) => " It will be held where a region is full.",
        _ => "",
    };
    let mut asked = io::stderr();
    let over = write_duration(over);
    let _ = write!(asked, "Drain region {} over {over}?{warning} [y/N] ", args.region);
    let _ = asked.flush();
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    match read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(refused()),
    }
}

/// What stays in the region after a finished drain.
#[derive(Debug)]
struct Arrival {
    /// Whether the drain moves the calls of any service.
    moves: bool,
    /// Reasons why the calls of some services stay.
    staying: Vec<String>,
}

/// Prints each step of the drain, and long waits with their reason, until it has finished. `seen` keeps the last
/// status, for the case of an interruption.
async fn follow(
    connection: &Connection,
    region: &Region,
    returns: bool,
    seen: &mut Option<v1::RegionDrainStatus>,
) -> Result<Arrival, Failure> {
    let mut progress = Progress::default();
    loop {
        let status = status_of(connection, region).await?;
        let drain = status.and_then(|status| Some((status.drain?, status)));
        let (drain, status) = match drain {
            Some((drain, status)) if drain.returns == returns => (drain, status),
            // The record is deleted once the region has all its calls back.
            None if returns => return Ok(Arrival { moves: true, staying: Vec::new() }),
            _ => {
                let hint = "see 'fairmesh traffic status'";
                return Err(Failure::failed_with(
                    format!("the drain of region {region} was turned meanwhile"),
                    hint,
                ));
            }
        };
        let mut line = region_drain::progress(&status);
        status.staying.iter().for_each(|why| line.push_str(&format!("; calls stay: {why}")));
        let is_news = status.is_held || has_arrived(&drain, &status.state);
        if progress.should_print((drain.keep, line.clone()), is_news, Instant::now()) {
            output::note(&line);
        }
        let has_arrived = has_arrived(&drain, &status.state);
        let arrival = Arrival { moves: status.services != Some(0), staying: status.staying.clone() };
        *seen = Some(status);
        if has_arrived {
            return Ok(arrival);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Printed progress of a drain. Most waits end within a second and are not printed.
#[derive(Debug, Default)]
struct Progress {
    /// The last printed line, with the region's remaining share in it.
    last_printed: Option<(u32, String)>,
    /// The latest state, printed or not, and when it was first seen.
    waits: Option<(String, Instant)>,
}

impl Progress {
    /// Whether to print a line: at each step, for immediate news, and for a lasting wait.
    fn should_print(&mut self, (keep, line): (u32, String), is_news: bool, now: Instant) -> bool {
        if self.waits.as_ref().is_none_or(|(same, _)| *same != line) {
            self.waits = Some((line.clone(), now));
        }
        let lasts = self.waits.as_ref().is_some_and(|(_, since)| now.duration_since(*since) >= LONG_WAIT);
        let is_step = self.last_printed.as_ref().is_none_or(|(before, _)| *before != keep);
        let is_same = self.last_printed.as_ref().is_some_and(|(_, printed)| *printed == line);
        let tells = is_step || ((is_news || lasts) && !is_same);
        if tells {
            self.last_printed = Some((keep, line));
        }
        tells
    }
}

/// Whether a drain has finished, so that no call goes to the region. Always false for an undrain, which has finished
/// only when its record is gone: until the next round, its state may still be that of the earlier drain.
fn has_arrived(drain: &v1::RegionDrain, state: &str) -> bool {
    !drain.returns && drain.keep == Share::NONE.millionths() && state == "done"
}

/// Describes the forecast. `before` is the drain or undrain in progress.
fn text(region: &Region, forecast: &v1::ForecastDrainResponse, before: Option<&RegionDrain>) -> String {
    let mut text = String::new();
    let mut rows = Vec::new();
    for service in &forecast.services {
        if !service.refusal.is_empty() {
            text.push_str(&format!("{}: no forecast: {}\n", service.service, service.refusal));
        }
        rows.extend(service.regions.iter().map(|one| row(&service.service, one)));
    }
    let head = [
        "SERVICE",
        "REGION",
        "LOAD NOW",
        "LOAD AFTER",
        "CALLS/S FROM HERE",
        "BYTES/S",
        "FARTHER BY",
        "TIME NOW",
        "TIME AFTER",
        "",
    ];
    if !rows.is_empty() {
        text = format!("{}{text}", output::table(&head, &rows));
    }
    // After its first step, the region gets no calls from other regions, but reports lag by a second.
    let of_others = match before.is_some_and(|drain| drain.keep < Share::ALL) {
        true => {
            "of other regions still come here: they leave with the tables of the first step, which is made"
        }
        false => "of other regions leave at the first step",
    };
    for service in &forecast.services {
        for (rate, what) in [
            (service.of_others, of_others),
            (service.staying, "cannot leave"),
            (service.dropped, "have no room elsewhere: the drain is held before they would be dropped"),
        ] {
            if rate > 0.0 {
                text.push_str(&format!("{}: {rate:.1} calls/s {what}\n", service.service));
            }
        }
    }
    for service in forecast.services.iter().filter(|service| !service.hold.is_empty()) {
        text.push_str(&format!("{} will hold the drain: {}\n", service.service, service.hold));
    }
    text.push_str(&unmoved(forecast));
    if forecast.services.is_empty() {
        text.push_str(&format!(
            "no planner plans for a service in region {region} (see docs/regions-planner.md)\n"
        ));
    }
    text
}

/// Returns the services that stay, grouped by reason.
fn unmoved_by_reason(forecast: &v1::ForecastDrainResponse) -> Vec<String> {
    let text = unmoved(forecast);
    text.lines().map(|line| line.trim_start_matches("not moved: ").to_owned()).collect()
}

/// Lists the services that stay, with one line per reason.
fn unmoved(forecast: &v1::ForecastDrainResponse) -> String {
    let mut by_reason = BTreeMap::<&str, Vec<&str>>::new();
    let (services, more): (Vec<_>, Vec<_>) =
        forecast.unmoved_services.iter().partition(|unmoved| !unmoved.service.is_empty());
    for unmoved in services {
        by_reason.entry(&unmoved.reason).or_default().push(&unmoved.service);
    }
    // A control plane of an earlier release gives no reasons.
    if by_reason.is_empty() && !forecast.unmoved.is_empty() {
        let names = forecast.unmoved.join(", ");
        return format!("not moved, since no planner plans for them or they stay in their region: {names}\n");
    }
    let lines = by_reason.iter().map(|(why, names)| format!("not moved: {}: {why}\n", names.join(", ")));
    lines.chain(more.iter().map(|more| format!("not moved: {}\n", more.reason))).collect()
}

fn row(service: &str, region: &v1::RegionForecast) -> Vec<String> {
    let millis =
        |us: Option<u64>| us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us as f64 / 1_000.0));
    vec![
        service.to_owned(),
        region.region.clone(),
        output::decimal(region.before * 100.0, 1) + " %",
        output::decimal(region.after * 100.0, 1) + " %",
        output::decimal(region.calls, 1),
        output::decimal(region.bytes, 0),
        millis(region.round_trip_us),
        millis(region.time_now_us),
        millis(region.time_after_us),
        if region.is_full {
            "within 3 % of its last threshold: the drain will be held if loads stay as they are".to_owned()
        } else {
            String::new()
        },
    ]
}

fn forecast_item(forecast: &v1::ForecastDrainResponse) -> Value {
    let region = |region: &v1::RegionForecast| {
        json!({
            "region": region.region,
            "loadBefore": region.before,
            "loadAfter": region.after,
            "callsPerSecond": region.calls,
            "bytesPerSecond": region.bytes,
            "roundTripMicros": region.round_trip_us,
            "timeNowMicros": region.time_now_us,
            "timeAfterMicros": region.time_after_us,
            "full": region.is_full,
        })
    };
    let service = |service: &v1::ServiceForecast| {
        json!({
            "service": service.service,
            "refusal": (!service.refusal.is_empty()).then_some(&service.refusal),
            "hold": (!service.hold.is_empty()).then_some(&service.hold),
            "leavingPerSecond": service.leaving,
            "stayingPerSecond": service.staying,
            "droppedPerSecond": service.dropped,
            "ofOthersPerSecond": service.of_others,
            "regions": service.regions.iter().map(region).collect::<Vec<_>>(),
        })
    };
    let reason = |unmoved: &v1::UnmovedService| (unmoved.service.clone(), json!(unmoved.reason));
    json!({
        "services": forecast.services.iter().map(service).collect::<Vec<_>>(),
        "unmoved": forecast.unmoved,
        "unmovedBecause": forecast.unmoved_services.iter().map(reason).collect::<serde_json::Map<_, _>>(),
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_drain_prints_each_step_and_waits_of_several_seconds() {
        let (mut progress, start) = (Progress::default(), Instant::now());
        let mut told = |keep, line: &str, is_news, at_ms| {
            progress.should_print((keep, line.to_owned()), is_news, start + Duration::from_millis(at_ms))
        };
        assert!(told(900_000, "waits for tables", false, 0));
        assert!(!told(900_000, "waits for an agent", false, 500));
        assert!(!told(900_000, "waits for reports", false, 1_000), "a second is no news");
        assert!(
            told(900_000, "waits for reports", false, 6_000)
                && !told(900_000, "waits for reports", false, 20_000)
        );
        assert!(told(800_000, "waits for tables", false, 21_000), "a step");
        assert!(told(800_000, "held", true, 21_500) && !told(800_000, "held", true, 22_000));
    }

    #[test]
    fn forecast_of_advanced_region_drain_omits_first_step() {
        let service = v1::ServiceForecast { of_others: 1.1, ..v1::ServiceForecast::default() };
        let forecast =
            v1::ForecastDrainResponse { services: vec![service], ..v1::ForecastDrainResponse::default() };
        let eu = Region::new("eu").unwrap();
        let begun = RegionDrain::begin(None, false, Duration::ZERO, 0);
        let made = RegionDrain { keep: Share::of_millionths(900_000).unwrap(), ..begun };
        for before in [None, Some(&begun)] {
            let told = text(&eu, &forecast, before);
            assert!(told.contains("1.1 calls/s of other regions leave at the first step"), "{told}");
        }
        let told = text(&eu, &forecast, Some(&made));
        assert!(told.contains("still come here") && !told.contains("leave at the first step"), "{told}");
    }

    #[test]
    fn region_drain_names_remaining_calls() {
        assert_eq!(done(false, true, &[]), "is drained");
        assert!(done(false, false, &[]).contains("no call has left it"));
        let stays = ["shop/plain: no planner plans for it".to_owned()];
        assert!(done(false, true, &stays).ends_with("have not left it: shop/plain: no planner plans for it"));
    }

    #[test]
    fn undrain_is_unfinished_when_previous_drain_was_done() {
        let drain = |keep, returns| v1::RegionDrain { keep, returns, ..v1::RegionDrain::default() };
        assert!(has_arrived(&drain(0, false), "done"));
        assert!(
            !has_arrived(&drain(100_000, false), "done") && !has_arrived(&drain(0, false), "makes a step")
        );
        assert!(!has_arrived(&drain(0, true), "done"));
    }
}
