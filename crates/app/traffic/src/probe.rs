//! `fairmesh probe`: the network between zones, as the probes of agents see it.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::Listing,
};
use fairmesh_model::Region;
use fairmesh_wire::v1::{ProbedPair, ProbedProtocol, ReadProbesRequest, ReadProbesResponse};
use serde_json::{Value, json};

const HEAD: [&str; 9] = ["FROM", "TO", "VERDICT", "AGE", "TCP", "HTTP/1.1", "HTTP/2", "GRPC", "WEBSOCKET"];
const NONE: &str = "no agents probe each other: start them with --zone-probes IP:PORT, at least one in each of two zones; \
                    after a control plane has started, results take a few seconds";

/// Arguments of `fairmesh probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Only pairs from or to this region [default: all].
    region: Option<Region>,
    /// Only pairs that are not passing.
    #[arg(long)]
    failing: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Prints the probe results that the control plane has.
pub async fn run(args: ProbeArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let response = connection.admin().read_probes(ReadProbesRequest {}).await?.into_inner();
    listing(&response, &args).print(args.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}

fn listing(response: &ReadProbesResponse, args: &ProbeArgs) -> Listing {
    let mut listing = Listing::new(&HEAD);
    if response.pairs.is_empty() {
        listing.why_empty = Some(NONE.to_owned());
    }
    let is_of = |pair: &&ProbedPair| {
        let region = args.region.as_ref().map(Region::as_str);
        region.is_none_or(|region| pair.from_region == region || pair.to_region == region)
            && !(args.failing && pair.verdict == "passing")
    };
    for pair in response.pairs.iter().filter(is_of) {
        listing.add(row(pair), item(pair));
    }
    listing
}

fn row(pair: &ProbedPair) -> Vec<String> {
    let place = |region: &str, zone: &str| match zone {
        "" => region.to_owned(),
        zone => format!("{region}/{zone}"),
    };
    let verdict = match pair.fault.as_str() {
        "" => pair.verdict.clone(),
        fault => format!("{} ({fault})", pair.verdict),
    };
    let mut row = vec![
        place(&pair.from_region, &pair.from_zone),
        place(&pair.to_region, &pair.to_zone),
        verdict,
        format!("{:.1}s", pair.age_ms as f64 / 1e3),
    ];
    row.extend(pair.protocols.iter().map(cell));
    row.resize(HEAD.len(), "-".to_owned());
    row
}

/// Formats a cell of the table: the time of successful probes or, if any probe failed, the number of failed ones
/// among all.
fn cell(protocol: &ProbedProtocol) -> String {
    let ProbedProtocol { passed, failed, took_us, .. } = *protocol;
    match (failed, took_us) {
        (0, Some(took_us)) => format!("{:.1}ms", took_us as f64 / 1e3),
        (0, None) => "-".to_owned(),
        (failed, _) => format!("{failed} of {} failed", passed + failed),
    }
}

fn item(pair: &ProbedPair) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let protocols = pair.protocols.iter().map(|one| {
        let view = json!({ "passed": one.passed, "failed": one.failed, "tookUs": one.took_us });
        (one.protocol.clone(), view)
    });
    json!({
        "from": { "region": pair.from_region, "zone": text(&pair.from_zone) },
        "to": { "region": pair.to_region, "zone": text(&pair.to_zone) },
        "verdict": pair.verdict,
        "fault": text(&pair.fault),
        "ageMs": pair.age_ms,
        "protocols": protocols.collect::<serde_json::Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_probe_row_shows_verdict_age_and_protocols() {
        let protocol =
            |passed, failed, took_us| ProbedProtocol { protocol: "tcp".into(), passed, failed, took_us };
        let pair = ProbedPair {
            from_region: "eu".into(),
            from_zone: "a".into(),
            to_region: "us".into(),
            verdict: "degraded".into(),
            fault: "http2".into(),
            age_ms: 2_340,
            protocols: vec![protocol(3, 0, Some(12_340)), protocol(1, 2, Some(9)), protocol(0, 0, None)],
            ..ProbedPair::default()
        };
        let row = row(&pair);
        assert_eq!(row[..4], ["eu/a", "us", "degraded (http2)", "2.3s"]);
        assert_eq!(row[4..], ["12.3ms", "2 of 3 failed", "-", "-", "-"]);
        let item = item(&pair);
        assert_eq!((&item["ageMs"], &item["to"]["zone"]), (&2_340.into(), &Value::Null));
    }
}
