//! `fairmesh get --wait`, and waits of other commands for endpoints.

use std::time::Duration;

use fairmesh_console::{
    failure::Failure,
    view_reader::{ReadView, Scope, View, every_kind},
};
use fairmesh_model::{EndpointState, ServiceName, spec::write_duration};
use fairmesh_wire::handshake::Connection;
use tokio::time::{Instant, sleep, timeout_at};

use super::{GetArgs, Kind, listing};

/// Interval of reads. A watch would have to acknowledge updates, and drains would wait for it.
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits until there is something to list; services and endpoints must also be serving.
pub(super) async fn wait(connection: &Connection, args: &GetArgs, limit: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    let scope = args.scope();
    loop {
        let view = read(connection, &scope, deadline).await?;
        if let Some(view) = &view
            && is_complete(connection, args, view).await?
        {
            return Ok(());
        }
        if view.is_none() || Instant::now() >= deadline {
            return Err(elapsed(args, limit));
        }
        sleep(INTERVAL).await;
    }
}

/// Waits until an endpoint of the service is serving; false if none is at the deadline.
pub(crate) async fn serving_endpoint(
    connection: &Connection,
    service: &ServiceName,
    deadline: Instant,
) -> Result<bool, Failure> {
    let scope = Scope::Service(service.clone());
    loop {
        let Some(view) = read(connection, &scope, deadline).await? else { return Ok(false) };
        if has_serving(&view) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(INTERVAL).await;
    }
}

/// Reads the records. `None` if the deadline passes first.
async fn read(connection: &Connection, scope: &Scope, deadline: Instant) -> Result<Option<View>, Failure> {
    timeout_at(deadline, View::read(connection, scope, &every_kind())).await.ok().transpose()
}

async fn is_complete(connection: &Connection, args: &GetArgs, view: &View) -> Result<bool, Failure> {
    if args.service.as_ref().is_some_and(|name| !view.services.contains_key(name)) {
        return Ok(false);
    }
    match args.kind {
        Kind::Services | Kind::Endpoints => Ok(has_serving(view)),
        _ => Ok(!listing(connection, args, view).await?.items.is_empty()),
    }
}

fn has_serving(view: &View) -> bool {
    let mut endpoints = view.services.values().flat_map(|one| &one.endpoints);
    endpoints.any(|endpoint| endpoint.value.state == EndpointState::Serving)
}

fn elapsed(args: &GetArgs, limit: Duration) -> Failure {
    let after = write_duration(limit);
    let of = args.service.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
    match args.kind {
        Kind::Services | Kind::Endpoints => Failure::failed_with(
            format!("no endpoint{of} is serving after {after}"),
            "'fairmesh register' prints whether its program responds; --wait=DURATION waits longer",
        ),
        _ => {
            Failure::failed_with(format!("nothing{of} to list after {after}"), "--wait=DURATION waits longer")
        }
    }
}
