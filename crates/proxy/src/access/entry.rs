//! What a line says.

use std::{fmt, time::Duration};

use fairmesh_client::proxy_support::BodyEnd;
use fairmesh_headers::SpanContext;
use serde::Serialize;

use crate::insight::{Asked, Ended};

/// What is logged of a request. What is not known of it is left out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Entry {
    /// When the request came: seconds since 1970, with milliseconds.
    pub(crate) time: f64,
    pub(crate) service: String,
    pub(crate) method: String,
    /// Without its query, which may hold what is secret.
    pub(crate) path: String,
    pub(crate) status: u16,
    /// To the head of the answer, in milliseconds.
    pub(crate) ms: f64,
    /// To the end of the answer.
    pub(crate) total_ms: f64,
    pub(crate) caller: String,
    /// Why no server answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<&'static str>,
    /// How the answer ended where it was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grpc_status: Option<u16>,
    /// Who answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
    pub(crate) tries: usize,
    /// Of the request's body, where its length was known beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_in: Option<u64>,
    /// Of the answer's body, as far as it was read.
    pub(crate) bytes_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
}

impl Entry {
    /// Of a request in this trace, where it is in one.
    pub(crate) fn of(asked: &Asked, ended: &Ended<'_>, trace: Option<SpanContext>) -> Self {
        let answered = ended.answered;
        Self {
            time: seconds(asked.time),
            service: ended.service.clone(),
            method: asked.method.to_string(),
            path: asked.path().to_owned(),
            status: answered.status.as_u16(),
            ms: millis(answered.took),
            total_ms: millis(ended.took),
            caller: asked.caller.to_string(),
            fault: answered.fault,
            ended: match ended.end {
                BodyEnd::Complete => None,
                BodyEnd::Failed => Some("broken"),
                BodyEnd::Cancelled => Some("given_up"),
            },
            grpc_status: ended.code,
            instance: answered.server.as_ref().map(|server| server.instance.to_string()),
            region: answered.server.as_ref().map(|server| server.location.region.to_string()),
            tries: answered.tries,
            bytes_in: asked.length,
            bytes_out: ended.sent,
            trace_id: trace.map(|context| format!("{:032x}", context.trace)),
        }
    }
}

/// With milliseconds.
pub(crate) fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

/// With microseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

impl fmt::Display for Entry {
    /// For people, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, service, method, path, status, ms, total_ms, caller, .. } = self;
        // Debug, since a path may hold anything.
        write!(f, "{time:.3} {service} {method} {path:?} {status} {ms:.1} ms")?;
        if total_ms - ms >= 0.1 {
            write!(f, " ({total_ms:.1} ms in all)")?;
        }
        write!(f, " {} B from {caller}", self.bytes_out)?;
        if let (Some(instance), Some(region)) = (&self.instance, &self.region) {
            write!(f, " by {instance} in {region}")?;
        }
        if self.tries > 1 {
            write!(f, " after {} tries", self.tries)?;
        }
        if let Some(code) = self.grpc_status {
            write!(f, " grpc-status {code}")?;
        }
        for problem in self.fault.iter().chain(&self.ended) {
            write!(f, " ({problem})")?;
        }
        self.trace_id.iter().try_for_each(|trace| write!(f, " trace {trace}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            time: 1.5,
            service: "shop/cart".into(),
            method: "GET".into(),
            path: "/a\n\u{1b}[31m\"".into(),
            status: 503,
            ms: 2.25,
            total_ms: 2.25,
            caller: "127.0.0.1:1".into(),
            fault: Some("no_endpoints"),
            ..Entry::default()
        }
    }

    #[test]
    fn a_line_is_one_line_in_either_form_whatever_a_path_holds() {
        let text = entry().to_string();
        let expected =
            r#"1.500 shop/cart GET "/a\n\u{1b}[31m\"" 503 2.2 ms 0 B from 127.0.0.1:1 (no_endpoints)"#;
        assert_eq!(text, expected);
        let json = serde_json::to_string(&entry()).unwrap();
        assert!(json.chars().all(|c| !c.is_control()), "{json}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&read["path"], &read["status"]), (&"/a\n\u{1b}[31m\"".into(), &503.into()));
        assert!(read.get("region").is_none(), "what is not known is left out: {read}");
    }

    #[test]
    fn a_line_tells_who_answered_and_how_it_ended() {
        let entry = Entry {
            fault: None,
            status: 200,
            ended: Some("broken"),
            total_ms: 12.0,
            instance: Some("cart-0".into()),
            region: Some("eu".into()),
            tries: 2,
            bytes_out: 7,
            grpc_status: Some(14),
            trace_id: Some("4bf9".into()),
            path: "/".into(),
            ..entry()
        };
        let expected = "1.500 shop/cart GET \"/\" 200 2.2 ms (12.0 ms in all) 7 B from 127.0.0.1:1 by cart-0 in eu \
            after 2 tries grpc-status 14 (broken) trace 4bf9";
        assert_eq!(entry.to_string(), expected);
    }
}
