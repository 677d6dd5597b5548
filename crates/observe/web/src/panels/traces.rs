use std::sync::Arc;

use fairmesh_views::waterfall;
use fairmesh_wire::v1::{self, trace_span::Kind};
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::given;
use crate::{
    command_queries::{coarse, problem},
    event_delta::{Shown, text},
};

/// Shows the slowest and the failed traces, with a row per trace, like `fairmesh trace`.
pub(crate) fn traces(response: Result<v1::ReadTracesResponse, Status>) -> Shown {
    match response {
        Ok(response) => {
            let rows =
                response.traces.iter().map(|trace| (trace.id.clone(), Arc::from(text(&summary(trace)))));
            let head = json!({ "notShown": response.not_shown, "leftOut": response.left_out });
            Shown::with_rows(&head, rows)
        }
        Err(status) => without(&status),
    }
}

/// Shows a trace with its spans in the order of a waterfall, like `fairmesh trace ID`.
pub(crate) fn trace(response: Result<v1::ReadTracesResponse, Status>) -> Shown {
    match response {
        Ok(response) => {
            let spans = waterfall(&response.spans).into_iter().map(|(depth, one)| span(depth, one));
            Shown::head(&json!({
                "trace": response.traces.first().map(summary),
                "spans": spans.collect::<Vec<_>>(),
                "hiddenSpans": response.hidden_spans,
                "link": given(&response.link),
            }))
        }
        Err(status) => without(&status),
    }
}

/// Says why there is nothing. A control plane that takes no spans is no problem: the page says how to change that.
fn without(status: &Status) -> Shown {
    match status.code() {
        Code::FailedPrecondition => Shown::head(&json!({ "off": true })),
        Code::NotFound => Shown::head(&json!({ "gone": true })),
        _ => problem(status.message()),
    }
}

fn summary(trace: &v1::TraceSummary) -> Value {
    json!({
        "service": given(&trace.service),
        "name": trace.name,
        "durationUs": trace.duration_us,
        "spans": trace.spans,
        "ageMs": coarse(trace.age_ms),
        "status": (trace.status != 0).then_some(trace.status),
        "failed": trace.failed,
        "error": given(&trace.error),
        "failedService": given(&trace.failed_service),
    })
}

fn span(depth: usize, span: &v1::TraceSpan) -> Value {
    json!({
        "depth": depth,
        "kind": match span.kind() {
            Kind::Client => "client",
            Kind::Server => "server",
            Kind::Internal => "internal",
        },
        "service": given(&span.service),
        "process": given(&span.process),
        "name": span.name,
        "startUs": span.start_us,
        "durationUs": span.duration_us,
        "status": (span.status != 0).then_some(span.status),
        "error": given(&span.error),
        "instance": given(&span.instance),
        "address": given(&span.address),
        "region": given(&span.region),
        "revision": (span.revision != 0).then_some(span.revision),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(shown: &Shown) -> Value {
        serde_json::from_str(&shown.since(None).unwrap()).unwrap()
    }

    #[test]
    fn trace_list_without_spans_says_that_it_is_off() {
        let off = traces(Err(Status::failed_precondition("start it with --traces")));
        assert_eq!(read(&off)["head"], json!({ "off": true }));
        let failed = trace(Err(Status::invalid_argument("id")));
        assert_eq!(read(&failed)["head"]["problem"], "id");
    }

    #[test]
    fn trace_has_spans_after_their_parents_with_endpoint_and_revision() {
        let child = v1::TraceSpan {
            id: 2,
            parent: 1,
            kind: Kind::Client.into(),
            start_us: 5,
            instance: "cart-0".into(),
            revision: 7,
            ..Default::default()
        };
        let parent = v1::TraceSpan { id: 1, start_us: 6, ..Default::default() };
        let response = v1::ReadTracesResponse {
            traces: vec![v1::TraceSummary { id: "a".repeat(32), ..Default::default() }],
            spans: vec![child, parent],
            link: "https://jaeger.example/trace/a".into(),
            ..Default::default()
        };
        let shown = read(&trace(Ok(response.clone())));
        let spans = &shown["head"]["spans"];
        assert_eq!((&spans[0]["depth"], &spans[1]["depth"]), (&json!(0), &json!(1)));
        assert_eq!((&spans[1]["instance"], &spans[1]["revision"]), (&json!("cart-0"), &json!(7)));
        assert_eq!(shown["head"]["link"], "https://jaeger.example/trace/a");
        assert!(read(&traces(Ok(response)))["rows"][&"a".repeat(32)].is_object());
    }
}
