//! `fairmesh traffic what-if`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read as _,
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, decimal},
};
use fairmesh_model::{Record, RecordKey, Region, spec::Resource};
use fairmesh_registry::manifest;
use fairmesh_wire::{
    record_encoding,
    v1::{
        self, DemandFactor, ExpectedCalls, Op, PredictedService, Prediction, WhatIfRequest, WhatIfResponse,
    },
};
use serde_json::{Value, json};

use super::status::class;

/// Arguments of `fairmesh traffic what-if`.
#[derive(Debug, Args)]
pub struct WhatIfArgs {
    /// A file with policies and a topology, as 'apply' reads it, or - for standard input.
    #[arg(short = 'f', long = "file", value_name = "PATH")]
    file: Option<PathBuf>,
    /// Multiply the calls of clients in a region, or in all regions, such as eu=3 or 1.5; may be repeated.
    #[arg(long, value_name = "[REGION=]FACTOR", value_parser = demand)]
    demand: Vec<Demand>,
    /// Take the servers of a region away; may be repeated.
    #[arg(long, value_name = "REGION")]
    lose: Vec<Region>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A factor for the calls of one region, or of all.
#[derive(Clone, Debug)]
struct Demand(Option<Region>, f64);

fn demand(text: &str) -> Result<Demand, String> {
    let (region, factor) = match text.split_once('=') {
        Some((region, factor)) => (Some(region.parse().map_err(|e| format!("{e}"))?), factor),
        None => (None, text),
    };
    match factor.parse() {
        Ok(0.0) if region.is_none() => Err(
            "no call would be left; write a factor above 0, or the region whose clients stop, such as eu=0"
                .into(),
        ),
        Ok(factor) if (0.0..=1_000.0).contains(&factor) => Ok(Demand(region, factor)),
        _ => Err(format!("'{factor}' is no factor; write a number from 0 to 1000, such as eu=3")),
    }
}

/// Predicts the effect of the change. Exits 1 if a service is not predicted.
pub(super) async fn what_if(args: WhatIfArgs) -> Result<ExitCode, Failure> {
    if args.file.is_none() && args.demand.is_empty() && args.lose.is_empty() {
        return Err(Failure::refused("nothing would change", "name a file, --demand or --lose"));
    }
    let factor = |Demand(region, factor): &Demand| DemandFactor {
        region: region.as_ref().map(ToString::to_string).unwrap_or_default(),
        factor: *factor,
    };
    let request = WhatIfRequest {
        records: args.file.as_ref().map(read).transpose()?.unwrap_or_default(),
        demand: args.demand.iter().map(factor).collect(),
        lost_regions: args.lose.iter().map(ToString::to_string).collect(),
    };
    let connection = connect::connect(&args.target).await?;
    let response = connection.traffic_planner().what_if(request).await?.into_inner();
    let WhatIfResponse { now, then } = response;
    let (now, then) = (now.unwrap_or_default(), then.unwrap_or_default());
    let unpredicted = unpredicted(&now, &then);
    for note in &unpredicted {
        output::note(note);
    }
    let document = json!({ "now": value(&now), "then": value(&then) });
    output::print_one(args.output.format(), &document, &text(&now, &then))?;
    Ok(ExitCode::from(u8::from(!unpredicted.is_empty())))
}

/// The services without a prediction, each with the reason: those of the change, and those whose present alone is unknown.
fn unpredicted(now: &Prediction, then: &Prediction) -> Vec<String> {
    let lacking = |of: &Prediction| -> BTreeMap<String, String> {
        let services = of.services.iter().filter(|service| !service.why_not.is_empty());
        services.map(|service| (service.service.clone(), service.why_not.clone())).collect()
    };
    let (now, then) = (lacking(now), lacking(then));
    let changed = then.iter().map(|(service, why)| format!("{service} is not predicted: {why}"));
    let present = now.iter().filter(|(service, _)| !then.contains_key(*service));
    let present =
        present.map(|(service, why)| format!("{service} is predicted without its present state: {why}"));
    changed.chain(present).collect()
}

/// Reads the records of a file.
fn read(path: &PathBuf) -> Result<Vec<Op>, Failure> {
    let is_input = path.as_os_str() == "-";
    let mut text = String::new();
    let read = match is_input {
        true => std::io::stdin().read_to_string(&mut text).map(drop),
        false => fs::read_to_string(path).map(|read| text = read),
    };
    let name = if is_input { "standard input".to_owned() } else { path.display().to_string() };
    read.map_err(|error| {
        Failure::refused(format!("cannot read {name}: {error}"), "check the path and its permissions")
    })?;
    let documents = manifest::parse(&name, &text).map_err(|error| {
        let place = format!("{}:{}:{}", error.file, error.line, error.column);
        Failure::refused(format!("{place}: {}", error.message), error.hint)
    })?;
    let mut ops = Vec::new();
    for document in documents {
        match &document.resource {
            resource @ (Resource::Policy(..) | Resource::Topology(..)) => {
                let op = |(key, record)| op(&key, &record);
                ops.extend(resource.records().into_iter().map(op));
            }
            other => {
                let (kind, _) = other.kind_and_name();
                let problem = format!("{name}:{}: kind {kind} is not predicted", document.line);
                return Err(Failure::refused(problem, "write documents of kind Policy and Topology"));
            }
        }
    }
    Ok(ops)
}

fn op(key: &RecordKey, record: &Record) -> Op {
    Op { key: key.to_string(), value: Some(record_encoding::encode(record)), condition: None }
}

/// Current and predicted state, side by side.
fn text(now: &Prediction, then: &Prediction) -> String {
    let ms = |one: &Prediction| {
        format!("{} ms ± {}", decimal(one.latency_ms, 1), decimal(one.latency_error_ms, 1))
    };
    let dollars = |one: &Prediction| format!("${}/h", decimal(one.egress, 2));
    let shed = |one: &Prediction| percent(one.shed);
    let head = ["", "NOW", "THEN"];
    let sums = [
        vec!["latency of a client's call".to_owned(), ms(now), ms(then)],
        vec!["egress".to_owned(), dollars(now), dollars(then)],
        vec!["calls shed".to_owned(), shed(now), shed(then)],
    ];
    let columns =
        ["SERVICE", "REGION", "CLASS", "LOAD", "THEN", "CALLS/S", "THEN", "TIME", "THEN", "EGRESS/H", "THEN"];
    format!("{}\n{}", output::table(&head, &sums), output::table(&columns, &rows(now, then)))
}

/// State of a service in a region: the load of its servers, and the calls of one class from the region.
#[derive(Clone, Copy, Debug, Default)]
struct Cell<'a> {
    load: Option<f64>,
    calls: Option<&'a ExpectedCalls>,
}

/// Returns the cells by service, region and class.
fn cells(prediction: &Prediction) -> BTreeMap<(&str, &str, &str), Cell<'_>> {
    let mut cells = BTreeMap::<_, Cell<'_>>::new();
    for PredictedService { service, loads, expected, .. } in &prediction.services {
        for v1::PredictedLoad { region, load } in loads {
            cells.entry((service.as_str(), region.as_str(), "")).or_default().load = Some(*load);
        }
        for calls in expected {
            let key = (service.as_str(), calls.from.as_str(), calls.class.as_str());
            cells.entry(key).or_default().calls = Some(calls);
        }
    }
    cells
}

fn rows(now: &Prediction, then: &Prediction) -> Vec<Vec<String>> {
    let (now, then) = (cells(now), cells(then));
    let keys: BTreeSet<_> = now.keys().chain(then.keys()).copied().collect();
    let row = |key: (&str, &str, &str)| {
        let cell = |of: &BTreeMap<_, Cell<'_>>| {
            of.get(&key).copied().map(shown).unwrap_or_else(|| shown(Cell::default()))
        };
        let (service, region, name) = key;
        let pairs = cell(&now).into_iter().zip(cell(&then)).flat_map(|(now, then)| [now, then]);
        [service.to_owned(), region.to_owned(), class(name)].into_iter().chain(pairs).collect()
    };
    keys.into_iter().map(row).collect()
}

/// Load, calls, time and egress as text.
fn shown(cell: Cell<'_>) -> [String; 4] {
    let none = || "-".to_owned();
    let of = |show: &dyn Fn(&ExpectedCalls) -> String| cell.calls.map_or_else(none, show);
    [
        cell.load.map_or_else(none, percent),
        of(&|calls| decimal(calls.calls_per_second, 1)),
        of(&|calls| format!("{} ms", decimal(calls.latency_ms, 1))),
        of(&|calls| format!("${}", decimal(calls.egress, 2))),
    ]
}

fn percent(part: f64) -> String {
    format!("{} %", decimal(part * 100.0, 1))
}

fn value(prediction: &Prediction) -> Value {
    let service = |one: &PredictedService| {
        let loads = one.loads.iter().map(|one| json!({ "region": one.region, "load": one.load }));
        let calls = one.expected.iter().map(|calls| {
            json!({
                "from": calls.from, "class": (!calls.class.is_empty()).then_some(&calls.class),
                "callsPerSecond": calls.calls_per_second, "latencyMs": calls.latency_ms,
                "egressDollarsPerHour": calls.egress,
            })
        });
        json!({
            "service": one.service, "loads": loads.collect::<Vec<_>>(), "calls": calls.collect::<Vec<_>>(),
            "modelError": one.model_error, "whyNot": (!one.why_not.is_empty()).then_some(&one.why_not),
        })
    };
    json!({
        "latencyMs": prediction.latency_ms, "latencyErrorMs": prediction.latency_error_ms,
        "egressDollarsPerHour": prediction.egress, "shed": prediction.shed, "gap": prediction.gap,
        "services": prediction.services.iter().map(service).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_if_demand_factor_applies_to_region_or_all_regions() {
        let Demand(region, factor) = demand("eu=3").unwrap();
        assert_eq!((region.unwrap().as_str(), factor), ("eu", 3.0));
        assert!(matches!(demand("1.5"), Ok(Demand(None, factor)) if factor == 1.5));
        assert!(matches!(demand("eu=0"), Ok(Demand(Some(_), 0.0))));
        for wrong in ["eu=", "eu=x", "-1", "nan", "=2", "2000", "0"] {
            assert!(demand(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_if_lists_each_service_without_prediction_once() {
        let prediction = |whys: &[(&str, &str)]| Prediction {
            services: whys
                .iter()
                .map(|(service, why)| PredictedService {
                    service: (*service).into(),
                    why_not: (*why).into(),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let now = prediction(&[("shop/a", "no calls"), ("shop/b", "no fit"), ("shop/c", "")]);
        let then = prediction(&[("shop/a", "no calls"), ("shop/b", ""), ("shop/c", "")]);
        let listed = unpredicted(&now, &then);
        assert_eq!(
            listed,
            ["shop/a is not predicted: no calls", "shop/b is predicted without its present state: no fit"]
        );
    }

    #[test]
    fn what_if_shows_predicted_values_beside_current_ones() {
        let prediction = |load, calls_per_second| Prediction {
            services: vec![PredictedService {
                service: "shop/cart".into(),
                loads: vec![v1::PredictedLoad { region: "eu".into(), load }],
                expected: vec![ExpectedCalls { from: "eu".into(), calls_per_second, ..Default::default() }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let rows = rows(&prediction(0.3, 60.0), &prediction(0.75, 180.0));
        assert_eq!(rows[0].join(" "), "shop/cart eu - 30.0 % 75.0 % 60.0 180.0 0.0 ms 0.0 ms $0.00 $0.00");
    }
}
