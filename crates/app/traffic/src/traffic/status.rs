//! `fairmesh traffic status` and `fairmesh traffic explain`.

use std::fmt::Write as _;

use fairmesh_console::{
    arguments::Format,
    connect,
    failure::Failure,
    output::{self, Listing, ago, decimal},
};
use fairmesh_model::Region;
use fairmesh_wire::{
    handshake::Connection,
    v1::{self, traffic::Mode},
};
use serde_json::{Value, json};

use super::{ExplainArgs, StatusArgs, adjustments, optimizer, read, why_not_planned};
use crate::region_drain;

/// Maximum number of changes shown by `status`.
const MAX_SHIFTS: usize = 5;
/// Minimum rate of unreported calls per second that is shown. Smaller differences may be calls of another second: the
/// planner follows a difference gradually, and ignores less than this.
const MIN_UNREPORTED: f64 = 5.0;
/// Millionths per percent.
const PERCENT: f64 = 10_000.0;

/// Shows the planner's data and decisions.
pub(super) async fn status(args: StatusArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let services = read(&connection, args.service.as_ref()).await?;
    if let (Some(name), true) = (&args.service, services.is_empty()) {
        return Err(why_not_planned(&connection, name).await);
    }
    if services.is_empty() && args.output.format() == Format::Table {
        output::note(
            "no service is planned for: write 'traffic: {planner: rings}' in a policy (see docs/regions-planner.md)",
        );
        return Ok(());
    }
    let items: Vec<Value> = services.iter().map(item).collect();
    let mut text: Vec<String> = services.iter().map(text).collect();
    text.extend(drains(&connection).await?);
    output::print_one(args.output.format(), &items, &text.join("\n"))
}

/// Describes the region drains, one line each.
async fn drains(connection: &Connection) -> Result<Option<String>, Failure> {
    let drains = connection.traffic_planner().drains(v1::DrainsRequest {}).await?.into_inner().drains;
    let line = |one: &v1::RegionDrainStatus| {
        let mut line = region_drain::progress(one) + "\n";
        one.staying.iter().for_each(|why| line.push_str(&format!("  calls stay: {why}\n")));
        line
    };
    Ok((!drains.is_empty()).then(|| drains.iter().map(line).collect()))
}

/// Explains the latest changes.
pub(super) async fn explain(args: ExplainArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let services = read(&connection, Some(&args.service)).await?;
    let Some(service) = services.first() else {
        return Err(why_not_planned(&connection, &args.service).await);
    };
    if let Some(region) = &args.region {
        check_region(service, region)?;
    }
    if args.output.format() == Format::Table {
        let region = args.region.as_ref();
        let expected = optimizer::expected_table(service, region);
        let adjusted = service.optimized.as_ref().and_then(|plan| adjustments::tables(plan, region));
        for table in expected.into_iter().chain(adjusted) {
            output::write(&(table + "\n"))?;
        }
    }
    let mut listing = Listing::new(&["AGO", "CALLERS", "CLASS", "CHANGE"]);
    let region = args.region.as_ref().map(ToString::to_string);
    for shift in service.shifts.iter().filter(|shift| region.as_ref().is_none_or(|it| *it == shift.from)) {
        let row = vec![ago(shift.ago_ms), shift.from.clone(), class(&shift.class), shift.text.clone()];
        listing.add(row, shift_item(shift));
    }
    listing.why_empty = Some(match service.refusal.as_str() {
        _ if !service.shifts.is_empty() => {
            format!("none of the latest changes is of callers in {}", region.unwrap_or_default())
        }
        "" => {
            "no table was changed since the control plane started: no region is above a threshold".to_owned()
        }
        refusal => format!("no table was changed since the control plane started: {refusal}"),
    });
    listing.print(args.output.format())
}

/// Refuses a region in which the service has neither endpoints nor callers. A misspelt region would otherwise just
/// show no changes.
fn check_region(service: &v1::ServiceTraffic, region: &Region) -> Result<(), Failure> {
    let known: Vec<&str> = service.regions.iter().map(|known| known.region.as_str()).collect();
    if known.contains(&region.as_str()) {
        return Ok(());
    }
    let hint = match known.is_empty() {
        true => "its planner has seen no region yet; see 'fairmesh traffic status'".to_owned(),
        false => format!("name one of {}", known.join(", ")),
    };
    Err(Failure::failed_with(
        format!("{} has neither endpoints nor callers in a region {region}", service.service),
        hint,
    ))
}

fn text(service: &v1::ServiceTraffic) -> String {
    let mut text = format!("{}: {}\n", service.service, headline(service));
    // Writing to a string cannot fail.
    let _ = write!(text, "\n{}", region_table(service));
    if !service.tables.is_empty() {
        let _ = write!(
            text,
            "\n{}",
            output::table(&["CALLERS", "CLASS", "SHARES", "DROPPED"], &table_rows(service))
        );
    }
    for region in service.regions.iter().filter(|region| region.unreported >= MIN_UNREPORTED) {
        let (name, rate) = (&region.region, region.unreported);
        text.push_str(&format!(
            "\n{rate:.1} calls/s to {name} are of callers that do not report: no table moves them\n"
        ));
    }
    for region in service.regions.iter().filter(|region| !region.doubt.is_empty()) {
        text.push_str(&format!("\nthe capacity of {} is doubted: {}\n", region.region, region.doubt));
    }
    text.push_str(&zones(service));
    if let Some(tables) = service.optimized.as_ref().and_then(|plan| adjustments::tables(plan, None)) {
        let _ = write!(text, "\n{tables}");
    }
    for shift in service.shifts.iter().take(MAX_SHIFTS) {
        let _ = write!(text, "\n{} ago, callers of {}: {}", ago(shift.ago_ms), shift.from, shift.text);
    }
    if !service.shifts.is_empty() {
        text.push('\n');
    }
    text
}

/// What is known of each region.
fn region_table(service: &v1::ServiceTraffic) -> String {
    let load = |load: Option<f64>| load.map_or_else(|| "-".into(), |load| decimal(load * 100.0, 1) + " %");
    let rows: Vec<Vec<String>> = service
        .regions
        .iter()
        .map(|region| {
            vec![
                region.region.clone(),
                region.endpoints.to_string(),
                load(region.load),
                load(region.predicted),
                decimal(region.offered.iter().sum(), 1),
                decimal(region.received, 1),
                region.servers_ago_ms.map_or_else(|| "never".into(), ago),
                region.callers_ago_ms.map_or_else(|| "never".into(), ago),
            ]
        })
        .collect();
    let head = [
        "REGION",
        "ENDPOINTS",
        "LOAD",
        "PREDICTED",
        "OFFERED/S",
        "RECEIVED/S",
        "SERVERS HEARD",
        "CALLERS HEARD",
    ];
    output::table(&head, &rows)
}

/// Text about calls between zones, and why no zone is preferred.
fn zones(service: &v1::ServiceTraffic) -> String {
    let rows =
        service.regions.iter().flat_map(|region| region.zones.iter().map(|zone| (&region.region, zone)));
    let row = |(region, zone): (&String, &v1::ZoneTraffic)| {
        vec![
            format!("{region}/{}", zone.from),
            zone.to.clone(),
            percent(zone.share),
            decimal(zone.attempts, 1),
            decimal(zone.bytes, 0),
        ]
    };
    let rows: Vec<Vec<String>> = rows.map(row).collect();
    let mut text = match rows.is_empty() {
        true => String::new(),
        false => {
            format!("\n{}", output::table(&["CALLERS IN", "TO ZONE", "SHARE", "CALLS/S", "BYTES/S"], &rows))
        }
    };
    for region in service.regions.iter().filter(|region| !region.zone_refusal.is_empty()) {
        text.push_str(&format!("\nno zone is preferred: {}\n", region.zone_refusal));
    }
    text
}

/// The state in one line.
fn headline(service: &v1::ServiceTraffic) -> String {
    let planned = match service.planned_ago_ms {
        Some(planned) => format!("round {}, planned {} ago", service.round, ago(planned)),
        None => "no plan yet".to_owned(),
    };
    let kept = match service.refusal.as_str() {
        "" => String::new(),
        refusal => format!("; tables are kept as they are: {refusal}"),
    };
    format!("{}; {planned}{kept}{}", mode(service), optimizer::headline(service))
}

fn mode(service: &v1::ServiceTraffic) -> &'static str {
    match service.mode() {
        Mode::Active => "active",
        Mode::Shadow => "shadow, no router follows the tables",
        Mode::Hold => "held",
    }
}

fn table_rows(service: &v1::ServiceTraffic) -> Vec<Vec<String>> {
    let rows =
        service.tables.iter().flat_map(|table| table.shares.iter().map(|shares| (&table.from, shares)));
    rows.map(|(from, shares)| {
        let to = shares.to.iter().map(|to| format!("{} {}", to.region, percent(to.share)));
        vec![from.clone(), class(&shares.class), to.collect::<Vec<_>>().join(", "), percent(shares.dropped)]
    })
    .collect()
}

fn percent(millionths: u32) -> String {
    format!("{}%", f64::from(millionths) / PERCENT)
}

pub(super) fn class(name: &str) -> String {
    if name.is_empty() { "-".to_owned() } else { name.to_owned() }
}

fn item(service: &v1::ServiceTraffic) -> Value {
    let region = |region: &v1::RegionTraffic| {
        json!({
            "region": region.region,
            "endpoints": region.endpoints,
            "power": region.power,
            "load": region.load,
            "predictedLoad": region.predicted,
            "offeredPerSecond": region.offered,
            "receivedPerSecond": region.received,
            "unreportedPerSecond": region.unreported,
            "serversAgoMs": region.servers_ago_ms,
            "callersAgoMs": region.callers_ago_ms,
            "zones": region.zones.iter().map(zone_item).collect::<Vec<_>>(),
            "doubt": (!region.doubt.is_empty()).then_some(&region.doubt),
            "zoneRefusal": (!region.zone_refusal.is_empty()).then_some(&region.zone_refusal),
        })
    };
    let shares = |shares: &v1::RegionShares| {
        let to = shares.to.iter().map(|to| (to.region.clone(), json!(f64::from(to.share) / PERCENT)));
        json!({
            "class": (!shares.class.is_empty()).then_some(&shares.class),
            "toPercent": to.collect::<serde_json::Map<_, _>>(),
            "droppedPercent": f64::from(shares.dropped) / PERCENT,
        })
    };
    let table = |table: &v1::SourceShares| json!({ "from": table.from, "shares": table.shares.iter().map(shares).collect::<Vec<_>>() });
    json!({
        "service": service.service,
        "mode": match service.mode() {
            Mode::Active => "active",
            Mode::Shadow => "shadow",
            Mode::Hold => "hold",
        },
        "round": service.round,
        "plannedAgoMs": service.planned_ago_ms,
        "confirmedAgoMs": service.confirmed_ago_ms,
        "refusal": (!service.refusal.is_empty()).then_some(&service.refusal),
        "plannedRounds": service.planned_rounds,
        "refusedRounds": service.refused_rounds,
        "planner": optimizer::planner(service),
        "optimizer": service.optimized.as_ref().map(optimizer::item),
        "whyRings": (!service.why_rings.is_empty()).then_some(&service.why_rings),
        "classes": service.classes,
        "regions": service.regions.iter().map(region).collect::<Vec<_>>(),
        "tables": service.tables.iter().map(table).collect::<Vec<_>>(),
        "shifts": service.shifts.iter().map(shift_item).collect::<Vec<_>>(),
    })
}

fn zone_item(zone: &v1::ZoneTraffic) -> Value {
    json!({
        "from": zone.from,
        "to": zone.to,
        "sharePercent": f64::from(zone.share) / PERCENT,
        "callsPerSecond": zone.attempts,
        "bytesPerSecond": zone.bytes,
    })
}

fn shift_item(shift: &v1::TrafficShift) -> Value {
    json!({
        "agoMs": shift.ago_ms,
        "from": shift.from,
        "class": (!shift.class.is_empty()).then_some(&shift.class),
        "change": shift.text,
    })
}
