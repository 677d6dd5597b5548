//! A line of the access log.

use std::{fmt, ops::Not, time::Duration};

use fairmesh_calls::forwarding::BodyEnd;
use fairmesh_headers::SpanContext;
use serde::Serialize;

use crate::observe::request_info::{CompletedRequest, RequestInfo};

/// Direction of requests to the program behind the proxy.
const INBOUND: &str = "inbound";
/// Route name of requests that matched no route.
const NO_ROUTE: &str = "(none)";

/// The logged data of a request. Unknown values are left out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct AccessLogEntry {
    /// Arrival in seconds since the Unix epoch, with milliseconds.
    pub(crate) time: f64,
    pub(crate) service: String,
    pub(crate) method: String,
    /// The path without the query, which may contain secrets.
    pub(crate) path: String,
    pub(crate) status: u16,
    /// Milliseconds until the response headers.
    pub(crate) ms: f64,
    /// Milliseconds until the end of the response.
    pub(crate) total_ms: f64,
    pub(crate) caller: String,
    /// The identity that the caller proved to a gateway, or to the proxy in front of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) caller_id: Option<String>,
    /// The id of the connection to a gateway. The node logs the same id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection: Option<String>,
    /// `inbound` for requests to the program behind the proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) direction: Option<&'static str>,
    /// Whether the kernel sent the request in place of mutual TLS, past the listener in front of the program.
    #[serde(skip_serializing_if = "Not::not")]
    pub(crate) in_place_of_mtls: bool,
    /// The matched route of the service's policy; `(none)` if no route matched.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) route: String,
    /// The service that got the request: the called one, or a backend of its route.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) backend: String,
    /// Kind of the fault if no server responded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<&'static str>,
    /// The faults that the route injected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) injected: Option<&'static str>,
    /// Description of the response's end, if it did not end normally.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grpc_status: Option<u16>,
    /// The server that responded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
    pub(crate) attempts: usize,
    /// Bytes of the request body, if announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_in: Option<u64>,
    /// Bytes of the response body that were read. Unknown if another process read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
}

impl AccessLogEntry {
    /// Builds the entry of a request; `trace` is its trace context.
    pub(crate) fn of(
        request: &RequestInfo,
        completed: &CompletedRequest<'_>,
        trace: Option<SpanContext>,
    ) -> Self {
        let outcome = completed.outcome;
        let (route, backend) =
            outcome.route_backend.clone().map(|pair| (pair.route, pair.backend)).unwrap_or_default();
        Self {
            time: seconds(request.time),
            service: completed.service.clone(),
            route,
            backend,
            method: request.method.to_string(),
            path: request.path().to_owned(),
            status: outcome.status.as_u16(),
            ms: millis(outcome.took),
            total_ms: millis(completed.took),
            caller: request.caller.to_string(),
            caller_id: request.caller_id(),
            connection: request.principal.as_ref().map(|principal| principal.connection.to_string()),
            direction: request.is_served.then_some(INBOUND),
            in_place_of_mtls: request.is_in_place,
            fault: outcome.fault,
            injected: outcome.injected,
            ended: match completed.end {
                BodyEnd::Complete => None,
                BodyEnd::Failed => Some("broken"),
                BodyEnd::Cancelled => Some("given_up"),
            },
            grpc_status: completed.grpc_status,
            instance: outcome.server.as_ref().map(|server| server.instance.to_string()),
            region: outcome.server.as_ref().map(|server| server.location.region.to_string()),
            attempts: outcome.attempts,
            bytes_in: request.length,
            bytes_out: Some(completed.bytes_out),
            trace_id: trace.map(|context| format!("{:032x}", context.trace)),
        }
    }
}

/// Seconds, rounded to milliseconds.
pub(crate) fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

/// Formats seconds since the Unix epoch as RFC 3339, in UTC with milliseconds.
fn timestamp(time: f64) -> String {
    // Fails only for years with more than four digits, which no clock shows.
    jiff::Timestamp::from_millisecond((time * 1e3).round() as i64)
        .map_or_else(|_| format!("{time:.3}"), |time| format!("{time:.3}"))
}

/// Milliseconds, rounded to microseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

impl fmt::Display for AccessLogEntry {
    /// One line of text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, service, method, path, status, ms, total_ms, caller, .. } = self;
        // Escaped, since a path may contain any characters.
        write!(f, "{} {service} {method} {path:?} {status} {ms:.1} ms", timestamp(*time))?;
        if total_ms - ms >= 0.1 {
            write!(f, " ({total_ms:.1} ms in all)")?;
        }
        if let Some(bytes) = self.bytes_out {
            write!(f, " {bytes} B")?;
        }
        write!(f, " from {caller}")?;
        if let Some(id) = &self.caller_id {
            write!(f, " as {id}")?;
        }
        if let Some(connection) = &self.connection {
            write!(f, " on {connection}")?;
        }
        if let (Some(instance), Some(region)) = (&self.instance, &self.region) {
            write!(f, " by {instance} in {region}")?;
        }
        if !self.backend.is_empty() && self.backend != *service {
            write!(f, " of {}", self.backend)?;
        }
        if !self.route.is_empty() && self.route != NO_ROUTE {
            write!(f, " by route {}", self.route)?;
        }
        if self.attempts > 1 {
            write!(f, " after {} attempts", self.attempts)?;
        }
        if let Some(code) = self.grpc_status {
            write!(f, " grpc-status {code}")?;
        }
        for problem in self.fault.iter().chain(&self.ended) {
            write!(f, " ({problem})")?;
        }
        if let Some(injected) = self.injected {
            write!(f, " (injected {injected})")?;
        }
        if let Some(direction) = self.direction {
            write!(f, " {direction}")?;
        }
        if self.in_place_of_mtls {
            f.write_str(" in place of mTLS")?;
        }
        self.trace_id.iter().try_for_each(|trace| write!(f, " trace {trace}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> AccessLogEntry {
        AccessLogEntry {
            time: 1.5,
            service: "shop/cart".into(),
            method: "GET".into(),
            path: "/a\n\u{1b}[31m\"".into(),
            status: 503,
            ms: 2.25,
            total_ms: 2.25,
            caller: "127.0.0.1:1".into(),
            bytes_out: Some(0),
            fault: Some("no_endpoints"),
            ..AccessLogEntry::default()
        }
    }

    #[test]
    fn access_log_escapes_paths_in_both_formats() {
        let text = entry().to_string();
        let expected = r#"1970-01-01T00:00:01.500Z shop/cart GET "/a\n\u{1b}[31m\"" 503 2.2 ms 0 B from 127.0.0.1:1 (no_endpoints)"#;
        assert_eq!(text, expected);
        let json = serde_json::to_string(&entry()).unwrap();
        assert!(json.chars().all(|c| !c.is_control()), "{json}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&read["path"], &read["status"]), (&"/a\n\u{1b}[31m\"".into(), &503.into()));
        assert!(read.get("region").is_none(), "what is not known is left out: {read}");
    }

    #[test]
    fn access_log_entry_contains_server_and_outcome() {
        let entry = AccessLogEntry {
            fault: None,
            status: 200,
            ended: Some("broken"),
            total_ms: 12.0,
            instance: Some("cart-0".into()),
            region: Some("eu".into()),
            attempts: 2,
            bytes_out: Some(7),
            grpc_status: Some(14),
            trace_id: Some("4bf9".into()),
            route: "checkout".into(),
            backend: "shop/canary".into(),
            injected: Some("delay"),
            path: "/".into(),
            ..entry()
        };
        let expected = "1970-01-01T00:00:01.500Z shop/cart GET \"/\" 200 2.2 ms (12.0 ms in all) 7 B from 127.0.0.1:1 by cart-0 in eu \
            of shop/canary by route checkout after 2 attempts grpc-status 14 (broken) (injected delay) trace 4bf9";
        assert_eq!(entry.to_string(), expected);
    }

    #[test]
    fn access_log_entry_in_place_of_mtls_names_caller_and_omits_unknown_length() {
        let entry = AccessLogEntry {
            fault: None,
            status: 200,
            path: "/".into(),
            bytes_out: None,
            caller_id: Some("spiffe://prod/shop/web".into()),
            direction: Some(INBOUND),
            in_place_of_mtls: true,
            ..entry()
        };
        let expected = "1970-01-01T00:00:01.500Z shop/cart GET \"/\" 200 2.2 ms from 127.0.0.1:1 as spiffe://prod/shop/web inbound \
            in place of mTLS";
        assert_eq!(entry.to_string(), expected);
        let read = serde_json::to_value(&entry).unwrap();
        assert!(read["in_place_of_mtls"] == true && read.get("bytes_out").is_none(), "{read}");
    }
}
