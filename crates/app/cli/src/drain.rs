//! `fairmesh drain` and `fairmesh undrain`: instances, or a whole region.

mod region;

use std::{process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{
    Endpoint, EndpointState, InstanceId, Invalid, Prefix, RecordKind, Region, ServiceName,
    spec::{read_duration, write_duration},
};
use fairmesh_views::lost_words;
use fairmesh_wire::{
    handshake::Connection,
    v1::{DrainRequest, InstanceRef, ReportRequest, StateReport, endpoint::State},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::lagging_callers;

/// Interval at which the callers that are still awaited are printed, if they have changed.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Exit code if some callers have not moved.
const EXIT_CALLERS_REMAIN: u8 = 4;

/// Arguments of `fairmesh drain`.
#[derive(Debug, Args)]
#[command(
    override_usage = "fairmesh drain [OPTIONS] SERVICE INSTANCE…\n       fairmesh drain [OPTIONS] --region REGION [--over DURATION]"
)]
pub struct DrainArgs {
    /// The service, as tenant/service; or an endpoint, as tenant/service/instance, which 'get endpoints -o name' prints.
    #[arg(required_unless_present = "region")]
    service: Option<EndpointName>,
    /// The instances to drain.
    instances: Vec<EndpointName>,
    /// A whole region: services that the planner of region tables plans for leave it step by step.
    #[arg(long, conflicts_with_all = ["service", "instances", "deadline"])]
    region: Option<Region>,
    /// Length of the region drain if nothing holds it, at most 24h; with 0s, each step follows as soon as the last has
    /// taken effect. Default: 10m, or the length of a drain in progress.
    #[arg(long, requires = "region", value_parser = read_over, value_name = "DURATION")]
    over: Option<Duration>,
    /// Do not ask whether to drain the region.
    #[arg(long, requires = "region")]
    yes: bool,
    /// Only print what a drain of the region would lead to.
    #[arg(long, requires = "region")]
    dry_run: bool,
    /// Do not wait until the region is drained; the drain goes on.
    #[arg(long, requires = "region")]
    detach: bool,
    /// How long to wait for callers to move, such as 30s.
    #[arg(long, default_value = "30s", value_parser = read_deadline, value_name = "DURATION")]
    deadline: Duration,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Arguments of `fairmesh undrain`.
#[derive(Debug, Args)]
#[command(
    override_usage = "fairmesh undrain [OPTIONS] SERVICE INSTANCE…\n       fairmesh undrain [OPTIONS] --region REGION [--over DURATION]"
)]
pub struct UndrainArgs {
    /// The service, as tenant/service; or an endpoint, as tenant/service/instance.
    #[arg(required_unless_present = "region")]
    service: Option<EndpointName>,
    /// The instances to put back.
    instances: Vec<EndpointName>,
    /// A whole region that is drained, or being drained.
    #[arg(long, conflicts_with_all = ["service", "instances"])]
    region: Option<Region>,
    /// Time until the region has its calls back, at most 24h. Default: 10m, or the length of a return in progress.
    #[arg(long, requires = "region", value_parser = read_over, value_name = "DURATION")]
    over: Option<Duration>,
    /// Do not wait until the region has its calls back; it goes on.
    #[arg(long, requires = "region")]
    detach: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// A service, an instance, or both, such as `shop/cart/cart-0`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EndpointName {
    service: Option<ServiceName>,
    instance: Option<InstanceId>,
}

impl FromStr for EndpointName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (service, instance) = match text.matches('/').count() {
            0 => (None, Some(text)),
            1 => (Some(text), None),
            _ => text
                .rsplit_once('/')
                .map_or((None, None), |(service, instance)| (Some(service), Some(instance))),
        };
        Ok(Self {
            service: service.map(str::parse).transpose()?,
            instance: instance.map(str::parse).transpose()?,
        })
    }
}

/// Returns the instances that the arguments name, which must be of one service.
fn named(first: &EndpointName, further: &[EndpointName]) -> Result<(ServiceName, Vec<InstanceId>), Failure> {
    const HINT: &str =
        "write tenant/service and its instances, such as 'shop/cart cart-0', or 'shop/cart/cart-0'";
    let Some(service) = &first.service else {
        return Err(Failure::refused("the service is missing", HINT));
    };
    let mut instances: Vec<InstanceId> = first.instance.iter().cloned().collect();
    for one in further {
        let is_of_it = one.service.as_ref().is_none_or(|other| other == service);
        match one.instance.clone().filter(|_| is_of_it) {
            Some(instance) => instances.push(instance),
            None => {
                let message = format!("the instances of one command are of one service, here {service}");
                return Err(Failure::refused(message, HINT));
            }
        }
    }
    if instances.is_empty() {
        return Err(Failure::refused(format!("no instance of {service} is given"), HINT));
    }
    Ok((service.clone(), instances))
}

/// Parses a duration from a millisecond to an hour, the longest wait of the registry.
fn read_deadline(text: &str) -> Result<Duration, Invalid> {
    let deadline = read_duration(text)?;
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&deadline) {
        return Ok(deadline);
    }
    Err(Invalid::new("deadline", format!("'{text}' is out of range"), "write 1ms to 1h"))
}

/// Parses the duration of a region's drain.
fn read_over(text: &str) -> Result<Duration, Invalid> {
    let over = if text == "0s" { Duration::ZERO } else { read_duration(text)? };
    match over <= Duration::from_secs(24 * 3600) {
        true => Ok(over),
        false => Err(Invalid::new("over", format!("'{text}' is longer than a day"), "write 0s to 24h")),
    }
}

/// Drains; the instances continue to run, and complete calls in flight.
pub async fn run(args: DrainArgs) -> Result<ExitCode, Failure> {
    if let Some(region) = &args.region {
        return region::run(region::RegionArgs {
            region,
            undrain: false,
            over: args.over,
            yes: args.yes,
            dry_run: args.dry_run,
            detach: args.detach,
            target: &args.target,
            output: &args.output_args,
        })
        .await;
    }
    // clap requires a service or a region.
    let Some(first) = &args.service else { return Ok(ExitCode::SUCCESS) };
    let (service, instances) = named(first, &args.instances)?;
    drain_instances(&args, &service, &instances).await
}

async fn drain_instances(
    args: &DrainArgs,
    service: &ServiceName,
    instances: &[InstanceId],
) -> Result<ExitCode, Failure> {
    let connection = connect::connect_as_operator(&args.target).await?;
    let instances = &without_lost(&connection, service, instances).await?;
    let request = DrainRequest {
        instances: instances.iter().map(|instance| instance_ref(service, instance)).collect(),
        // At most an hour, which fits.
        deadline_ms: u32::try_from(args.deadline.as_millis()).unwrap_or(u32::MAX),
        by_operator: true,
    };
    let waiting = tokio::spawn(report_waiting(connection.clone(), service.clone(), args.deadline));
    let answer = connection.registry().drain(request).await;
    waiting.abort();
    let answer = answer?.into_inner();
    let last = !serving(&connection, service).await?;
    let text = match (answer.callers_moved, last) {
        (true, false) => "drained: every caller has moved\n".to_owned(),
        (true, true) => {
            "draining: every caller is informed, and has no other endpoint to move to\n".to_owned()
        }
        (false, _) => {
            format!("draining, but these callers had not moved in time: {}\n", answer.behind.join(", "))
        }
    };
    if last {
        output::note(format!(
            "no other endpoint of {service} is serving: callers continue to use these as a last resort"
        ));
    }
    let item = json!({
        "revision": answer.revision.map(|revision| revision.number),
        "callersMoved": answer.callers_moved,
        "behind": answer.behind,
        "lastResort": last,
    });
    output::print_one(args.output_args.format(), &item, &text)?;
    Ok(if answer.callers_moved { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CALLERS_REMAIN) })
}

/// Prints the callers that a long drain waits for, to standard error.
async fn report_waiting(connection: Connection, service: ServiceName, deadline: Duration) {
    let end = Instant::now() + deadline;
    let mut told = Vec::new();
    loop {
        sleep(REPORT_INTERVAL).await;
        // The drain call itself reports the error.
        let Ok(callers) = lagging_callers::behind(&connection, &Prefix::endpoints(&service, None)).await
        else {
            return;
        };
        let left =
            write_duration(Duration::from_secs(end.saturating_duration_since(Instant::now()).as_secs()));
        if callers != told && !callers.is_empty() {
            output::note(format!("waiting for {} to move, up to {left} more", callers.join(", ")));
        }
        told = callers;
    }
}

/// Puts drained instances that still run back into service.
pub async fn undrain(args: UndrainArgs) -> Result<ExitCode, Failure> {
    if let Some(region) = &args.region {
        return region::run(region::RegionArgs {
            region,
            undrain: true,
            over: args.over,
            yes: true,
            dry_run: false,
            detach: args.detach,
            target: &args.target,
            output: &args.output_args,
        })
        .await;
    }
    // clap requires a service or a region.
    let Some(first) = &args.service else { return Ok(ExitCode::SUCCESS) };
    let (service, instances) = named(first, &args.instances)?;
    let connection = connect::connect_as_operator(&args.target).await?;
    refuse_lost(&connection, &service, &instances).await?;
    let report = |instance: &InstanceId| StateReport {
        instance: Some(instance_ref(&service, instance)),
        state: State::Serving.into(),
    };
    let request = ReportRequest { reports: instances.iter().map(report).collect(), by_operator: true };
    let answer = connection.registry().report(request).await?.into_inner();
    let item = json!({ "revision": answer.revision.map(|revision| revision.number) });
    output::print_one(args.output_args.format(), &item, "serving again\n")?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to undrain lost instances, because callers would call them although nothing responds there.
async fn refuse_lost(
    connection: &Connection,
    service: &ServiceName,
    instances: &[InstanceId],
) -> Result<(), Failure> {
    let lost = lost_of(connection, service, instances).await?;
    lost.first().map_or(Ok(()), |endpoint| Err(is_lost(service, endpoint)))
}

/// Returns the instances that can be drained. Lost instances are skipped: they get no calls, and other instances must
/// not wait until they are removed. Fails if all are lost.
async fn without_lost(
    connection: &Connection,
    service: &ServiceName,
    instances: &[InstanceId],
) -> Result<Vec<InstanceId>, Failure> {
    let lost = lost_of(connection, service, instances).await?;
    let is_left = |instance: &&InstanceId| lost.iter().all(|endpoint| endpoint.instance != **instance);
    let left: Vec<InstanceId> = instances.iter().filter(is_left).cloned().collect();
    match lost.first() {
        Some(endpoint) if left.is_empty() => return Err(is_lost(service, endpoint)),
        _ => {}
    }
    for endpoint in &lost {
        output::warn(format!("{} is {}, and is left as it is", endpoint.instance, lost_words(endpoint)));
    }
    Ok(left)
}

/// Returns those of the instances that are lost.
async fn lost_of(
    connection: &Connection,
    service: &ServiceName,
    instances: &[InstanceId],
) -> Result<Vec<Endpoint>, Failure> {
    let view = View::read(connection, &Scope::Service(service.clone()), &[RecordKind::Endpoint]).await?;
    let endpoints = view.services.get(service).into_iter().flat_map(|of| &of.endpoints);
    let is_lost = |one: &&Endpoint| one.state == EndpointState::Lost && instances.contains(&one.instance);
    Ok(endpoints.map(|endpoint| &endpoint.value).filter(is_lost).cloned().collect())
}

fn is_lost(service: &ServiceName, endpoint: &Endpoint) -> Failure {
    let instance = &endpoint.instance;
    Failure::failed_with(
        format!("{instance} is {}", lost_words(endpoint)),
        format!(
            "start its server again, which brings it back, or remove it with 'fairmesh delete endpoint {service} {instance}'"
        ),
    )
}

fn instance_ref(service: &ServiceName, instance: &InstanceId) -> InstanceRef {
    InstanceRef { service: service.to_string(), instance: instance.to_string(), incarnation: 0 }
}

/// Whether any endpoint of the service is serving.
async fn serving(connection: &Connection, service: &ServiceName) -> Result<bool, Failure> {
    let view = View::read(connection, &Scope::Service(service.clone()), &[RecordKind::Endpoint]).await?;
    let mut endpoints = view.services.get(service).into_iter().flat_map(|of| &of.endpoints);
    Ok(endpoints.any(|endpoint| endpoint.value.state == EndpointState::Serving))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<(String, Vec<String>), String> {
        let names: Vec<EndpointName> = words.split(' ').map(|word| word.parse().unwrap()).collect();
        let (service, instances) = named(&names[0], &names[1..]).map_err(|failure| failure.message())?;
        Ok((service.to_string(), instances.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn drain_accepts_endpoint_names_as_printed_by_lists() {
        let expected = Ok(("shop/cart".to_owned(), vec!["cart-0".to_owned(), "cart-1".to_owned()]));
        for words in [
            "shop/cart cart-0 cart-1",
            "shop/cart/cart-0 shop/cart/cart-1",
            "shop/cart/cart-0 cart-1",
            "shop/cart shop/cart/cart-0 cart-1",
        ] {
            assert_eq!(read(words), expected, "{words}");
        }
        assert!(read("shop/cart").unwrap_err().contains("no instance"));
        assert!(read("cart-0").unwrap_err().contains("service is missing"));
        assert!(read("shop/cart/cart-0 shop/web/web-0").unwrap_err().contains("one service"));
    }
}
