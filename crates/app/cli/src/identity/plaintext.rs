//! `fairmesh identity plaintext`: who still calls in plaintext.

use fairmesh_console::{
    connect,
    failure::Failure,
    output::Listing,
    view_reader::{ReadView as _, Scope, View},
};
use fairmesh_model::{MtlsMode, RecordKind, ServiceName};
use fairmesh_wire::{handshake::Connection, v1};
use serde_json::json;

use super::ReadArgs;

/// Arguments of `fairmesh identity plaintext`.
#[derive(Debug, clap::Args)]
pub struct PlaintextArgs {
    /// The service; all whose policy is permissive without it.
    service: Option<ServiceName>,
    #[command(flatten)]
    read: ReadArgs,
}

/// Prints one row per server and caller.
pub(super) async fn run(args: PlaintextArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.read.target).await?;
    let services = match args.service {
        Some(service) => vec![service],
        None => permissive(&connection).await?,
    };
    let mut listing = Listing::new(&["SERVICE", "INSTANCE", "CALLER", "CONNECTIONS", "LAST"]);
    listing.why_empty = Some(match services.as_slice() {
        [] => "no policy says 'mtls: permissive', so that servers with mutual TLS accept nothing else".into(),
        _ => "no server has had a caller in plaintext for five minutes".into(),
    });
    for service in services {
        let request = v1::ReadPlaintextCallersRequest { service: service.to_string() };
        let response = connection.registry().read_plaintext_callers(request).await?.into_inner();
        for server in response.servers {
            server.callers.iter().for_each(|caller| add(&mut listing, &service, &server.instance, caller));
        }
    }
    listing.print(args.read.output.format())
}

/// The services with a permissive policy.
async fn permissive(connection: &Connection) -> Result<Vec<ServiceName>, Failure> {
    let view = View::read(connection, &Scope::All, &[RecordKind::Policy]).await?;
    let permissive = view.services.into_iter().filter(|(_, one)| one.mtls() == MtlsMode::Permissive);
    Ok(permissive.map(|(name, _)| name).collect())
}

fn add(listing: &mut Listing, service: &ServiceName, instance: &str, caller: &v1::PlaintextCaller) {
    let v1::PlaintextCaller { address, connections, seconds_ago } = caller;
    let item = json!({
        "service": service.to_string(),
        "instance": instance,
        "caller": address,
        "connections": connections,
        "lastSecondsAgo": seconds_ago,
    });
    let row = [
        service.to_string(),
        instance.to_owned(),
        address.clone(),
        connections.to_string(),
        format!("{seconds_ago} s ago"),
    ];
    listing.add(row.to_vec(), item);
}
