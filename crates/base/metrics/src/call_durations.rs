//! Durations of calls by caller, callee and outcome, named by the OpenTelemetry semantic conventions (HTTP metrics
//! 1.23, RPC metrics).

use std::{sync::OnceLock, time::Duration};

use crate::{DurationHistogram, DurationSnapshot, Labels, TraceExemplar};

/// Maximum number of series per called service. Calls for which no series is left are counted in a shared overflow
/// series.
const MAX_SERIES: usize = 32;
/// Label of the overflow series; not a valid name.
pub const OTHER: &str = "(other)";
/// Label of an unknown caller; not a valid name.
pub const UNKNOWN: &str = "(unknown)";
/// Method label that the conventions prescribe for unknown methods.
const OTHER_METHOD: &str = "_OTHER";

/// Prometheus label and OpenTelemetry attribute of each property. Prometheus replaces dots by underscores.
pub const ATTRIBUTES: [(&str, &str); 7] = [
    ("fairmesh_caller", "fairmesh.caller"),
    ("fairmesh_callee", "fairmesh.callee"),
    ("http_request_method", "http.request.method"),
    ("http_response_status_code", "http.response.status_code"),
    ("rpc_system_name", "rpc.system.name"),
    ("rpc_response_status_code", "rpc.response.status_code"),
    ("error_type", "error.type"),
];

/// The side on which calls were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Measured by the caller.
    Client,
    /// Measured by the called service.
    Server,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// An HTTP response to a request with one of the methods of [`known_method`].
    Http {
        /// Request method.
        method: &'static str,
        /// Response status; 0 stands for all statuses without their own series.
        status: u16,
    },
    /// A finished gRPC call, with the name of its status.
    Grpc(&'static str),
}

/// Histograms of the calls to one service. Lookups take no lock.
#[derive(Debug, Default)]
pub struct CallSeries {
    /// Series in the order of their first calls. Frequent outcomes usually come first, so that the search is short.
    series: [OnceLock<Box<Series>>; MAX_SERIES],
    /// Overflow series: one for HTTP and one for gRPC.
    overflow: [OnceLock<Box<DurationHistogram>>; 2],
}

#[derive(Debug)]
struct Series {
    caller: Option<Box<str>>,
    outcome: CallOutcome,
    durations: DurationHistogram,
}

/// One series at the time of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRow {
    /// The calling service, or a label that says why there is none.
    pub caller: String,
    /// The called service, or a label that says why there is none.
    pub callee: String,
    /// Outcome of the calls.
    pub outcome: CallOutcome,
    /// Durations of the calls.
    pub durations: DurationSnapshot,
}

/// A family of duration histograms at the time of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct DurationFamily {
    /// The Prometheus name.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The series of the family.
    pub rows: Vec<(Labels, DurationSnapshot)>,
}

/// Returns the method as a label. Methods that the conventions do not list become `_OTHER`, since callers may invent
/// methods.
pub fn known_method(method: &str) -> &'static str {
    const METHODS: [&str; 9] =
        ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "CONNECT", "TRACE"];
    METHODS.into_iter().find(|known| *known == method).unwrap_or(OTHER_METHOD)
}

impl CallSeries {
    /// Counts a call. `caller` is needed if the series count the calls of several services.
    #[inline]
    pub fn record(
        &self,
        caller: Option<&str>,
        outcome: CallOutcome,
        took: Duration,
        exemplar: Option<TraceExemplar>,
    ) {
        self.of(caller, outcome).record(took, exemplar);
    }

    #[inline]
    fn of(&self, caller: Option<&str>, outcome: CallOutcome) -> &DurationHistogram {
        for slot in &self.series {
            let series = slot.get_or_init(|| {
                Box::new(Series {
                    caller: caller.map(Into::into),
                    outcome,
                    durations: DurationHistogram::default(),
                })
            });
            if series.outcome == outcome && series.caller.as_deref() == caller {
                return &series.durations;
            }
        }
        let is_grpc = matches!(outcome, CallOutcome::Grpc(_));
        self.overflow[usize::from(is_grpc)].get_or_init(Box::default)
    }

    /// Adds the counts in `other`.
    pub fn merge(&self, other: &Self) {
        for series in other.series.iter().filter_map(OnceLock::get) {
            self.of(series.caller.as_deref(), series.outcome).merge(&series.durations);
        }
        for (overflow, other) in self.overflow.iter().zip(&other.overflow) {
            if let Some(other) = other.get() {
                overflow.get_or_init(Box::default).merge(other);
            }
        }
    }

    /// All series as of now. Series without their own caller get `caller`.
    pub fn rows<'a>(&'a self, caller: &'a str, callee: &'a str) -> impl Iterator<Item = CallRow> + 'a {
        let row = move |caller: &str, outcome, durations: &DurationHistogram| CallRow {
            caller: caller.to_owned(),
            callee: callee.to_owned(),
            outcome,
            durations: durations.snapshot(),
        };
        let series = self.series.iter().filter_map(OnceLock::get).map(move |series| {
            row(series.caller.as_deref().unwrap_or(caller), series.outcome, &series.durations)
        });
        let others = [CallOutcome::Http { method: OTHER_METHOD, status: 0 }, CallOutcome::Grpc(OTHER)];
        let overflow = self.overflow.iter().zip(others);
        series.chain(overflow.filter_map(move |(slot, outcome)| Some(row(OTHER, outcome, slot.get()?))))
    }
}

/// Groups the series into the HTTP and gRPC families, leaving out empty families.
pub fn families(side: Side, rows: impl IntoIterator<Item = CallRow>) -> Vec<DurationFamily> {
    let [(http, http_help), (rpc, rpc_help)] = match side {
        Side::Client => [
            ("http_client_request_duration_seconds", "Time until the response began, by the caller's side"),
            ("rpc_client_call_duration_seconds", "Duration of calls of gRPC by the caller's side"),
        ],
        Side::Server => [
            ("http_server_request_duration_seconds", "Time until the response began, by the server's side"),
            ("rpc_server_call_duration_seconds", "Duration of calls of gRPC by the server's side"),
        ],
    };
    let mut of_http = DurationFamily { name: http, help: http_help, rows: Vec::new() };
    let mut of_rpc = DurationFamily { name: rpc, help: rpc_help, rows: Vec::new() };
    for CallRow { caller, callee, outcome, durations } in rows {
        let mut labels: Labels = vec![("fairmesh_caller", caller.into()), ("fairmesh_callee", callee.into())];
        labels.extend(labels_of(side, outcome));
        let family = if matches!(outcome, CallOutcome::Grpc(_)) { &mut of_rpc } else { &mut of_http };
        family.rows.push((labels, durations));
    }
    [of_http, of_rpc].into_iter().filter(|family| !family.rows.is_empty()).collect()
}

/// Labels of an outcome. They include `error_type` if the conventions count the outcome as an error of this side.
fn labels_of(side: Side, outcome: CallOutcome) -> Labels {
    match outcome {
        CallOutcome::Http { method, status: 0 } => {
            vec![("http_request_method", method.into()), ("http_response_status_code", OTHER.into())]
        }
        CallOutcome::Http { method, status } => {
            let code = status.to_string();
            let mut labels: Labels = vec![
                ("http_request_method", method.into()),
                ("http_response_status_code", code.clone().into()),
            ];
            let least = if side == Side::Client { 400 } else { 500 };
            labels.extend((status >= least).then(|| ("error_type", code.into())));
            labels
        }
        CallOutcome::Grpc(status) => {
            let mut labels: Labels =
                vec![("rpc_system_name", "grpc".into()), ("rpc_response_status_code", status.into())];
            // Statuses that the gRPC conventions count as server errors.
            let is_server_failure = matches!(
                status,
                "UNKNOWN" | "DEADLINE_EXCEEDED" | "UNIMPLEMENTED" | "INTERNAL" | "UNAVAILABLE" | "DATA_LOSS"
            );
            let is_error = if side == Side::Client { status != "OK" } else { is_server_failure };
            labels.extend((is_error && status != OTHER).then(|| ("error_type", status.into())));
            labels
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET_OK: CallOutcome = CallOutcome::Http { method: "GET", status: 200 };

    fn labels(family: &DurationFamily, row: usize) -> Vec<(&str, &str)> {
        family.rows[row].0.iter().map(|(name, value)| (*name, &**value)).collect()
    }

    #[test]
    fn call_durations_follow_conventions_with_caller_and_callee() {
        let series = CallSeries::default();
        let took = Duration::from_millis(5);
        series.record(None, GET_OK, took, None);
        series.record(None, CallOutcome::Http { method: known_method("BREW"), status: 404 }, took, None);
        series.record(Some("shop/web"), CallOutcome::Grpc("UNAVAILABLE"), took, None);
        let client = families(Side::Client, series.rows("shop/edge", "shop/cart"));
        assert_eq!(
            client.iter().map(|family| family.name).collect::<Vec<_>>(),
            ["http_client_request_duration_seconds", "rpc_client_call_duration_seconds"]
        );
        assert_eq!(
            labels(&client[0], 1),
            [
                ("fairmesh_caller", "shop/edge"),
                ("fairmesh_callee", "shop/cart"),
                ("http_request_method", "_OTHER"),
                ("http_response_status_code", "404"),
                ("error_type", "404"),
            ]
        );
        assert_eq!(labels(&client[1], 0)[0], ("fairmesh_caller", "shop/web"));
        let server = families(Side::Server, series.rows("shop/edge", "shop/cart"));
        assert_eq!(labels(&server[0], 1).len(), 4, "a response 404 is no error of the server");
        assert!(server.iter().flat_map(|family| &family.rows).all(|(_, durations)| durations.count() == 1));
    }

    #[test]
    fn metric_series_beyond_maximum_are_counted_together() {
        let series = CallSeries::default();
        for status in 100..140 {
            series.record(None, CallOutcome::Http { method: "GET", status }, Duration::ZERO, None);
        }
        let sum = CallSeries::default();
        sum.record(None, GET_OK, Duration::ZERO, None);
        sum.merge(&series);
        for (series, count, others) in [(&series, 40, 8), (&sum, 41, 9)] {
            let rows: Vec<_> = series.rows("shop/edge", "shop/cart").collect();
            assert_eq!(rows.iter().map(|row| row.durations.count()).sum::<u64>(), count);
            let other = rows.last().unwrap();
            assert_eq!((&*other.caller, other.durations.count()), (OTHER, others));
        }
    }
}
