//! The graph of who calls whom: rows of calls, summed by pair and by service.

use std::collections::BTreeMap;

use fairmesh_views::{CallRow, CallSum, OTHER, UNKNOWN, counted_once};
use fairmesh_wire::v1;
use serde::Serialize;
use serde_json::json;

use crate::event_delta::{Shown, text};

/// Resolution of ages, in milliseconds. With finer ages, rows would be sent again only because they aged.
const AGE_STEP: u64 = 5_000;
/// Number of significant digits that are sent; the page shows three.
const DIGITS: i32 = 4;

/// Figures of calls: rate and retries per second, share of failed calls, p50 and p99 in microseconds, bytes per
/// second between regions, and the age of the newest data in milliseconds. -1 stands for an unknown figure.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Numbers(pub(crate) [f64; 7]);

impl Numbers {
    pub(crate) fn of(sum: &CallSum) -> Self {
        let latency = |part| sum.counts.latency_quantile_us(part).map_or(-1.0, |us| us as f64);
        let failed = sum.failed_part().map_or(-1.0, round);
        let (rate, retries, egress) = (round(sum.rate), round(sum.retries), round(sum.egress));
        Self([rate, retries, failed, latency(0.5), latency(0.99), egress, age(sum.age_ms)])
    }

    /// Returns the figures of calls whose last report is older than the window.
    fn unknown(age_ms: u64) -> Self {
        Self([-1.0, -1.0, -1.0, -1.0, -1.0, -1.0, age(age_ms)])
    }
}

/// Rounds an age down to whole steps.
fn age(ms: u64) -> f64 {
    let ms = ms.min(u64::from(u32::MAX));
    (ms - ms % AGE_STEP) as f64
}

/// Rounds a number to [`DIGITS`] significant digits.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powi(DIGITS - 1 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Selects the calls of a graph, and whether services are split by region.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    /// Include only calls from or to this region; if empty, all calls.
    pub(crate) region: String,
    /// Show a service separately for each region.
    pub(crate) by_region: bool,
}

impl Cut {
    fn has(&self, row: &CallRow) -> bool {
        self.region.is_empty() || row.from == self.region || row.to == self.region
    }

    /// Returns the caller and the called service, as named in the graph.
    fn pair(&self, row: &CallRow) -> (String, String) {
        (self.name(caller(row), &row.from), self.name(&row.service, &row.to))
    }

    fn name(&self, service: &str, region: &str) -> String {
        match self.by_region && region != UNKNOWN {
            true => format!("{service}{AT}{region}"),
            false => service.to_owned(),
        }
    }
}

/// Separates a service from its region.
const AT: char = '@';
/// Name of callers without a service identity whose region is known: programs of the mesh report their calls. Callers
/// outside the mesh have neither name nor region.
const NO_IDENTITY: &str = "(no identity)";

fn caller(row: &CallRow) -> &str {
    if row.caller == UNKNOWN && row.from != UNKNOWN { NO_IDENTITY } else { &row.caller }
}

/// Returns the graph of a response. Pairs that occur only in `earlier`, a response over a longer window, have unknown
/// figures. A row's name is the service, or the caller and the service on two lines.
pub(crate) fn graph(
    response: &v1::ReadCallsResponse,
    earlier: &v1::ReadCallsResponse,
    (cut, window_ms): (&Cut, u64),
) -> Shown {
    let rows = rows(response);
    let mut regions: Vec<&String> = rows.iter().flat_map(|row| [&row.from, &row.to]).collect();
    regions.retain(|region| *region != UNKNOWN);
    regions.sort_unstable();
    regions.dedup();
    let head = json!({
        "regions": regions,
        "windowMs": window_ms,
        "historyMs": response.history_ms,
        "notShown": response.not_shown,
        "leftOut": response.left_out,
    });
    let mut sums = BTreeMap::<String, CallSum>::new();
    for row in rows.iter().filter(|row| cut.has(row)) {
        let (caller, service) = cut.pair(row);
        sums.entry(format!("{caller}\n{service}")).or_default().add(row);
        sums.entry(service).or_default().add(row);
    }
    let numbers = |(name, mut sum): (String, CallSum)| {
        sum.per_second();
        (name, Numbers::of(&sum))
    };
    let mut numbers: BTreeMap<_, _> = sums.into_iter().map(numbers).collect();
    for row in self::rows(earlier).iter().filter(|row| cut.has(row)) {
        let (caller, service) = cut.pair(row);
        numbers.entry(format!("{caller}\n{service}")).or_insert_with(|| Numbers::unknown(row.age_ms));
    }
    Shown::with_rows(&head, numbers.into_iter().map(|(name, numbers)| (name, text(&numbers).into())))
}

/// Returns the rows of a response, with each call counted once, and the row of merged paths.
pub(crate) fn rows(response: &v1::ReadCallsResponse) -> Vec<CallRow> {
    let other = response.other.as_ref().map(|row| CallRow { service: OTHER.to_owned(), ..CallRow::of(row) });
    counted_once(&response.rows).into_iter().chain(other).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;

    pub(crate) fn row(caller: &str, service: &str, (from, to): (&str, &str), calls: u64) -> v1::CallsRow {
        let calls = v1::CountedCalls {
            caller: caller.into(),
            service: service.into(),
            from: from.into(),
            to: to.into(),
            calls,
            responses: vec![0, calls - calls / 10, 0, 0, calls / 10],
            latency: vec![0, 0, calls],
            response_bytes: calls * 100,
            ..v1::CountedCalls::default()
        };
        v1::CallsRow { calls: Some(calls), covered_ms: 10_000, age_ms: 700, series: Vec::new() }
    }

    fn response() -> v1::ReadCallsResponse {
        let rows = vec![
            row("shop/web", "shop/cart", ("eu", "eu"), 100),
            row("shop/web", "shop/cart", ("eu", "us"), 20),
            row("shop/web", "shop/catalog", ("us", "us"), 50),
            row("", "shop/web", ("", "eu"), 10),
        ];
        v1::ReadCallsResponse { rows, history_ms: 60_000, ..Default::default() }
    }

    /// Returns the data of a graph's event.
    fn event(now: &v1::ReadCallsResponse, cut: &Cut) -> Value {
        serde_json::from_str(&graph(now, &response(), (cut, 60_000)).since(None).unwrap()).unwrap()
    }

    /// Returns the rates of the pairs in an event.
    fn rates(event: &Value) -> Vec<(&str, f64)> {
        let rows = event["rows"].as_object().unwrap().iter().filter(|(name, _)| name.contains('\n'));
        rows.map(|(name, numbers)| (name.as_str(), numbers[0].as_f64().unwrap())).collect()
    }

    #[test]
    fn calls_are_summed_by_pair_and_service() {
        let event = event(&response(), &Cut::default());
        let expected = [("-\nshop/web", 1.0), ("shop/web\nshop/cart", 12.0), ("shop/web\nshop/catalog", 5.0)];
        assert_eq!(rates(&event), expected);
        assert_eq!(event["head"]["regions"], json!(["eu", "us"]));
        let pair = &event["rows"]["shop/web\nshop/cart"];
        assert_eq!((&pair[2], &pair[5], &pair[6]), (&json!(0.1), &json!(200.0), &json!(0.0)));
        assert!(pair[4].as_f64().unwrap() > 0.0);
        assert_eq!(event["rows"]["shop/cart"][0], 12.0);
        assert_eq!(event["rows"].as_object().unwrap().len(), 6);
    }

    #[test]
    fn call_graph_region_filter_selects_calls_from_and_to_region() {
        let event = event(&response(), &Cut { region: "us".into(), ..Cut::default() });
        assert_eq!(rates(&event), [("shop/web\nshop/cart", 2.0), ("shop/web\nshop/catalog", 5.0)]);
        assert_eq!(event["head"]["regions"], json!(["eu", "us"]), "other regions can still be chosen");
    }

    #[test]
    fn call_graph_splits_services_by_region_on_request() {
        let event = event(&response(), &Cut { by_region: true, ..Cut::default() });
        let expected = [
            ("-\nshop/web@eu", 1.0),
            ("shop/web@eu\nshop/cart@eu", 10.0),
            ("shop/web@eu\nshop/cart@us", 2.0),
            ("shop/web@us\nshop/catalog@us", 5.0),
        ];
        assert_eq!(rates(&event), expected);
    }

    #[test]
    fn callers_without_identity_in_known_region_differ_from_callers_outside_mesh() {
        let mut response = response();
        response.rows.push(row("", "shop/web", ("us", "eu"), 30));
        let event = event(&response, &Cut::default());
        assert_eq!(rates(&event)[..2], [("(no identity)\nshop/web", 3.0), ("-\nshop/web", 1.0)]);
        let event = self::event(&response, &Cut { by_region: true, ..Cut::default() });
        assert_eq!(rates(&event)[..2], [("(no identity)@us\nshop/web@eu", 3.0), ("-\nshop/web@eu", 1.0)]);
    }

    #[test]
    fn call_pair_without_current_reports_has_unknown_figures() {
        let mut now = response();
        now.rows.remove(2);
        let event = event(&now, &Cut::default());
        let expected =
            [("-\nshop/web", 1.0), ("shop/web\nshop/cart", 12.0), ("shop/web\nshop/catalog", -1.0)];
        assert_eq!(rates(&event), expected);
    }

    #[test]
    fn call_graph_numbers_are_rounded_to_four_digits_and_ages_to_steps() {
        let rounded = [0.0, 0.123456, 12.3456, 98_765.4, f64::NAN].map(round);
        assert_eq!(rounded, [0.0, 0.1235, 12.35, 98_770.0, 0.0]);
        assert_eq!([700, 5_000, 34_999].map(age), [0.0, 5_000.0, 30_000.0]);
    }

    #[test]
    fn unknown_call_figures_differ_from_zero() {
        let mut sum = CallSum::default();
        sum.per_second();
        let Numbers([rate, _, failed, p50, p99, ..]) = Numbers::of(&sum);
        assert_eq!((rate, failed, p50, p99), (0.0, -1.0, -1.0, -1.0));
    }
}
