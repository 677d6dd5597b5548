//! `fairmesh tap`: requests of a service as proxies complete them.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::{Format, OutputArgs},
    failure::Failure,
    output,
};
use fairmesh_model::{ServiceName, spec::read_duration};
use fairmesh_processes::proxy::admin_page;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Queue size for lines of all proxies that wait to be printed.
const QUEUE: usize = 64;
/// Maximum length of a line. Proxies cut off longer paths.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Arguments of `fairmesh tap`.
#[derive(Debug, Args)]
pub struct TapArgs {
    /// The service, as tenant/service.
    service: ServiceName,
    /// The admin port of a proxy; may be repeated.
    #[arg(long = "admin", value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    proxies: Vec<SocketAddr>,
    /// Only paths that begin so.
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,
    /// Only this method.
    #[arg(long, short = 'X')]
    method: Option<String>,
    /// Only this status, such as 404, or a class, such as 5xx.
    #[arg(long, value_parser = status)]
    status: Option<String>,
    /// Only requests that no server answered, or that one answered with 500 and above.
    #[arg(long)]
    failed: bool,
    /// Only requests that took at least so long.
    #[arg(long, value_name = "DURATION", value_parser = read_duration)]
    slower_than: Option<Duration>,
    /// One of N of these requests.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    one_in: u64,
    /// End after N requests.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    output_args: OutputArgs,
}

fn status(text: &str) -> Result<String, String> {
    let is_class = text.strip_suffix("xx").is_some_and(|class| matches!(class, "1" | "2" | "3" | "4" | "5"));
    let is_status = text.parse().is_ok_and(|status: u16| (100..1000).contains(&status));
    if is_class || is_status {
        Ok(text.to_owned())
    } else {
        Err("write a status, such as 404, or 5xx".to_owned())
    }
}

/// Prints requests until it is interrupted, the limit is reached, or every proxy has gone.
pub async fn run(args: TapArgs) -> Result<ExitCode, Failure> {
    let (sender, mut lines) = mpsc::channel(QUEUE);
    let query = query(&args);
    for proxy in args.proxies.clone() {
        let (sender, query) = (sender.clone(), query.clone());
        tokio::spawn(async move {
            let ended = read(proxy, &query, &sender).await;
            // If the receiver is gone, the command is ending.
            let _ = sender.send((proxy, ended.err().map_or(Line::Ended, Line::Failed))).await;
        });
    }
    drop(sender);
    for proxy in &args.proxies {
        note_uncalled(*proxy, &args.service).await;
    }
    let (mut shown, mut gone) = (0, None);
    while let Some((proxy, line)) = lines.recv().await {
        match line {
            Line::Failed(failure) => gone = Some(failure),
            Line::Ended => gone = Some(Failure::failed(format!("the proxy at {proxy} has ended"))),
            Line::Request(request) => {
                if let Some(shed) = request["shed"].as_u64() {
                    output::warn(format!(
                        "{shed} requests were not shown: they came faster than this command reads; use --one-in, or another filter"
                    ));
                    continue;
                }
                if !print(request, proxy, &args)? {
                    break;
                }
                shown += 1;
                if args.limit.is_some_and(|limit| shown >= limit) {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
    gone.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// A message from a proxy.
pub(super) enum Line {
    Request(Value),
    Ended,
    Failed(Failure),
}

/// Prints a note with the reason if there are no requests to print. Otherwise a tap of a misspelt name would wait in
/// silence.
async fn note_uncalled(proxy: SocketAddr, service: &ServiceName) {
    // The tap itself reports a proxy that does not respond.
    let Ok(page) = admin_page::page(proxy, "/services").await else { return };
    let rows = page.as_array().map(Vec::as_slice).unwrap_or_default();
    if let Some(note) = uncalled(rows, &service.to_string()) {
        output::note(format!("the proxy at {proxy}: {note}"));
    }
}

/// Explains why a proxy with these services has no requests for this service.
fn uncalled(rows: &[Value], service: &str) -> Option<String> {
    if let Some(row) = rows.iter().find(|row| row["service"] == json!(service)) {
        let unknown = row["state"] == json!("unknown");
        return unknown.then(|| format!("{service} is not declared: see 'fairmesh get services'"));
    }
    let sends = |row: &&Value| row["backends"].as_array().is_some_and(|all| all.contains(&json!(service)));
    let routed: Vec<_> = rows.iter().filter(sends).filter_map(|row| row["service"].as_str()).collect();
    Some(match routed.first() {
        Some(first) => format!(
            "{service} gets its calls by routes of {}: requests are of the service that was called, so \
             that 'fairmesh tap {first}' prints them with their backend",
            routed.join(", ")
        ),
        None => format!(
            "{service} was not called through it yet: its requests are printed once it is; 'fairmesh get services' \
             lists the services that there are"
        ),
    })
}

fn query(args: &TapArgs) -> String {
    let slower = args.slower_than.map(|least| (least.as_secs_f64() * 1e3).to_string());
    let given = [
        ("path", args.path.clone()),
        ("method", args.method.clone()),
        ("status", args.status.clone()),
        ("minMs", slower),
        ("failed", args.failed.then(|| "true".to_owned())),
    ];
    let mut query = query_of(&args.service, args.one_in);
    for (name, value) in given {
        if let Some(value) = value {
            query += &format!("&{name}={}", encode(&value));
        }
    }
    query
}

/// Path and query of the page with one of `one_in` requests of a service.
pub(super) fn query_of(service: &ServiceName, one_in: u64) -> String {
    format!("/tap?service={}&oneIn={one_in}", encode(&service.to_string()))
}

/// Percent-encodes a query value.
fn encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Sends the requests of a proxy that match the query, until the proxy or the receiver is gone.
pub(super) async fn read(
    proxy: SocketAddr,
    query: &str,
    lines: &mpsc::Sender<(SocketAddr, Line)>,
) -> Result<(), Failure> {
    let mut body = admin_page::open(proxy, query).await?;
    let mut pending = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Failure::failed(format!("the proxy at {proxy} has ended: {error}")))?;
        pending.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let request = serde_json::from_slice(&line).map_err(Failure::failed)?;
            if lines.send((proxy, Line::Request(request))).await.is_err() {
                return Ok(());
            }
        }
        if pending.len() > MAX_LINE_BYTES {
            return Err(Failure::failed(format!("the proxy at {proxy} sent a line without an end")));
        }
    }
    Ok(())
}

/// Prints a request; returns whether the reader still reads.
fn print(mut request: Value, proxy: SocketAddr, args: &TapArgs) -> Result<bool, Failure> {
    if args.proxies.len() > 1 {
        request["proxy"] = json!(proxy.to_string());
    }
    let text = match args.output_args.format() {
        Format::Table => text(&request),
        Format::Json => format!("{request}\n"),
        Format::Yaml => format!("---\n{}", output::yaml(&request)?),
    };
    output::write_while_open(text.as_bytes())
}

/// The request as one line of text.
fn text(request: &Value) -> String {
    let word = |name: &str| match &request[name] {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let time = match request["time"].as_f64() {
        Some(seconds) => jiff::Timestamp::from_millisecond((seconds * 1e3) as i64)
            .map_or_else(|_| word("time"), |time| format!("{time:.3}")),
        None => word("time"),
    };
    let mut line = format!(
        "{time}  {:<6} {:?} {}  {:.1} ms  {} in {}  from {}",
        word("method"),
        word("path"),
        word("status"),
        request["totalMs"].as_f64().unwrap_or_default(),
        word("instance"),
        word("region"),
        word("caller"),
    );
    let further = ["route", "backend", "fault", "injected", "ended", "grpcStatus", "proxy"];
    for name in further.iter().filter(|name| !request[**name].is_null()) {
        line += &format!("  {name} {}", word(name));
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tap_query_values_are_percent_encoded() {
        assert_eq!(encode("shop/web"), "shop%2Fweb");
        assert_eq!(encode("/a b&c=é"), "%2Fa%20b%26c%3D%C3%A9");
    }

    #[test]
    fn tap_line_shows_injected_fault() {
        let request = json!({ "status": 503, "fault": null, "injected": "abort", "route": "checkout" });
        assert!(text(&request).ends_with("  route checkout  injected abort\n"), "{}", text(&request));
    }

    #[test]
    fn tap_note_on_missing_calls_distinguishes_idle_services_from_backends() {
        let rows = [
            json!({ "service": "shop/web", "state": "ready", "backends": ["shop/next"] }),
            json!({ "service": "shop/old", "state": "unknown" }),
        ];
        assert_eq!(uncalled(&rows, "shop/web"), None);
        assert!(uncalled(&rows, "shop/next").unwrap().contains("'fairmesh tap shop/web'"));
        assert!(uncalled(&rows, "shop/old").unwrap().contains("not declared"));
        assert!(uncalled(&rows, "shop/none").unwrap().contains("was not called"));
    }

    #[test]
    fn tap_status_filter_is_number_or_class() {
        assert!(["404", "5xx"].iter().all(|text| status(text).is_ok()));
        assert!(["99", "6xx", "abc", ""].iter().all(|text| status(text).is_err()));
    }
}
