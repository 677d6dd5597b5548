//! Cost of bytes between regions.

use std::{process::ExitCode, time::Duration};

use fairmesh_console::{
    arguments::Format,
    connect,
    failure::Failure,
    output::{self, Listing, ago, decimal},
    view_reader::{ReadView as _, View},
};
use fairmesh_model::{Egress, write_duration};
use fairmesh_planner::{EgressBill, EgressPath, EgressSum};
use fairmesh_wire::{
    convert::call_counts::read_calls,
    v1::{CallsRow, ReadCallsRequest, ReadCallsResponse},
};
use serde_json::{Value, json};

use super::{CostArgs, known_window};

/// Seconds in an hour.
const HOUR: f64 = 3_600.0;

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Calls of a service to another, between two regions and their zones.
    Pair,
    /// Calls to a service.
    Service,
    /// Calls between two regions.
    Region,
}

/// Prints the egress cost.
pub(super) async fn run(args: &CostArgs, by: By) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let request = ReadCallsRequest {
        service: args.service.as_ref().map(ToString::to_string).unwrap_or_default(),
        tenant: args.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        window_s: u32::try_from(args.window.as_secs().max(1)).unwrap_or(u32::MAX),
        series: false,
    };
    let response = connection.admin().read_calls(request).await?.into_inner();
    let prices = View::topology(&connection).await?.regions.value.egress;
    tell_what_is_missing(&response, &prices);
    let span = known_window(args, response.history_ms);
    let bill = bill(response.rows, &prices)?;
    let listing = listing(&bill, by, span);
    if args.output.format() == Format::Table {
        listing.print(Format::Table)?;
        let total = bill.total();
        let hourly = per_hour(&total, span);
        output::note(format!(
            "{} for {} in the last {}, {} an hour",
            dollars(total.dollars()),
            bytes(total.bytes()),
            write_duration(Duration::from_secs(span.as_secs())),
            dollars(hourly)
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let document = json!({
        "windowSeconds": span.as_secs(),
        "total": item(Value::Null, &bill.total(), span),
        "rows": listing.items,
    });
    output::print_one(args.output.format(), &document, "")?;
    Ok(ExitCode::SUCCESS)
}

fn tell_what_is_missing(response: &ReadCallsResponse, prices: &Egress) {
    if *prices == Egress::default() {
        output::note("the topology has no prices, so that all bytes cost nothing; write 'egress' into it");
    }
    if response.not_shown > 0 || response.other.is_some() {
        output::warn("calls of the smallest paths are not on the bill: name a service or a tenant");
    }
    if response.left_out > 0 {
        output::warn(format!(
            "reports had no room for {} paths, which are not on the bill",
            response.left_out
        ));
    }
    if response.history_ms < 3_600_000 {
        output::note(format!("this control plane counts calls since {}", ago(response.history_ms)));
    }
}

/// Computes the cost of the history's rows.
fn bill(rows: Vec<CallsRow>, prices: &Egress) -> Result<EgressBill, Failure> {
    let mut bill = EgressBill::default();
    for calls in rows.into_iter().filter_map(|row| row.calls) {
        let (path, counts) = read_calls(calls)?;
        bill.add(&path, &counts, prices);
    }
    Ok(bill)
}

fn listing(bill: &EgressBill, by: By, span: Duration) -> Listing {
    let mut listing = Listing::new(match by {
        By::Pair => &["CALLER", "SERVICE", "FROM", "TO", "REQUESTS", "RESPONSES", "COST", "COST/H"],
        By::Service => &["SERVICE", "REQUESTS", "RESPONSES", "BETWEEN ZONES", "COST", "COST/H"],
        By::Region => &["FROM", "TO", "REQUESTS", "RESPONSES", "BETWEEN ZONES", "COST", "COST/H"],
    });
    listing.why_empty = Some("no program has reported calls in this time".to_owned());
    for ((mut row, named), sum) in bill.grouped(|path| group(path, by)) {
        row.extend([bytes(sum.request_bytes), bytes(sum.response_bytes)]);
        if by != By::Pair {
            row.push(bytes(sum.zone_bytes));
        }
        row.extend([dollars(sum.dollars()), dollars(per_hour(&sum, span))]);
        let named = serde_json::from_str(&named).unwrap_or_default();
        listing.add(row, item(named, &sum, span));
    }
    listing
}

/// Returns the cells that name a group, and the names in JSON. JSON has no order of its own.
fn group(path: &EgressPath, by: By) -> (Vec<String>, String) {
    let place = |(region, zone): &(_, Option<_>)| match zone {
        Some(zone) => format!("{region}/{zone}"),
        None => format!("{region}"),
    };
    let caller = path.caller.as_ref().map(ToString::to_string);
    let (service, from, to) = (path.service.to_string(), &path.from, &path.to);
    match by {
        By::Pair => {
            let names = json!({
                "caller": caller, "service": service, "from": from.0.to_string(), "to": to.0.to_string(),
                "fromZone": from.1.as_ref().map(ToString::to_string), "toZone": to.1.as_ref().map(ToString::to_string),
            });
            (
                vec![caller.unwrap_or_else(|| "-".to_owned()), service, place(from), place(to)],
                names.to_string(),
            )
        }
        By::Service => (vec![service.clone()], json!({ "service": service }).to_string()),
        By::Region => {
            let names = json!({ "from": from.0.to_string(), "to": to.0.to_string() });
            (vec![from.0.to_string(), to.0.to_string()], names.to_string())
        }
    }
}

fn item(named: Value, sum: &EgressSum, span: Duration) -> Value {
    let mut item = if named.is_object() { named } else { json!({}) };
    item["calls"] = json!(sum.calls);
    item["requestBytes"] = json!(sum.request_bytes);
    item["responseBytes"] = json!(sum.response_bytes);
    item["bytesBetweenZones"] = json!(sum.zone_bytes);
    item["dollars"] = json!(sum.dollars());
    item["dollarsPerHour"] = json!(per_hour(sum, span));
    item
}

fn per_hour(sum: &EgressSum, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { sum.dollars() * HOUR / span.as_secs_f64() }
}

/// Formats dollars with at least three significant digits.
fn dollars(amount: f64) -> String {
    let places = match amount {
        amount if amount >= 1.0 || amount == 0.0 => 2,
        amount if amount >= 0.001 => 5,
        _ => 9,
    };
    format!("${}", decimal(amount, places))
}

/// Formats bytes in decimal units, which providers charge by.
fn bytes(count: u64) -> String {
    let count = count as f64;
    let (unit, name) = match count {
        count if count >= 1e12 => (1e12, "TB"),
        count if count >= 1e9 => (1e9, "GB"),
        count if count >= 1e6 => (1e6, "MB"),
        count if count >= 1e3 => (1e3, "kB"),
        _ => return format!("{count} B"),
    };
    format!("{} {name}", decimal(count / unit, 1))
}

#[cfg(test)]
mod tests {
    use fairmesh_wire::v1::CountedCalls;

    use super::*;

    fn row(caller: &str, service: &str, (from, to): (&str, &str)) -> CallsRow {
        let calls = CountedCalls {
            caller: caller.into(),
            service: service.into(),
            from: from.into(),
            to: to.into(),
            calls: 5,
            request_bytes: 1_000_000_000,
            response_bytes: 3_000_000_000,
            ..CountedCalls::default()
        };
        CallsRow { calls: Some(calls), covered_ms: 10_000, ..CallsRow::default() }
    }

    #[test]
    fn egress_cost_is_grouped_by_pair_service_and_region() {
        let prices = Egress { price: "0.02".parse().unwrap(), ..Egress::default() };
        let rows = vec![
            row("shop/web", "shop/cart", ("eu", "us")),
            row("", "shop/cart", ("us", "eu")),
            row("shop/web", "shop/pay", ("eu", "eu")),
        ];
        let bill = bill(rows, &prices).unwrap();
        let half_hour = Duration::from_secs(1_800);
        let shown = |by| {
            let rows = listing(&bill, by, half_hour).rows.into_iter();
            rows.map(|row| row.join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(By::Pair),
            [
                "- shop/cart us eu 1.0 GB 3.0 GB $0.08000 $0.16000",
                "shop/web shop/cart eu us 1.0 GB 3.0 GB $0.08000 $0.16000",
                "shop/web shop/pay eu eu 1.0 GB 3.0 GB $0.00 $0.00",
            ]
        );
        assert_eq!(
            shown(By::Service),
            ["shop/cart 2.0 GB 6.0 GB 0 B $0.16000 $0.32000", "shop/pay 1.0 GB 3.0 GB 0 B $0.00 $0.00"]
        );
        assert_eq!(shown(By::Region).len(), 3);
        let items = listing(&bill, By::Region, half_hour).items;
        assert_eq!((&items[2]["from"], &items[2]["dollars"]), (&json!("eu"), &json!(0.0)));
    }
}
