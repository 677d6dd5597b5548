//! `fairmesh describe`.

mod fields;
mod host;
mod region;
mod routes;
mod service;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output, rib_reader,
    view_reader::{At, ReadView, Scope, View, every_kind},
};
use fairmesh_model::{InstanceId, ServiceName, SpiffeId};
use fairmesh_views::states;
use serde_json::json;

use crate::{identity::describe_revocations_of, records::get};

/// Arguments of `fairmesh describe`.
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// The kind: service, endpoint, region or host; of a service and of an endpoint the name is enough.
    #[arg(value_name = "KIND", value_parser = subject)]
    subject: Subject,
    /// Its name: tenant/service, tenant/service/instance for an endpoint, a region, or a host type.
    name: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A service with its policy, endpoints, shards and moves.
    #[value(aliases = ["services", "policy", "policies", "shards"])]
    Service,
    /// An endpoint of a service.
    #[value(alias = "endpoints")]
    Endpoint,
    /// A region and its endpoints.
    #[value(alias = "regions")]
    Region,
    /// A host type and its endpoints.
    #[value(alias = "hosts")]
    Host,
}

/// The first argument: a kind, or a name whose form shows its kind.
#[derive(Clone, Debug)]
enum Subject {
    Kind(Kind),
    Name(Kind, String),
}

fn subject(text: &str) -> Result<Subject, String> {
    if let Ok(kind) = Kind::from_str(text, false) {
        return Ok(Subject::Kind(kind));
    }
    match text.matches('/').count() {
        1 => Ok(Subject::Name(Kind::Service, text.to_owned())),
        2 => Ok(Subject::Name(Kind::Endpoint, text.to_owned())),
        _ => Err("write service, endpoint, region or host and a name, or tenant/service alone".to_owned()),
    }
}

impl DescribeArgs {
    fn kind_and_name(&self) -> Result<(Kind, &str), Failure> {
        match (&self.subject, &self.name) {
            (Subject::Kind(kind), Some(name)) => Ok((*kind, name)),
            (Subject::Name(kind, name), None) => Ok((*kind, name)),
            (Subject::Kind(_), None) => Err(Failure::refused(
                "the name of the object is missing",
                "write it after the kind, such as 'fairmesh describe region eu'",
            )),
            (Subject::Name(_, name), Some(second)) => Err(Failure::refused(
                format!("'{name}' is a name, and so is '{second}'"),
                "write a kind and a name, or one name: service, endpoint, region and host are kinds",
            )),
        }
    }
}

/// Prints all details of one object.
pub async fn run(args: DescribeArgs) -> Result<ExitCode, Failure> {
    let format = args.output_args.format();
    let (kind, name) = args.kind_and_name()?;
    match kind {
        Kind::Service => {
            let name: ServiceName = parse_name(name.parse())?;
            let view = read(&args.target, Scope::Service(name.clone())).await?;
            service::describe(&name, &view, format)?;
        }
        Kind::Endpoint => {
            let (service, instance) = instance(name)?;
            let connection = connect::connect(&args.target).await?;
            let view = View::read(&connection, &Scope::Service(service.clone()), &every_kind()).await?;
            let id = rib_reader::identity_of_service(&connection, &service).await?;
            let proved = match id {
                Some(id) => {
                    let revocations = rib_reader::revocations(&connection).await;
                    let revoked = describe_revocations_of(&revocations, &id.path);
                    Some((id, revoked))
                }
                None => None,
            };
            endpoint((&service, &instance), &view, proved, format)?;
        }
        Kind::Region => {
            let region = parse_name(name.parse())?;
            region::describe(&connect::connect(&args.target).await?, &region, format).await?;
        }
        Kind::Host => {
            let host_type = parse_name(name.parse())?;
            let view = read(&args.target, Scope::All).await?;
            host::describe(&host_type, &view, format)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(target: &TargetArgs, scope: Scope) -> Result<View, Failure> {
    let connection = connect::connect(target).await?;
    View::read(&connection, &scope, &every_kind()).await
}

/// Parses a name; the error shows the expected form.
fn parse_name<T>(name: Result<T, fairmesh_model::Invalid>) -> Result<T, Failure> {
    name.map_err(|invalid| Failure::refused(invalid.problem, invalid.hint))
}

fn instance(name: &str) -> Result<(ServiceName, InstanceId), Failure> {
    let (service, instance) = name.rsplit_once('/').ok_or_else(|| {
        Failure::refused(
            format!("'{name}' does not name an endpoint"),
            "write tenant/service/instance, such as shop/cart/cart-0",
        )
    })?;
    Ok((parse_name(service.parse())?, parse_name(instance.parse())?))
}

fn endpoint(
    (service, instance): (&ServiceName, &InstanceId),
    view: &View,
    proved: Option<(SpiffeId, Option<String>)>,
    format: Format,
) -> Result<(), Failure> {
    let one = view.service(service)?;
    let states = states(one, view);
    let mut endpoints = one.endpoints.iter().zip(&states);
    let Some((At { value, revision }, state)) = endpoints.find(|(at, _)| at.value.instance == *instance)
    else {
        let hint = format!("list its endpoints with 'fairmesh get endpoints {service}'");
        return Err(Failure::failed_with(format!("{service} has no endpoint {instance}"), hint));
    };
    let mut item = json!(fairmesh_model::spec::EndpointSpec::of(value));
    item["service"] = json!(service.to_string());
    let (id, revoked) = proved.filter(|_| value.mtls).unzip();
    item["identity"] = json!(id.map(|id| id.to_string()));
    item["revoked"] = json!(revoked.flatten());
    item["state"] = json!(state.state);
    item["weight"] = json!(value.weight);
    item["hostType"] = json!(view.hosts.value.host_type(value));
    item["hostSpeed"] = json!(view.hosts.value.speed(value));
    item["power"] = json!(view.hosts.value.power(value));
    let health = get::health_rows(service, one, &view.hosts.value).items;
    item["health"] = health.into_iter().find(|one| one["instance"] == item["instance"]).into();
    item["why"] = json!(Some(state.reason()).filter(|reason| !reason.is_empty()));
    item["revision"] = json!(revision);
    output::print_one(format, &item, &fields::text(&item))
}
