//! `fairmesh trace`: the slowest and the failed traces of the last hour, and one of them as a waterfall.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, Listing, ago},
};
use fairmesh_model::{ServiceName, Tenant};
use fairmesh_views::waterfall;
use fairmesh_wire::v1::{ReadTracesRequest, ReadTracesResponse, TraceSpan, TraceSummary, trace_span::Kind};
use serde_json::{Value, json};

/// Width of a waterfall's bars, in columns.
const BAR: u64 = 32;
/// Maximum depth of indentation in a waterfall.
const MAX_INDENT: usize = 12;

/// Arguments of `fairmesh trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// A service, as tenant/service, whose traces are listed [default: all]; or the id of a trace, which is shown.
    #[arg(value_name = "SERVICE|ID", value_parser = subject)]
    subject: Option<Subject>,
    /// Only traces of services of this tenant, and their spans.
    #[arg(long)]
    tenant: Option<Tenant>,
    /// Only traces in which a call failed, in a list.
    #[arg(long)]
    failed: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Service(ServiceName),
    /// 32 hexadecimal digits.
    Id(String),
}

fn subject(text: &str) -> Result<Subject, String> {
    let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    match is_id {
        true => Ok(Subject::Id(text.to_lowercase())),
        false => ServiceName::new(text)
            .map(Subject::Service)
            .map_err(|_| "write tenant/service, or the 32 hexadecimal digits of a trace".to_owned()),
    }
}

/// Prints a list, or a trace.
pub async fn run(args: TraceArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let mut request = ReadTracesRequest {
        tenant: args.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        failed: args.failed,
        ..ReadTracesRequest::default()
    };
    match &args.subject {
        Some(Subject::Service(service)) => request.service = service.to_string(),
        Some(Subject::Id(id)) => request.id.clone_from(id),
        None => {}
    }
    let is_list = request.id.is_empty();
    let response = connection.admin().read_traces(request).await?.into_inner();
    if response.left_out > 0 {
        output::note(format!("{} spans had no room", response.left_out));
    }
    if is_list {
        if response.not_shown > 0 {
            output::note(format!("{} faster traces are not shown: name a service", response.not_shown));
        }
        list(&response.traces).print(args.output.format())?;
    } else {
        show(&response, args.output.format())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(traces: &[TraceSummary]) -> Listing {
    let mut listing = Listing::new(&["TRACE", "SERVICE", "NAME", "DURATION", "FAILED", "SPANS", "AGE"]);
    listing.why_empty = Some(
        "no process has exported spans of such a trace to this control plane; a proxy does with --trace-to"
            .to_owned(),
    );
    for trace in traces {
        // Behind a semicolon is the remedy, which the trace itself shows.
        let error = trace.error.split(';').next().unwrap_or_default();
        let names_service = trace.failed_service == trace.service || error.starts_with(&trace.failed_service);
        let failed = match error {
            "" => "no".to_owned(),
            error if names_service => error.to_owned(),
            error => format!("{}: {error}", trace.failed_service),
        };
        let cells = [
            trace.id.clone(),
            trace.service.clone(),
            trace.name.clone(),
            millis(trace.duration_us),
            failed,
            trace.spans.to_string(),
            ago(trace.age_ms),
        ];
        listing.add(cells.into(), summary(trace));
    }
    listing
}

fn show(response: &ReadTracesResponse, format: Format) -> Result<(), Failure> {
    let spans = waterfall(&response.spans);
    if format == Format::Table {
        let mut listing =
            Listing::new(&["SPAN", "BEGINS", "TOOK", "", "ENDPOINT", "REGION", "REVISION", "STATUS"]);
        let end_us = response.spans.iter().map(|span| span.start_us + span.duration_us).max().unwrap_or(0);
        for (depth, span) in &spans {
            listing.add(row(*depth, span, end_us), Value::Null);
        }
        listing.print(Format::Table)?;
        if response.hidden_spans > 0 {
            output::note(format!("{} spans of services of other tenants are hidden", response.hidden_spans));
        }
        if !response.link.is_empty() {
            output::note(format!("see also {}", response.link));
        }
        return Ok(());
    }
    let mut document = response.traces.first().map_or_else(|| json!({}), summary);
    document["hiddenSpans"] = json!(response.hidden_spans);
    document["link"] = json!((!response.link.is_empty()).then_some(&response.link));
    document["spans"] = spans.iter().map(|(depth, span)| item(*depth, span)).collect();
    output::print_one(format, &document, "")
}

fn row(depth: usize, span: &TraceSpan, end_us: u64) -> Vec<String> {
    let endpoint = match (span.instance.as_str(), span.address.as_str()) {
        ("", address) => address.to_owned(),
        (instance, "") => instance.to_owned(),
        (instance, address) => format!("{instance} {address}"),
    };
    let side = if span.kind() == Kind::Client { "→ " } else { "" };
    let status = match (span.error.as_str(), span.status) {
        ("", 0) => "ok".to_owned(),
        ("", status) => status.to_string(),
        (error, 0) => error.to_owned(),
        (error, status) if error == status.to_string() => error.to_owned(),
        (error, status) => format!("{status} {error}"),
    };
    vec![
        format!("{}{side}{}", "  ".repeat(depth.min(MAX_INDENT)), span.name),
        millis(span.start_us),
        millis(span.duration_us),
        bar(span, end_us),
        endpoint,
        span.region.clone(),
        if span.revision == 0 { String::new() } else { span.revision.to_string() },
        status,
    ]
}

/// Draws the bar of a span within the duration of the whole trace.
fn bar(span: &TraceSpan, end_us: u64) -> String {
    let column = |at_us: u64| at_us.min(end_us) * BAR / end_us.max(1);
    let from = column(span.start_us).min(BAR - 1);
    let to = column(span.start_us + span.duration_us).clamp(from + 1, BAR);
    let part = |text: &str, columns: u64| text.repeat(usize::try_from(columns).unwrap_or_default());
    format!("{}{}{}", part("·", from), part("█", to - from), part("·", BAR - to))
}

fn summary(trace: &TraceSummary) -> Value {
    json!({
        "id": trace.id, "service": trace.service, "name": trace.name, "durationUs": trace.duration_us,
        "failed": trace.failed, "spanCount": trace.spans, "ageMs": trace.age_ms,
        "status": (trace.status != 0).then_some(trace.status),
        "error": (!trace.error.is_empty()).then_some(&trace.error),
        "failedService": (!trace.failed_service.is_empty()).then_some(&trace.failed_service),
    })
}

fn item(depth: usize, span: &TraceSpan) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let number = |number: u64| (number != 0).then_some(number);
    json!({
        "id": format!("{:016x}", span.id),
        "parent": number(span.parent).map(|parent| format!("{parent:016x}")),
        "depth": depth,
        "kind": span.kind().as_str_name().to_lowercase(),
        "service": text(&span.service), "process": text(&span.process), "name": span.name,
        "startUs": span.start_us, "durationUs": span.duration_us,
        "status": number(span.status.into()), "error": text(&span.error),
        "instance": text(&span.instance), "address": text(&span.address), "region": text(&span.region),
        "revision": number(span.revision),
    })
}

fn millis(us: u64) -> String {
    format!("{:.1}ms", us as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u64, parent: u64, (start_us, duration_us): (u64, u64)) -> TraceSpan {
        TraceSpan { id, parent, name: format!("s{id}"), start_us, duration_us, ..TraceSpan::default() }
    }

    #[test]
    fn trace_command_takes_service_or_trace_id() {
        assert!(matches!(subject("shop/cart"), Ok(Subject::Service(_))));
        let id = "0AF7651916CD43DD8448EB211C80319C";
        assert_eq!(subject(id), Ok(Subject::Id(id.to_lowercase())));
        assert!(subject("cart").is_err());
    }

    #[test]
    fn trace_span_row_shows_endpoint_revision_and_time() {
        let attempt = TraceSpan {
            kind: Kind::Client.into(),
            instance: "cart-0".into(),
            address: "10.0.0.1:80".into(),
            region: "eu".into(),
            revision: 42,
            status: 503,
            error: "503".into(),
            ..span(2, 1, (500, 250))
        };
        let row = row(1, &attempt, 1_000);
        let expected = format!("{}{}{}", "·".repeat(16), "█".repeat(8), "·".repeat(8));
        assert_eq!(row, ["  → s2", "0.5ms", "0.2ms", &expected, "cart-0 10.0.0.1:80", "eu", "42", "503"]);
        let instant = bar(&span(1, 0, (1_000, 0)), 1_000);
        assert_eq!((instant.chars().count(), instant.chars().last()), (BAR as usize, Some('█')));
    }
}
