//! `fairmesh proxy status`: the admin pages of a running proxy, as tables.

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;
use fairmesh_console::{arguments::OutputArgs, failure::Failure, output};
use serde_json::{Value, json};

use super::admin_page::{AdminArgs, page};

/// Arguments of `fairmesh proxy status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(super) async fn run(args: StatusArgs) -> Result<ExitCode, Failure> {
    let config = page(args.admin.address, "/config?json").await?;
    let last = page(args.admin.address, "/last?json").await?;
    let text = text(&config, &last);
    let mut whole = config;
    whole["last"] = last;
    output::print_one(args.output_args.format(), &whole, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Succeeds if the proxy is ready for requests.
pub async fn ready(admin: SocketAddr) -> Result<(), Failure> {
    let config = page(admin, "/config?json").await?;
    if config["ready"] == json!(true) {
        return Ok(());
    }
    Err(Failure::failed_with(
        format!("the proxy at {admin} is not ready: {}", config["ready"]),
        format!(
            "see http://{admin}/readyz; a proxy is ready once it has records, from its agent or control plane"
        ),
    ))
}

/// Text of the proxy's configuration, its services, and the target of each service's last request.
fn text(config: &Value, last: &Value) -> String {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let routing = &config["routing"];
    let connected = if routing["connected"] == json!(true) { "connected" } else { "not connected" };
    let mut rows = vec![
        vec!["version".into(), word(&config["version"])],
        vec!["process".into(), format!("{}, since {}", config["pid"], word(&config["started"]))],
        vec!["ready".into(), word(&config["ready"])],
        vec!["routing".into(), format!("{} ({connected})", word(&routing["from"]))],
        vec![
            "revision".into(),
            routing["revision"].as_u64().map_or_else(no_revision, |number| number.to_string()),
        ],
        vec!["data age".into(), format!("{:.1} s", routing["dataAgeSeconds"].as_f64().unwrap_or(0.0))],
        vec!["region".into(), word(&routing["region"])],
        vec!["identity".into(), identity(routing, &word)],
    ];
    let each = |value: &Value| value.as_array().cloned().unwrap_or_default();
    rows.extend(each(&config["keyServers"]).iter().filter_map(key_server));
    rows.extend(each(&config["listen"]).iter().map(|listen| vec!["listen".into(), word(listen)]));
    let options = config["options"].as_object().into_iter().flatten();
    rows.extend(options.map(|(name, value)| vec![name.clone(), word(value)]));
    let mut text = output::table(&["PROXY", ""], &rows);
    let services: Vec<_> = each(&config["services"]).iter().map(|row| service(row, &word)).collect();
    if !services.is_empty() {
        let head = [
            "SERVICE",
            "STATE",
            "REVISION",
            "ENDPOINTS",
            "UNDER WAY",
            "2XX",
            "4XX",
            "5XX",
            "FAULTS",
            "MEAN",
            "REGIONS",
        ];
        text += &format!("\n{}", output::table(&head, &services));
    }
    let last: Vec<_> = each(last).iter().map(|record| request(record, &word)).collect();
    if !last.is_empty() {
        let head = ["LAST REQUEST OF", "REQUEST", "STATUS", "TOOK", "WENT TO"];
        text += &format!("\n{}", output::table(&head, &last));
    }
    text
}

/// Why a proxy has no revision. One with '--listen none' never has.
fn no_revision() -> String {
    "none: no service was called through it yet".to_owned()
}

/// The identity of the proxy, or why it has none where it needs one.
fn identity(routing: &Value, word: &dyn Fn(&Value) -> String) -> String {
    match routing["identityProblem"].as_str() {
        Some(problem) => format!("none: {problem}"),
        None => word(&routing["identity"]),
    }
}

/// A key server of the listeners' certificate.
fn key_server(status: &Value) -> Option<Vec<String>> {
    let key = status["key"].as_str()?;
    let state = match status["problem"].as_str() {
        None => "signs".to_owned(),
        Some(problem) => format!("does not sign: {problem}"),
    };
    Some(vec!["key server".into(), format!("{key}: {state}")])
}

fn service(row: &Value, word: &dyn Fn(&Value) -> String) -> Vec<String> {
    let answers = &row["responses"];
    let mean = row["meanMs"].as_f64().map_or_else(|| "-".into(), |mean| format!("{mean:.2} ms"));
    let regions = row["regions"].as_array().cloned().unwrap_or_default();
    let regions = regions.iter().map(|region| {
        let answers: u64 = region[1].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
        format!("{} {answers}", word(&region[0]))
    });
    vec![
        word(&row["service"]),
        word(&row["state"]),
        word(&row["revision"]),
        format!("{} ({} near)", row["endpoints"], row["nearest"]),
        word(&row["inFlight"]),
        word(&answers[1]),
        word(&answers[3]),
        word(&answers[4]),
        word(&row["faults"]),
        mean,
        regions.collect::<Vec<_>>().join(", "),
    ]
}

fn request(record: &Value, word: &dyn Fn(&Value) -> String) -> Vec<String> {
    let tries = record["attempts"].as_array().cloned().unwrap_or_default();
    let went = tries.iter().map(|tried| {
        format!("{} in {} ({})", word(&tried["instance"]), word(&tried["region"]), word(&tried["outcome"]))
    });
    let went = went.collect::<Vec<_>>().join(", ");
    vec![
        word(&record["service"]),
        // Escaped, since a path may contain anything.
        format!("{} {:?}", word(&record["method"]), word(&record["path"])),
        word(&record["status"]),
        format!("{:.2} ms", record["ms"].as_f64().unwrap_or(0.0)),
        if went.is_empty() { word(&record["fault"]) } else { went },
    ]
}
